// Reading tokenizer.json, and what it shares with the reading of the other tokenizer files.
#pragma once

#include <string>
#include <utility>

#include "io/json.h"
#include "text/tokenizer_files.h"

namespace blipft::tokenizer_json {

using Json = nlohmann::json;

/// object[key], or null where it is missing.
const Json& member(const Json& object, const char* key);
bool flag(const Json& object, const char* key, bool otherwise);
/// A special token is a string or an object with "content".
std::string content_of(const Json& token);
/// `special`: what a token is that is given as a string.
AddedToken added_token(const Json& token, bool special);

/// A token's id; `place` (file and key) is for the message. Throws UserError unless it is an integer from 0 to
/// max_token_ids - 1.
int32_t token_id(const Json& id, const std::string& place);
/// A token's id that is an object's key. Throws UserError as the overload above does.
int32_t token_id(const std::string& id, const std::string& place);
/// Fills spec.bpe.vocab; `file` names the place in messages.
void read_vocab(const Json& vocab, const std::string& file, TokenizerSpec& spec);
/// The two tokens of a line "a b".
std::pair<std::string, std::string> merge_of(const std::string& line, const std::string& file, size_t number);

/// The decoder that transformers 5 builds for LlamaTokenizer, with or without the space that is put before a text.
Json spaces_decoder(bool strips_first);
/// Fills spec.decoder.
void read_decoder(const Json& decoder, TokenizerSpec& spec);

/// Returns true if a part of tokenizer.json (not a token of the vocabulary) is of this type.
bool has_part(const Json& value, const std::string& type);
/// Reads the whole of tokenizer.json. `tokenizer_class` (without "Fast") and `config` are tokenizer_config.json's: some
/// classes of transformers put their own parts in place of the file's.
void read(Json json, const std::string& tokenizer_class, const Json& config, TokenizerSpec& spec);

}  // namespace blipft::tokenizer_json
