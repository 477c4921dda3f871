// The table of model families, by config.json's model_type.
#include <filesystem>

#include "models/blip2.h"
#include "models/json_fields.h"
#include "models/llama.h"

namespace blipft {

std::unique_ptr<Model> make_model(const std::string& model_directory, const ModelSettings& settings) {
  struct Row {
    const char* model_type;
    std::unique_ptr<Model> (*make)(const std::string&, const ModelSettings&);
  };
  static constexpr Row kTable[] = {
      {"blip-2", make_blip2}, {"llama", make_llama}, {"mistral", make_llama}, {"qwen2", make_llama}};
  std::error_code ignored;
  BLIPFT_USER_CHECK(
      std::filesystem::is_directory(model_directory, ignored), "model.path: found \"", model_directory,
      "\", which is not a directory; expected one that save_pretrained wrote or that was downloaded from the hub");
  const std::string file = model_directory + "/config.json";
  const nlohmann::json root = io::read_json_file(file);
  const std::string type = JsonFields(root, file).get<std::string>("model_type", "");
  std::string known;
  for (const Row& row : kTable) {
    if (type == row.model_type) return row.make(file, settings);
    known += concat(known.empty() ? "" : ", ", row.model_type);
  }
  throw UserError(concat(file, ": model_type: found \"", brief(type), "\", known are ", known));
}

}  // namespace blipft
