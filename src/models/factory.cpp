// Creates the model of the family that a config.json names; see families.h.
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

// Throws UserError if there is no such directory.
std::string config_file_of(const std::string& model_directory) {
  std::error_code ignored;
  BLIPFT_USER_CHECK(
      std::filesystem::is_directory(model_directory, ignored), "model.path: found \"", model_directory,
      "\", which is not a directory; expected one that save_pretrained wrote or that was downloaded from the hub");
  return model_directory + "/config.json";
}

}  // namespace

ModelFactory read_model(const std::string& model_directory) {
  const std::string file = config_file_of(model_directory);
  return [root = io::read_json_file(file), file](const ModelSettings& settings) -> std::unique_ptr<Model> {
    const JsonFields fields(root, file);
    const Family& family = find(fields);
    if (family.make) return family.make(fields, settings);
    return make_decoder(read_decoder_config(fields), file, settings);
  };
}

const FamilySpec& family_of(const std::string& model_directory) {
  const std::string file = config_file_of(model_directory);
  const nlohmann::json root = io::read_json_file(file);
  return find(JsonFields(root, file)).spec;
}

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

DecoderConfig read_decoder_config(const JsonFields& fields) {
  const Family& family = find(fields);
  BLIPFT_USER_CHECK(family.read_decoder, fields.file(), ": model_type: found \"", family.spec.model_type,
                    "\", expected a decoder of texts");
  return family.read_decoder(fields);
}

}  // namespace blipft
