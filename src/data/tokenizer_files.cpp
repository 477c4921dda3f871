// Reading tokenizer.json, vocab.json, merges.txt and the special-token files. The rules for which file's word counts
// are those of transformers' tokenizer loading: a later, more specific statement changes an added token's flags.
#include "data/tokenizer_files.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "blipft/error.h"
#include "data/unicode.h"

namespace blipft {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

const char* const named_tokens[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                    "pad_token", "cls_token", "mask_token"};

std::optional<Json> read_json(const fs::path& path) {
  if (!fs::exists(path)) return std::nullopt;
  std::ifstream in(path, std::ios::binary);
  BLIPFT_USER_CHECK(in.good(), path.string(), ": cannot be opened; check its permissions");
  try {
    return Json::parse(in);
  } catch (const Json::exception& error) {
    throw UserError(concat(path.string(), ": not valid JSON (", error.what(), "); the file is broken or incomplete"));
  }
}

/// object[key], or null where it is missing.
const Json& member(const Json& object, const char* key) {
  static const Json null;
  if (!object.is_object()) return null;
  const auto found = object.find(key);
  return found == object.end() ? null : *found;
}

bool flag(const Json& object, const char* key, bool otherwise) {
  const Json& value = member(object, key);
  return value.is_null() ? otherwise : value.get<bool>();
}

std::string type_of(const Json& part) {
  const Json& type = member(part, "type");
  return type.is_string() ? type.get<std::string>() : part.is_null() ? "null" : "(no type)";
}

/// A special token is a string or an object with "content".
std::string content_of(const Json& token) {
  if (token.is_string()) return token.get<std::string>();
  const Json& content = member(token, "content");
  return content.is_string() ? content.get<std::string>() : std::string();
}

AddedToken added_token(const Json& token, bool special) {
  AddedToken out;
  out.content = content_of(token);
  out.special = token.is_string() ? special : special || flag(token, "special", false);
  out.lstrip = flag(token, "lstrip", false);
  out.rstrip = flag(token, "rstrip", false);
  out.single_word = flag(token, "single_word", false);
  out.normalized = flag(token, "normalized", !out.special);
  return out;
}

bool same_flags(const AddedToken& a, const AddedToken& b) {
  return a.special == b.special && a.lstrip == b.lstrip && a.rstrip == b.rstrip && a.single_word == b.single_word &&
         a.normalized == b.normalized;
}

AddedToken* find_added(TokenizerSpec& spec, const std::string& content) {
  const auto found = std::find_if(spec.added.begin(), spec.added.end(),
                                  [&](const AddedToken& token) { return token.content == content; });
  return found == spec.added.end() ? nullptr : &*found;
}

std::optional<int32_t> id_of(TokenizerSpec& spec, const std::string& content) {
  if (const AddedToken* added = find_added(spec, content)) return added->id;
  const auto found = spec.bpe.vocab.find(content);
  if (found == spec.bpe.vocab.end()) return std::nullopt;
  return found->second;
}

/// Adds a token or changes its flags. One that has no id yet gets the next free one.
void add_token(TokenizerSpec& spec, AddedToken token) {
  if (token.content.empty()) return;
  if (const auto id = id_of(spec, token.content)) {
    token.id = *id;
  } else if (token.id < 0) {
    token.id = static_cast<int32_t>(spec.bpe.vocab.size());
    for (const AddedToken& other : spec.added) token.id = std::max(token.id, other.id + 1);
  }
  if (AddedToken* present = find_added(spec, token.content)) {
    *present = token;
  } else {
    spec.added.push_back(token);
  }
}

void read_vocab(const Json& vocab, const std::string& file, TokenizerSpec& spec) {
  BLIPFT_USER_CHECK(vocab.is_object() && !vocab.empty(), file, ": the vocabulary is ",
                    vocab.is_object() ? "empty" : vocab.type_name(), "; expected an object of token: id");
  spec.bpe.vocab.reserve(vocab.size() * 2);
  for (const auto& [token, id] : vocab.items()) {
    const bool fits = id.is_number_integer() && id.get<int64_t>() >= 0 &&
                      id.get<int64_t>() < std::numeric_limits<int32_t>::max();
    BLIPFT_USER_CHECK(fits, file, ": token \"", token, "\" has the id ", id.dump(), "; expected an integer from 0 on");
    spec.bpe.vocab.emplace(token, id.get<int32_t>());
  }
}

std::pair<std::string, std::string> merge_of(const std::string& line, const std::string& file, size_t number) {
  const size_t space = line.find(' ');
  const bool two = space != std::string::npos && space > 0 && space + 1 < line.size() &&
                   line.find(' ', space + 1) == std::string::npos;
  BLIPFT_USER_CHECK(two, file, ": merge ", number, " is \"", line, "\"; expected two tokens with one space between");
  return {line.substr(0, space), line.substr(space + 1)};
}

/// Both forms: "a b" and ["a", "b"].
void read_merges(const Json& merges, const std::string& file, TokenizerSpec& spec) {
  BLIPFT_USER_CHECK(merges.is_array(), file, ": model.merges is ", merges.type_name(), "; expected an array");
  for (const Json& merge : merges) {
    const size_t number = spec.bpe.merges.size() + 1;
    if (merge.is_string()) {
      spec.bpe.merges.push_back(merge_of(merge.get<std::string>(), file, number));
      continue;
    }
    BLIPFT_USER_CHECK(merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string(), file,
                      ": merge ", number, " is ", merge.dump(), "; expected \"a b\" or [\"a\", \"b\"]");
    spec.bpe.merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
  }
}

void read_merges_file(const fs::path& path, TokenizerSpec& spec) {
  std::ifstream in(path, std::ios::binary);
  BLIPFT_USER_CHECK(in.good(), path.string(), ": missing or unreadable; vocab.json needs merges.txt beside it");
  size_t number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty() || line.starts_with("#version")) continue;  // "# #" is a merge, not a comment
    spec.bpe.merges.push_back(merge_of(line, concat(path.string(), ", line ", number), spec.bpe.merges.size() + 1));
  }
}

