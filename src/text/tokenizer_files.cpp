// Finding the tokenizer's files, and reading vocab.json, merges.txt and the special-token files. If files disagree, the
// rules are those of transformers' tokenizer loading: a later, more specific statement changes an added token's flags.
#include "text/tokenizer_files.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <unordered_set>

#include "blipft/error.h"
#include "io/file.h"
#include "text/tokenizer_json.h"
#include "text/tokenizer_sentencepiece.h"

namespace blipft {
namespace {

using namespace tokenizer_json;
namespace fs = std::filesystem;

const char* const named_tokens[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                    "pad_token", "cls_token", "mask_token"};

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

std::optional<Json> read_json(const fs::path& path) {
  if (!is_there(path)) return std::nullopt;
  return io::read_json_file(path.string(), max_tokenizer_bytes);
}

bool same_flags(const AddedToken& a, const AddedToken& b) {
  return a.special == b.special && a.lstrip == b.lstrip && a.rstrip == b.rstrip && a.single_word == b.single_word &&
         a.normalized == b.normalized;
}

AddedToken* find_added(TokenizerSpec& spec, const std::string& content) {
  const auto found = spec.added_indices.find(content);
  return found == spec.added_indices.end() ? nullptr : &spec.added[found->second];
}

void read_merges_file(const fs::path& path, TokenizerSpec& spec) {
  BLIPFT_USER_CHECK(is_there(path), path.string(), ": missing; vocab.json needs merges.txt beside it");
  const std::string text = io::read_whole_file(path.string(), max_tokenizer_bytes);
  size_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty() || line.starts_with("#version")) continue;  // "# #" is a merge, not a comment
    spec.bpe.merges.push_back(merge_of(line, concat(path.string(), ", line ", number), spec.bpe.merges.size() + 1));
  }
}

/// The special tokens of all files next to the vocabulary, as transformers merges them.
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

/// Returns the special tokens that a class of transformers uses if the files name none.
Json default_tokens(const std::string& tokenizer_class) {
  if (tokenizer_class == "LlamaTokenizer" || tokenizer_class == "CodeLlamaTokenizer")
    return {{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"unk_token", "<unk>"}};
  if (tokenizer_class == "GemmaTokenizer")
    return {{"bos_token", "<bos>"}, {"eos_token", "<eos>"}, {"unk_token", "<unk>"}, {"pad_token", "<pad>"},
            {"mask_token", "<mask>"}};
  if (tokenizer_class == "T5Tokenizer") return {{"eos_token", "</s>"}, {"unk_token", "<unk>"}, {"pad_token", "<pad>"}};
  if (tokenizer_class == "BertTokenizer")
    return {{"unk_token", "[UNK]"}, {"sep_token", "[SEP]"}, {"pad_token", "[PAD]"}, {"cls_token", "[CLS]"},
            {"mask_token", "[MASK]"}};
  const char* end = "<|endoftext|>";
  if (tokenizer_class == "GPT2Tokenizer") return {{"bos_token", end}, {"eos_token", end}, {"unk_token", end}};
  if (tokenizer_class == "Qwen2Tokenizer") return {{"eos_token", end}, {"unk_token", end}, {"pad_token", end}};
  return Json::object();
}

/// CodeLlamaTokenizer's tokens for infilling; null in the file means that there is none.
constexpr std::pair<const char*, const char*> infilling_tokens[] = {{"prefix_token", "\u2581<PRE>"},
                                                                   {"middle_token", "\u2581<MID>"},
                                                                   {"suffix_token", "\u2581<SUF>"},
                                                                   {"eot_token", "\u2581<EOT>"},
                                                                   {"fill_token", "<FILL_ME>"}};
std::string infilling_token(const Json& config, std::string_view key) {
  for (const auto& [name, otherwise] : infilling_tokens)
    if (key == name) return config.contains(name) ? content_of(config[name]) : otherwise;
  return {};
}

