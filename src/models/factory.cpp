// Finding the family that a config.json names; see families.h.
#include <filesystem>

#include "io/json_fields.h"
#include "models/families/families.h"

namespace blipft {

namespace {

const std::vector<Family>& table() {
  static const std::vector<Family> families = all_families();
  return families;
}

const Family& find(const JsonFields& fields) {
  const std::string type = fields.get<std::string>("model_type", "");
  std::string known;
  for (const Family& family : table()) {
    if (type == family.spec.model_type) return family;
    known += concat(known.empty() ? "" : ", ", family.spec.model_type);
  }
  throw UserError(concat(fields.file(), ": model_type: found \"", brief(type), "\", known are ", known));
}

const Family& find(const std::string& model_directory) {
  std::error_code ignored;
  BLIPFT_USER_CHECK(
      std::filesystem::is_directory(model_directory, ignored), "model.path: found \"", model_directory,
      "\", which is not a directory; expected one that save_pretrained wrote or that was downloaded from the hub");
  const std::string file = model_directory + "/config.json";
  const nlohmann::json root = io::read_json_file(file);
  return find(JsonFields(root, file));
}

}  // namespace

std::unique_ptr<Model> make_model(const std::string& model_directory, const ModelSettings& settings) {
  const Family& family = find(model_directory);
  const std::string file = model_directory + "/config.json";
  if (family.make) return family.make(file, settings);
  return make_decoder(read_decoder_config(file), file, settings);
}

const FamilySpec& family_of(const std::string& model_directory) { return find(model_directory).spec; }

const FamilySpec* find_family(const std::string& model_type) {
  for (const Family& family : table())
    if (model_type == family.spec.model_type) return &family.spec;
  return nullptr;
}

FamilySpec decoder_spec(const std::string& model_type, const std::string& class_name) {
  return {.model_type = model_type,
          .saved_as = {class_name, concat("transformers.models.", model_type, ".modeling_", model_type), true},
          .tie = {.weights = {{"lm_head.weight", "model.embed_tokens.weight"}}}};
}

DecoderConfig read_decoder_config(const std::string& config_file) {
  const nlohmann::json root = io::read_json_file(config_file);
  const JsonFields fields(root, config_file);
  const Family& family = find(fields);
  BLIPFT_USER_CHECK(family.read_decoder, config_file, ": model_type: found \"", family.spec.model_type,
                    "\", expected a decoder of texts");
  return family.read_decoder(fields);
}

}  // namespace blipft
