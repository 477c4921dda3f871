// Reading tokenizer.json, and functions that the readers of other tokenizer files share.
#pragma once

#include <string>
#include <utility>

#include "io/json.h"
#include "text/tokenizer_files.h"

namespace blipft::tokenizer_json {

using Json = nlohmann::json;

/// Returns object[key], or null if it is missing.
const Json& member(const Json& object, const char* key);
bool flag(const Json& object, const char* key, bool otherwise);
/// Returns the text of a special token: a string, or an object with "content".
std::string content_of(const Json& token);
/// Reads an added token. `special`: the flag of a token that is a plain string.
AddedToken added_token(const Json& token, bool special);

/// Reads a token's id; `location` (file and key) is for the message. Throws UserError unless it is an integer from 0 to
/// max_token_ids - 1.
int32_t token_id(const Json& id, const std::string& location);
/// Reads a token's id from an object's key. Throws UserError like the overload above.
int32_t token_id(const std::string& id, const std::string& location);
/// Fills spec.bpe.vocab; `file` is for messages.
void read_vocab(const Json& vocab, const std::string& file, TokenizerSpec& spec);
/// Returns the two tokens of a line "a b".
std::pair<std::string, std::string> merge_of(const std::string& line, const std::string& file, size_t number);

/// Returns the decoder that transformers 5 builds for LlamaTokenizer. `strips_first`: it removes the space before a
/// text.
Json spaces_decoder(bool strips_first);
/// Fills spec.decoder.
void read_decoder(const Json& decoder, TokenizerSpec& spec);

/// Returns true if a part of tokenizer.json (not a token of the vocabulary) is of this type.
bool has_part(const Json& value, const std::string& type);
/// Reads tokenizer.json. `tokenizer_class` (without "Fast") and `config` come from tokenizer_config.json: some classes
/// of transformers replace parts of the file.
void read(Json json, const std::string& tokenizer_class, const Json& config, TokenizerSpec& spec);

}  // namespace blipft::tokenizer_json