/// Returns nullopt if one of the tokens is missing: then the mark is ordinary text or an ordinary token.
std::optional<Infilling> infilling_of(const Json& config, const TokenizerSpec& spec) {
  Infilling found{infilling_token(config, "fill_token"), -1, -1, -1};
  for (const auto& [key, id] : {std::pair{"prefix_token", &found.prefix_id}, std::pair{"suffix_token", &found.suffix_id},
                                std::pair{"middle_token", &found.middle_id}})
    *id = id_of(spec, infilling_token(config, key)).value_or(-1);
  const bool whole = !found.mark.empty() && found.prefix_id >= 0 && found.suffix_id >= 0 && found.middle_id >= 0;
  return whole ? std::optional(found) : std::nullopt;
}

/// Returns true for classes that transformers builds only from the vocabulary.
bool is_built(const std::string& tokenizer_class) {
  for (const char* name : {"LlamaTokenizer", "CodeLlamaTokenizer", "GPT2Tokenizer", "Qwen2Tokenizer", "GemmaTokenizer",
                           "BertTokenizer", "T5Tokenizer"})
    if (tokenizer_class == name) return true;
  return false;
}

/// Adds T5Tokenizer's sentinels if the files name none: extra_ids of them.
void add_sentinels(const Json& config, std::vector<AddedToken>& extra) {
  for (const AddedToken& token : extra)
    if (token.content.find("<extra_id_") != std::string::npos) return;
  const Json& number = member(config, "extra_ids");
  const int64_t count = number.is_number_integer() ? std::clamp<int64_t>(number.get<int64_t>(), 0, 1000) : 100;
  for (int64_t i = 0; i < count; ++i) extra.push_back(added_token(concat("<extra_id_", i, ">"), true));
}

SpecialTokens read_special_tokens(const fs::path& directory, Json config, const std::string& tokenizer_class) {
  SpecialTokens out;
  const bool has_decoder = !member(config, "added_tokens_decoder").is_null();
  const std::string decoder_location = (directory / "tokenizer_config.json").string() + ": added_tokens_decoder: a token";
  if (has_decoder)
    for (const auto& [id, token] : config["added_tokens_decoder"].items())
      out.decoder[token_id(id, decoder_location)] = added_token(token, false);
  if (!has_decoder)  // otherwise the map is a leftover of an old file
    if (const auto map = read_json(directory / "special_tokens_map.json"))
      for (const auto& [key, value] : map->items()) config[key] = value;
  const auto token_of = [&](const Json& value) {        // used for the few named_tokens
    const AddedToken token = added_token(value, true);
    for (const auto& [id, known] : out.decoder)
      if (known.content == token.content) return known;
    return token;
  };
  for (const char* key : {"additional_special_tokens", "extra_special_tokens"})
    for (const Json& value : member(config, key))
      if (!content_of(value).empty()) out.extra.push_back(added_token(value, true));
  if (tokenizer_class == "CodeLlamaTokenizer")
    for (const auto& [key, otherwise] : infilling_tokens)
      if (const std::string content = infilling_token(config, key); !content.empty())
        out.extra.push_back(added_token(content, true));
  if (tokenizer_class == "T5Tokenizer") add_sentinels(config, out.extra);
  std::unordered_set<std::string> special_names;
  for (const char* key : named_tokens) special_names.insert(content_of(member(config, key)));
  for (const AddedToken& token : out.extra) special_names.insert(token.content);
  if (!has_decoder)
    if (const auto added = read_json(directory / "added_tokens.json"))
      for (const auto& [content, value] : added->items()) {
        const bool special = special_names.contains(content);
        const int32_t id = token_id(
            value, concat((directory / "added_tokens.json").string(), ": token \"", brief(content), "\""));
        out.decoder[id] = AddedToken{.content = content, .id = id, .special = special, .lstrip = false, .rstrip = false,
                                     .single_word = false, .normalized = !special};
      }
  const Json defaults = default_tokens(tokenizer_class);
  for (const char* key : named_tokens) {
    const Json& value = member(config.contains(key) ? config : defaults, key);
    if (!content_of(value).empty())
      out.named.emplace_back(key, config.contains(key) ? token_of(value) : added_token(value, true));
  }
  return out;
}

