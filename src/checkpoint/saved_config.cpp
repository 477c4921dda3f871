// The small files of a saved model; see saved_config.h.
#include "checkpoint/saved_config.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "blipft/error.h"
#include "blipft/family.h"
#include "blipft/text.h"
#include "engine/run_data.h"
#include "io/json.h"

namespace blipft {

namespace {

using nlohmann::ordered_json;

// Sets the dtype of every object in `object` that has one.
void set_dtype(ordered_json& object, const char* name) {
  for (auto& [key, value] : object.items()) {
    if (key == "dtype" || key == "torch_dtype") value = name;
    else if (value.is_structured()) set_dtype(value, name);
  }
}

// Sets tie_word_embeddings to false for the model and, if it has a text_config, for its language model.
void untie(ordered_json& config) {
  const auto untie_part = [](ordered_json& part) {
    const FamilySpec* family = find_family(part.value("model_type", ""));
    if (!family || !family->tie.flag_has_other_meaning) part["tie_word_embeddings"] = false;
  };
  untie_part(config);
  if (config.contains("text_config")) untie_part(config["text_config"]);
}

bool lacks(const ordered_json& object, const char* key) { return !object.contains(key) || object[key].is_null(); }

// Returns the id of <image> in transformers' processor: the tokenizer's id if it has this token, else the next free id.
int64_t image_token_of(const Tokenizer& tokenizer) {
  const std::vector<int32_t> ids = tokenizer.encode("<image>", {.add_special_tokens = false});
  return ids.size() == 1 ? ids[0] : tokenizer.vocab_size();
}

void complete_image_token(const std::string& source, int64_t vocabulary, SavedConfig& saved, ordered_json& config) {
  if (!lacks(config, "image_token_index")) return;
  const std::string location = source + "/config.json: image_token_index: ";
  if (!has_tokenizer(source)) {
    saved.notes.push_back(location + "found none, and there is no tokenizer to find it with. transformers 5 needs it to generate: add it");
    return;
  }
  int64_t id = 0;
  try {
    id = image_token_of(*load_model_tokenizer(source));
  } catch (const UserError& error) {       // saving the weights is more important than this key
    saved.notes.push_back(concat(location, "found none. transformers 5 needs it to generate: add it. The tokenizer cannot be read: ",
                                 error.what()));
    return;
  }
  if (id >= vocabulary) {
    saved.notes.push_back(concat(location, "found none. transformers 5 needs it to generate, and its processor gives <image> the id ", id,
                                 ", but the embeddings have ", vocabulary, " rows: resize them there first"));
    return;
  }
  config["image_token_index"] = id;
  saved.notes.push_back(concat(location, "found none; the saved model has ", id, ", the id of <image>, so that transformers 5 can generate"));
}

void complete_processor(const std::string& source, SavedConfig& saved, const ordered_json& config) {
  const std::string file = source + "/processor_config.json";
  std::error_code ignored;
  const bool exists = std::filesystem::exists(file, ignored);
  ordered_json processor = exists ? io::read_json_file<ordered_json>(file) : ordered_json::object();
  if (!processor.is_object() || !lacks(processor, "num_query_tokens")) return;
  const int64_t queries = lacks(config, "num_query_tokens") ? 32 : config["num_query_tokens"].get<int64_t>();
  if (lacks(processor, "processor_class"))
    processor["processor_class"] = family_of(source).processor_class;
  processor["num_query_tokens"] = queries;
  saved.processor = processor.dump(2) + "\n";
  saved.notes.push_back(concat(file, exists ? ": num_query_tokens: found none" : ": not found", "; the saved model has one with ",
                               queries, " query tokens, so that transformers 5 can generate"));
}

}  // namespace

SavedConfig saved_config(const std::string& source, DType dtype, bool untied, int64_t vocabulary) {
  SavedConfig saved;
  ordered_json config = io::read_json_file<ordered_json>(source + "/config.json");
  const char* name = dtype == DType::bf16 ? "bfloat16" : dtype == DType::f16 ? "float16" : "float32";
  set_dtype(config, name);
  config["dtype"] = name;
  config["torch_dtype"] = name;
  if (untied) untie(config);
  if (!family_of(source).processor_class.empty()) {
    complete_image_token(source, vocabulary, saved, config);
    complete_processor(source, saved, config);
  }
  saved.config = config.dump(2) + "\n";
  return saved;
}

}  // namespace blipft
