// Heads of their own; see own_head.h.
#include "weights/own_head.h"

#include <algorithm>
#include <filesystem>

#include "blipft/error.h"
#include "blipft/ops.h"

namespace blipft {

namespace {

struct Names {
  const char *head, *embeddings;
};
constexpr Names kNames[] = {{"lm_head.weight", "model.embed_tokens.weight"},
                            {"language_model.lm_head.weight", "language_model.model.decoder.embed_tokens.weight"},
                            {"lm_head.weight", "shared.weight"},
                            {"language_model.lm_head.weight", "language_model.shared.weight"}};

bool is_float(const StoredTensor& tensor) {
  return tensor.dtype == DType::f32 || tensor.dtype == DType::bf16 || tensor.dtype == DType::f16;
}

bool differ(const SafetensorsReader& reader, const Names& names) {
  const auto head = reader.tensors().find(names.head), table = reader.tensors().find(names.embeddings);
  if (head == reader.tensors().end() || table == reader.tensors().end()) return false;
  const bool comparable = is_float(head->second) && is_float(table->second) && head->second.shape == table->second.shape;
  if (!comparable) return false;
  const bool head_is_exact = dtype_size(head->second.dtype) > dtype_size(table->second.dtype);
  return head_is_exact ? !same_numbers(reader, *head, reader, *table) : !same_numbers(reader, *table, reader, *head);
}

}  // namespace

// The defaults are those of the models' configuration classes: T5 and OPT, as language models of a BLIP-2 too, are tied.
bool says_tied(const nlohmann::ordered_json& config) {
  const auto flag = [](const nlohmann::ordered_json& object, const char* key, bool otherwise) {
    const auto found = object.find(key);
    return found == object.end() || !found->is_boolean() ? otherwise : found->get<bool>();
  };
  const char* const key = "tie_word_embeddings";
  if (!config.is_object()) return false;
  const auto text = config.find("text_config");
  if (text != config.end() && text->is_object()) return flag(*text, key, true);
  return flag(config, key, flag(config, "is_encoder_decoder", false));
}

bool has_own_head(const std::string& model_directory) {
  try {
    if (!says_tied(io::read_json_file<nlohmann::ordered_json>(model_directory + "/config.json"))) return false;
    const SafetensorsReader reader(model_directory);
    return std::any_of(std::begin(kNames), std::end(kNames), [&](const Names& names) { return differ(reader, names); });
  } catch (const UserError&) {
    return false;
  }
}

ModelSettings with_own_head(ModelSettings settings, const Config& config) {
  settings.untied_head = config.model.init == InitialWeights::pretrained && has_own_head(config.model.path);
  return settings;
}

bool has_head(const Units& units) {
  for (const Unit* unit : units)
    for (const Parameter& parameter : unit->parameters())
      for (const Names& names : kNames)
        if (parameter.name == names.head) return true;
  return false;
}

}  // namespace blipft
