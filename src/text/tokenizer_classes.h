// Classes of transformers that build parts of a tokenizer themselves.
#pragma once

#include <string>

#include "io/json.h"

namespace blipft::tokenizer_json {

/// Puts the parts that `tokenizer_class` (without "Fast") builds itself into `json`, a whole tokenizer.json, in place
/// of the file's; post_processor (but of BertTokenizer and T5Tokenizer) and tokens stay. `config` is
/// tokenizer_config.json.
void put_parts_of_class(const std::string& tokenizer_class, const nlohmann::json& config, nlohmann::json& json);

}  // namespace blipft::tokenizer_json