void apply_special_tokens(const SpecialTokens& tokens, TokenizerSpec& spec) {
  for (auto [id, token] : tokens.decoder) {
    const AddedToken* present = find_added(spec, token.content);
    if (present != nullptr && same_flags(*present, token)) continue;
    const auto known = id_of(spec, token.content);
    BLIPFT_USER_CHECK(!known || *known == id, spec.file, ": the token \"", brief(token.content), "\" has the id ",
                      known.value_or(-1), " there, but ", id, " in tokenizer_config.json or added_tokens.json");
    token.id = spec.sentencepiece ? id : -1;  // the Hugging Face library assigns the next free id to new tokens
    add_token(spec, token);
  }
  const auto add_special = [&](AddedToken token) {
    token.special = true;
    if (AddedToken* present = find_added(spec, token.content)) {
      present->special = true;  // overrides tokenizer.json; its other flags stay
      return;
    }
    add_token(spec, token);
  };
  for (const auto& [key, token] : tokens.named) add_special(token);
  for (const AddedToken& token : tokens.extra) add_special(token);
}

/// Adds the named tokens again as special ones, as LlamaTokenizer over sentencepiece does.
void apply_names_again(const SpecialTokens& tokens, TokenizerSpec& spec) {
  const auto again = [&](AddedToken token) {
    token.special = true;
    add_token(spec, token);
  };
  for (const auto& [key, token] : tokens.named) again(token);
  for (const AddedToken& token : tokens.extra) again(*find_added(spec, token.content));
}

/// Returns true for OPT's vocabulary without files of special tokens.
bool is_bare_opt(const TokenizerSpec& spec, const fs::path& directory) {
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"})
    if (is_there(directory / name)) return false;
  const auto is = [&](const char* token, int32_t id) {
    const auto found = spec.bpe.vocab.find(token);
    return found != spec.bpe.vocab.end() && found->second == id;
  };
  return is("<pad>", 1) && is("</s>", 2);
}

/// Reads vocab.json and merges.txt as GPT2Tokenizer of transformers does.
void read_vocab_and_merges(const fs::path& directory, const std::string& tokenizer_class, Json& config,
                           TokenizerSpec& spec) {
  const std::string vocab_file = (directory / "vocab.json").string();
  BLIPFT_USER_CHECK(tokenizer_class == "GPT2Tokenizer", (directory / "tokenizer_config.json").string(),
                    ": tokenizer_class is ", brief(tokenizer_class),
                    "; with vocab.json + merges.txt only GPT2Tokenizer "
                    "(GPT-2, OPT) is supported. Save the tokenizer with transformers' save_pretrained, which writes "
                    "tokenizer.json");
  read_vocab(*read_json(vocab_file), vocab_file, spec);
  read_merges_file(directory / "merges.txt", spec);
  spec.file = vocab_file;
  spec.bpe.byte_level = true;
  spec.split = {{std::make_shared<Pattern>(gpt2_expression, vocab_file)}};
  spec.add_prefix_space = flag(config, "add_prefix_space", false);
  read_decoder({{"type", "ByteLevel"}}, spec);
  if (is_bare_opt(spec, directory))
    config = Json{{"bos_token", "</s>"}, {"eos_token", "</s>"}, {"unk_token", "</s>"}, {"pad_token", "<pad>"},
                  {"add_bos_token", true}};
}

/// Reads vocab.txt as BertTokenizer of transformers does. Each line is a token, and its number the id.
void read_vocab_lines(const fs::path& directory, const std::string& tokenizer_class, const Json& config,
                      TokenizerSpec& spec) {
  spec.file = (directory / "vocab.txt").string();
  BLIPFT_USER_CHECK(tokenizer_class == "BertTokenizer", (directory / "tokenizer_config.json").string(),
                    ": tokenizer_class is ", brief(tokenizer_class), "; with vocab.txt only BertTokenizer is ",
                    "supported. Save the tokenizer with transformers' save_pretrained, which writes tokenizer.json");
  const std::string text = io::read_whole_file(spec.file, max_tokenizer_bytes);
  Json vocab = Json::object();
  uint64_t id = 0;
  for (size_t begin = 0; begin < text.size(); ++id) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const bool carriage = end > begin && end < text.size() && text[end - 1] == '\r';
    vocab[text.substr(begin, end - begin - carriage)] = id;
    begin = end + 1;
  }
  tokenizer_json::read({{"model", {{"vocab", vocab}}}}, tokenizer_class, config, spec);
}