void read_model(const Json& model, const std::string& file, TokenizerSpec& spec) {
  const Json& type = member(model, "type");
  const bool bpe = type.is_string() ? type == "BPE" : !member(model, "merges").is_null();
  BLIPFT_USER_CHECK(bpe, file, ": model.type is ", type_of(model),
                    "; only byte-level BPE (type \"BPE\", as GPT-2 and OPT have it) is supported");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const Json& value = member(model, key);
    BLIPFT_USER_CHECK(value.is_null() || value == "", file, ": model.", key, " is ", value.dump(),
                      "; only byte-level BPE without it is supported");
  }
  BLIPFT_USER_CHECK(!flag(model, "byte_fallback", false), file,
                    ": model.byte_fallback is true (a SentencePiece-like tokenizer); only byte-level BPE is supported");
  const Json& dropout = member(model, "dropout");
  BLIPFT_USER_CHECK(dropout.is_null() || dropout == 0.0, file, ": model.dropout is ", dropout.dump(),
                    "; only null is supported");
  read_vocab(member(model, "vocab"), file + ": model.vocab", spec);
  read_merges(member(model, "merges"), file, spec);
  spec.bpe.fuse_unknown = flag(model, "fuse_unk", false);
  spec.bpe.ignore_merges = flag(model, "ignore_merges", false);
  if (const Json& unknown = member(model, "unk_token"); unknown.is_string()) {
    const auto found = spec.bpe.vocab.find(unknown.get<std::string>());
    if (found != spec.bpe.vocab.end()) spec.bpe.unknown_id = found->second;
  }
}

void read_normalizer(const Json& normalizer, const std::string& file, TokenizerSpec& spec) {
  const std::string type = type_of(normalizer);
  if (type == "Sequence") {
    for (const Json& part : member(normalizer, "normalizers")) read_normalizer(part, file, spec);
    return;
  }
  if (type == "NFC") spec.normalize_nfc = true;
  BLIPFT_USER_CHECK(normalizer.is_null() || type == "NFC", file, ": the normalizer is of type ", type,
                    "; supported are none and NFC");
}

