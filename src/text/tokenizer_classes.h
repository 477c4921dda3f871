// Classes of transformers that build parts of a tokenizer themselves.
#pragma once

#include <string>

#include "io/json.h"

namespace blipft::tokenizer_json {

/// Replaces parts of `json`, a whole tokenizer.json, by those that `tokenizer_class` (without "Fast") builds itself.
/// The tokens stay, and the post_processor except with BertTokenizer and T5Tokenizer. `config` is
/// tokenizer_config.json.
void put_parts_of_class(const std::string& tokenizer_class, const nlohmann::json& config, nlohmann::json& json);

}  // namespace blipft::tokenizer_json