/// Reads tokenizer.model as LlamaTokenizer over the sentencepiece library does.
void read_sentencepiece(const fs::path& directory, const std::string& tokenizer_class, Json& config,
                        TokenizerSpec& spec) {
  const std::string config_file = (directory / "tokenizer_config.json").string();
  BLIPFT_USER_CHECK(tokenizer_class == "LlamaTokenizer", config_file, ": tokenizer_class is ", brief(tokenizer_class),
                    "; with tokenizer.model only LlamaTokenizer is supported. Save the tokenizer with transformers' "
                    "save_pretrained, which writes tokenizer.json");
  const Json& options = member(config, "sp_model_kwargs");
  BLIPFT_USER_CHECK(options.empty(), config_file, ": sp_model_kwargs is ", io::brief(options),
                    "; only {} is supported");
  spec.file = (directory / "tokenizer.model").string();
  SentencePieceSpec model;
  model.model = io::read_whole_file(spec.file, max_tokenizer_bytes);
  BLIPFT_USER_CHECK(!model.model.empty(), spec.file, ": empty; copy or download it again");
  model.legacy = flag(config, "legacy", true);
  model.add_prefix_space = flag(config, "add_prefix_space", true);
  read_decoder(spaces_decoder(model.add_prefix_space), spec);
  if (config.contains("unk_token")) model.unknown_token = content_of(config["unk_token"]);
  spec.bpe.vocab = sentencepiece_vocab(model.model, spec.file);
  spec.sentencepiece = std::move(model);
  if (!config.contains("add_bos_token")) config["add_bos_token"] = true;
}

/// Returns the class in tokenizer_config.json, else in the model's config.json, without the ending "Fast".
std::string class_of(const Json& config, const Json& model, const std::string& otherwise) {
  Json name = member(config, "tokenizer_class");
  if (!name.is_string()) name = member(model, "tokenizer_class");
  std::string text = name.is_string() ? name.get<std::string>() : otherwise;
  if (text.ends_with("Fast")) text.resize(text.size() - 4);
  return text;
}

/// Returns the class that AutoTokenizer uses for a tokenizer.json; `named`: the class in the files. "": the file is
/// used unchanged.
std::string class_for_file(const std::string& named, const TokenizerRules& rules, const Json& fast) {
  if (rules.overrides_files) return rules.tokenizer_class;
  // A LLaMA 3 file under this class name.
  if (named == "LlamaTokenizer" && has_part(fast, "ByteLevel")) return "";
  return named.empty() ? rules.tokenizer_class : named;
}

void add_bos_and_eos(const Json& config, TokenizerSpec& spec) {
  if (flag(config, "add_bos_token", false) && spec.bos_id) spec.prefix_ids.push_back(*spec.bos_id);
  if (flag(config, "add_eos_token", false) && spec.eos_id) spec.suffix_ids.push_back(*spec.eos_id);
}

int32_t find_pad_id(const SpecialTokens& tokens, const std::string& padding_token, const TokenizerSpec& spec) {
  const AddedToken* named = tokens.find("pad_token");
  const std::string content = named != nullptr ? named->content : padding_token.empty() ? "<pad>" : padding_token;
  const auto id = id_of(spec, content);
  return id ? *id : spec.eos_id.value_or(-1);
}