/// Counts the ByteLevel parts it finds and takes over their settings.
int read_pre_tokenizer(const Json& pre_tokenizer, const std::string& file, TokenizerSpec& spec) {
  const std::string type = type_of(pre_tokenizer);
  if (type == "Sequence") {
    int found = 0;
    for (const Json& part : member(pre_tokenizer, "pretokenizers")) found += read_pre_tokenizer(part, file, spec);
    return found;
  }
  BLIPFT_USER_CHECK(type == "ByteLevel", file, ": the pre_tokenizer is of type ", type,
                    "; supported is ByteLevel (GPT-2's and OPT's), alone or in a Sequence of its own");
  spec.add_prefix_space = flag(pre_tokenizer, "add_prefix_space", true);
  spec.split_words = flag(pre_tokenizer, "use_regex", true);
  return 1;
}

/// ["</s>", 2]
int32_t pair_id(const Json& processor, const char* key, const std::string& file) {
  const Json& pair = member(processor, key);
  BLIPFT_USER_CHECK(pair.is_array() && pair.size() == 2 && pair[1].is_number_integer(), file, ": post_processor.", key,
                    " is ", pair.dump(), "; expected [token, id]");
  return pair[1].get<int32_t>();
}

void read_template(const Json& processor, const std::string& file, TokenizerSpec& spec) {
  std::vector<int32_t> before, after;
  int sequences = 0;
  for (const Json& piece : member(processor, "single")) {
    if (!member(piece, "Sequence").is_null()) {
      ++sequences;
      continue;
    }
    const std::string name = member(member(piece, "SpecialToken"), "id").get<std::string>();
    const Json& ids = member(member(member(processor, "special_tokens"), name.c_str()), "ids");
    BLIPFT_USER_CHECK(ids.is_array(), file, ": post_processor.special_tokens has no ids for \"", name,
                      "\", which post_processor.single uses");
    for (const Json& id : ids) (sequences == 0 ? before : after).push_back(id.get<int32_t>());
  }
  BLIPFT_USER_CHECK(sequences == 1, file, ": post_processor.single has ", sequences,
                    " places for the text; expected one");
  spec.prefix_ids.insert(spec.prefix_ids.begin(), before.begin(), before.end());
  spec.suffix_ids.insert(spec.suffix_ids.end(), after.begin(), after.end());
}

void read_post_processor(const Json& processor, const std::string& file, TokenizerSpec& spec) {
  const std::string type = type_of(processor);
  if (processor.is_null() || type == "ByteLevel") return;  // ByteLevel changes offsets only
  if (type == "Sequence") {
    for (const Json& part : member(processor, "processors")) read_post_processor(part, file, spec);
  } else if (type == "TemplateProcessing") {
    read_template(processor, file, spec);
  } else {
    BLIPFT_USER_CHECK(type == "RobertaProcessing" || type == "BertProcessing", file, ": the post_processor is of type ",
                      type, "; supported are TemplateProcessing, ByteLevel, RobertaProcessing and Sequence of them");
    spec.prefix_ids.insert(spec.prefix_ids.begin(), pair_id(processor, "cls", file));
    spec.suffix_ids.push_back(pair_id(processor, "sep", file));
  }
}

void read_tokenizer_json(const Json& json, TokenizerSpec& spec) {
  read_model(member(json, "model"), spec.file, spec);
  read_normalizer(member(json, "normalizer"), spec.file, spec);
  const int found = read_pre_tokenizer(member(json, "pre_tokenizer"), spec.file, spec);
  BLIPFT_USER_CHECK(found == 1, spec.file, ": the pre_tokenizer Sequence has ", found,
                    " ByteLevel parts; expected one");
  read_post_processor(member(json, "post_processor"), spec.file, spec);
  for (const Json& entry : member(json, "added_tokens")) {
    AddedToken token = added_token(entry, false);
    token.id = entry.at("id").get<int32_t>();
    const auto known = id_of(spec, token.content);
    BLIPFT_USER_CHECK(!known || *known == token.id, spec.file, ": added token \"", token.content, "\" has the id ",
                      token.id, ", but the vocabulary says ", known.value_or(-1));
    add_token(spec, token);
  }
}

