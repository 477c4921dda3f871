// Untied heads of checkpoints; see own_head.h.
#include "weights/own_head.h"

#include <algorithm>

#include "blipft/error.h"
#include "blipft/family.h"
#include "blipft/ops.h"
#include "io/json.h"

namespace blipft {

namespace {

bool is_float(const StoredTensor& tensor) {
  return tensor.dtype == DType::f32 || tensor.dtype == DType::bf16 || tensor.dtype == DType::f16;
}

bool differ(const SafetensorsReader& reader, const TieRule::Names& names) {
  const auto head = reader.tensors().find(names.head), table = reader.tensors().find(names.embeddings);
  if (head == reader.tensors().end() || table == reader.tensors().end()) return false;
  const bool comparable = is_float(head->second) && is_float(table->second) && head->second.shape == table->second.shape;
  if (!comparable) return false;
  const bool head_is_exact = dtype_size(head->second.dtype) > dtype_size(table->second.dtype);
  return head_is_exact ? !same_numbers(reader, *head, reader, *table) : !same_numbers(reader, *table, reader, *head);
}

}  // namespace

bool says_tied(const std::string& model_directory) {
  const auto config = io::read_json_file<nlohmann::ordered_json>(model_directory + "/config.json");
  const TieRule& rule = family_of(model_directory).tie;
  const auto text = config.find("text_config");
  const bool at_root = text == config.end() || !text->is_object() || (rule.flag_at_root && config.contains("tie_word_embeddings"));
  const auto& part = at_root ? config : *text;
  const auto found = part.find("tie_word_embeddings");
  return found == part.end() || !found->is_boolean() ? rule.by_default : found->get<bool>();
}

bool has_own_head(const std::string& model_directory) {
  try {
    if (!says_tied(model_directory)) return false;
    const SafetensorsReader reader(model_directory);
    const std::vector<TieRule::Names>& weights = family_of(model_directory).tie.weights;
    return std::any_of(weights.begin(), weights.end(), [&](const TieRule::Names& names) { return differ(reader, names); });
  } catch (const UserError&) {
    return false;
  }
}

bool has_head(const Units& units, const std::string& model_directory) {
  const std::vector<TieRule::Names>& weights = family_of(model_directory).tie.weights;
  for (const Unit* unit : units)
    for (const Parameter& parameter : unit->parameters())
      for (const TieRule::Names& names : weights)
        if (parameter.name == names.head) return true;
  return false;
}

}  // namespace blipft