TokenizerSpec read_files(const fs::path& directory, const TokenizerRules& rules) {
  TokenizerSpec spec;
  spec.file = (directory / "tokenizer.json").string();
  Json config = read_json(directory / "tokenizer_config.json").value_or(Json::object());
  const std::optional<Json> fast = read_json(spec.file);
  const Json model = read_json(directory / "config.json").value_or(Json::object());
  std::string padding_token, tokenizer_class;
  if (fast) {
    tokenizer_class = class_for_file(class_of(config, model, ""), rules, *fast);
    tokenizer_json::read(*fast, tokenizer_class, config, spec);
    // These classes take added tokens only from added_tokens_decoder, if it exists.
    if (is_built(tokenizer_class) && !member(config, "added_tokens_decoder").is_null()) clear_added(spec);
    padding_token = content_of(member(member(*fast, "padding"), "pad_token"));
  } else if (is_there(directory / "vocab.json")) {
    tokenizer_class = class_of(config, model, "GPT2Tokenizer");
    read_vocab_and_merges(directory, tokenizer_class, config, spec);
  } else if (is_there(directory / "vocab.txt")) {
    tokenizer_class = class_of(config, model, "BertTokenizer");
    read_vocab_lines(directory, tokenizer_class, config, spec);
  } else {
    BLIPFT_USER_CHECK(is_there(directory / "tokenizer.model"), directory.string(),
                      ": no tokenizer: neither tokenizer.json nor vocab.json with merges.txt nor vocab.txt nor "
                      "tokenizer.model is there; copy the tokenizer's files there, or correct model.path");
    tokenizer_class = class_of(config, model, "LlamaTokenizer");
    read_sentencepiece(directory, tokenizer_class, config, spec);
  }
  const SpecialTokens tokens = read_special_tokens(directory, config, tokenizer_class);
  apply_special_tokens(tokens, spec);
  if (spec.sentencepiece) apply_names_again(tokens, spec);
  if (const AddedToken* token = tokens.find("bos_token")) {
    spec.bos_token = token->content;
    spec.bos_id = id_of(spec, token->content);
  }
  if (const AddedToken* token = tokens.find("eos_token")) {
    spec.eos_token = token->content;
    spec.eos_id = id_of(spec, token->content);
  }
  if (!fast && !spec.word_piece) add_bos_and_eos(config, spec);
  spec.split_special_tokens = flag(config, "split_special_tokens", false);
  // transformers cleans up the text of byte-pair encoding only if two settings say so.
  const bool bpe = !spec.unigram && !spec.word_piece;
  spec.decoder.clean_up =
      flag(config, "clean_up_tokenization_spaces", false) &&
      (!bpe || flag(config, "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output", false));
  if (tokenizer_class == "CodeLlamaTokenizer") spec.infilling = infilling_of(config, spec);
  if (fast && tokenizer_class == "CodeLlamaTokenizer" && spec.bos_id) {  // this class reads these from no file
    spec.prefix_ids = {*spec.bos_id};
    spec.suffix_ids.clear();
  }
  spec.pad_id = find_pad_id(tokens, padding_token, spec);
  return spec;
}

}  // namespace

std::optional<int32_t> id_of(const TokenizerSpec& spec, const std::string& content) {
  if (const auto added = spec.added_indices.find(content); added != spec.added_indices.end())
    return spec.added[added->second].id;
  const auto found = spec.bpe.vocab.find(content);
  if (found == spec.bpe.vocab.end()) return std::nullopt;
  return found->second;
}

void clear_added(TokenizerSpec& spec) {
  spec.added.clear();
  spec.added_indices.clear();
  spec.largest_added_id = -1;
}

void add_token(TokenizerSpec& spec, AddedToken token) {
  if (token.content.empty()) return;
  if (const auto id = id_of(spec, token.content)) {
    token.id = *id;
  } else if (token.id < 0) {
    token.id = std::max(static_cast<int32_t>(spec.bpe.vocab.size()), spec.largest_added_id + 1);
  }
  spec.largest_added_id = std::max(spec.largest_added_id, token.id);
  if (AddedToken* present = find_added(spec, token.content)) {
    *present = token;
  } else {
    spec.added_indices.emplace(token.content, spec.added.size());
    spec.added.push_back(token);
  }
}

TokenizerSpec read_tokenizer_files(const std::string& directory, const TokenizerRules& rules) {
  try {
    return read_files(directory, rules);
  } catch (const Json::exception& error) {
    throw UserError(concat(directory, ": a tokenizer file has a value of an unexpected type (", brief(error.what(),
                                                                                                      200),
                           "); compare tokenizer.json and tokenizer_config.json with the original ones"));
  }
}

bool has_tokenizer(const std::string& model_directory) {
  for (const char* file : {"tokenizer.json", "vocab.json", "vocab.txt", "tokenizer.model"})
    if (is_there(fs::path(model_directory) / file)) return true;
  return false;
}

}  // namespace blipft