/// The special-token statements of the files beside the vocabulary, as transformers merges them.
struct SpecialTokens {
  std::map<int32_t, AddedToken> decoder;         // added_tokens_decoder, or added_tokens.json
  std::vector<std::pair<std::string, AddedToken>> named;  // key -> token, in the order of named_tokens
  std::vector<AddedToken> extra;

  const AddedToken* find(const std::string& key) const {
    for (const auto& [name, token] : named)
      if (name == key) return &token;
    return nullptr;
  }
};

SpecialTokens read_special_tokens(const fs::path& directory, Json config) {
  SpecialTokens out;
  const bool has_decoder = !member(config, "added_tokens_decoder").is_null();
  if (has_decoder)
    for (const auto& [id, token] : config["added_tokens_decoder"].items())
      out.decoder[std::stoi(id)] = added_token(token, false);
  if (!has_decoder)  // else the map is an old file's leftover
    if (const auto map = read_json(directory / "special_tokens_map.json"))
      for (const auto& [key, value] : map->items()) config[key] = value;
  const auto token_of = [&](const Json& value) {
    const AddedToken token = added_token(value, true);
    for (const auto& [id, known] : out.decoder)
      if (known.content == token.content) return known;
    return token;
  };
  for (const char* key : {"additional_special_tokens", "extra_special_tokens"})
    for (const Json& value : member(config, key))
      if (!content_of(value).empty()) out.extra.push_back(added_token(value, true));
  std::vector<std::string> special_names;
  for (const char* key : named_tokens) special_names.push_back(content_of(member(config, key)));
  for (const AddedToken& token : out.extra) special_names.push_back(token.content);
  if (!has_decoder)
    if (const auto added = read_json(directory / "added_tokens.json"))
      for (const auto& [content, id] : added->items()) {
        const bool special = std::count(special_names.begin(), special_names.end(), content) > 0;
        out.decoder[id.get<int32_t>()] = AddedToken{content, id.get<int32_t>(), special, false, false, false, !special};
      }
  for (const char* key : named_tokens)
    if (!content_of(member(config, key)).empty()) out.named.emplace_back(key, token_of(member(config, key)));
  return out;
}

void apply_special_tokens(const SpecialTokens& tokens, TokenizerSpec& spec) {
  for (auto [id, token] : tokens.decoder) {
    const AddedToken* present = find_added(spec, token.content);
    if (present != nullptr && same_flags(*present, token)) continue;
    const auto known = id_of(spec, token.content);
    BLIPFT_USER_CHECK(!known || *known == id, spec.file, ": the token \"", token.content, "\" has the id ",
                      known.value_or(-1), " there, but ", id, " in tokenizer_config.json or added_tokens.json");
    token.id = id;
    add_token(spec, token);
  }
  const auto add_special = [&](AddedToken token) {
    if (find_added(spec, token.content) != nullptr) return;
    token.special = true;
    add_token(spec, token);
  };
  for (const auto& [key, token] : tokens.named) add_special(token);
  for (const AddedToken& token : tokens.extra) add_special(token);
}

/// OPT's vocabulary without any file about special tokens.
bool is_bare_opt(const TokenizerSpec& spec, const fs::path& directory) {
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"})
    if (fs::exists(directory / name)) return false;
  const auto is = [&](const char* token, int32_t id) {
    const auto found = spec.bpe.vocab.find(token);
    return found != spec.bpe.vocab.end() && found->second == id;
  };
  return is("<pad>", 1) && is("</s>", 2);
}

/// vocab.json + merges.txt: what GPT2Tokenizer of transformers does with them.
void read_vocab_and_merges(const fs::path& directory, Json& config, TokenizerSpec& spec) {
  const std::string vocab_file = (directory / "vocab.json").string();
  read_vocab(*read_json(vocab_file), vocab_file, spec);
  read_merges_file(directory / "merges.txt", spec);
  spec.file = vocab_file;
  spec.add_prefix_space = flag(config, "add_prefix_space", false);
  if (is_bare_opt(spec, directory))
    config = Json{{"bos_token", "</s>"}, {"eos_token", "</s>"}, {"unk_token", "</s>"}, {"pad_token", "<pad>"},
                  {"add_bos_token", true}};
  const std::string type = member(config, "tokenizer_class").is_string()
                               ? member(config, "tokenizer_class").get<std::string>()
                               : "GPT2Tokenizer";
  BLIPFT_USER_CHECK(type.starts_with("GPT2Tokenizer"), (directory / "tokenizer_config.json").string(),
                    ": tokenizer_class is ", type, "; with vocab.json + merges.txt only GPT2Tokenizer (GPT-2, OPT) is "
                    "supported. Save the tokenizer with transformers' save_pretrained, which writes tokenizer.json");
}

/// GPT2Tokenizer takes <|endoftext|> for each of these three that the files do not name.
void add_gpt2_defaults(SpecialTokens& tokens) {
  for (const char* key : {"bos_token", "eos_token", "unk_token"})
    if (tokens.find(key) == nullptr)
      tokens.named.emplace_back(key, AddedToken{"<|endoftext|>", -1, true, false, false, false, false});
}

void add_bos_and_eos(const Json& config, const SpecialTokens& tokens, TokenizerSpec& spec) {
  const auto id = [&](const char* key) { return *id_of(spec, tokens.find(key)->content); };
  if (flag(config, "add_bos_token", false)) spec.prefix_ids.push_back(id("bos_token"));
  if (flag(config, "add_eos_token", false)) spec.suffix_ids.push_back(id("eos_token"));
}

int32_t find_pad_id(const SpecialTokens& tokens, const std::string& padding_token, TokenizerSpec& spec) {
  const AddedToken* named = tokens.find("pad_token");
  const std::string content = named != nullptr ? named->content : padding_token.empty() ? "<pad>" : padding_token;
  const auto id = id_of(spec, content);
  BLIPFT_USER_CHECK(id.has_value(), spec.file, ": there is no padding token: neither tokenizer_config.json nor "
                    "special_tokens_map.json names a pad_token, and the vocabulary has no \"<pad>\". Add \"pad_token\" "
                    "to tokenizer_config.json beside it");
  return *id;
}

TokenizerSpec read_files(const fs::path& directory) {
  TokenizerSpec spec;
  spec.file = (directory / "tokenizer.json").string();
  Json config = read_json(directory / "tokenizer_config.json").value_or(Json::object());
  const std::optional<Json> fast = read_json(spec.file);
  std::string padding_token;
  if (fast) {
    read_tokenizer_json(*fast, spec);
    padding_token = content_of(member(member(*fast, "padding"), "pad_token"));
  } else {
    BLIPFT_USER_CHECK(fs::exists(directory / "vocab.json"), directory.string(),
                      ": no tokenizer: neither tokenizer.json nor vocab.json with merges.txt is there",
                      fs::exists(directory / "tokenizer.model")
                          ? " (tokenizer.model is a SentencePiece model, which is not supported)"
                          : "; copy the tokenizer's files there, or correct model.path");
    read_vocab_and_merges(directory, config, spec);
  }
  SpecialTokens tokens = read_special_tokens(directory, config);
  if (!fast) add_gpt2_defaults(tokens);
  apply_special_tokens(tokens, spec);
  if (!fast) add_bos_and_eos(config, tokens, spec);
  spec.pad_id = find_pad_id(tokens, padding_token, spec);
  return spec;
}

}  // namespace

TokenizerSpec read_tokenizer_files(const std::string& directory) {
  try {
    return read_files(directory);
  } catch (const Json::exception& error) {
    throw UserError(concat(directory, ": a tokenizer file has a value of an unexpected type (", error.what(),
                           "); compare tokenizer.json and tokenizer_config.json with the original ones"));
  }
}

}  // namespace blipft
