// The parts that transformers 5 builds itself for some classes of tokenizers; it ignores those of tokenizer.json.
#include "text/tokenizer_classes.h"

#include "text/tokenizer_json.h"

namespace blipft::tokenizer_json {

namespace {

constexpr const char* qwen2_expression =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

/// Sets the parts of BertTokenizer and its post_processor.
void put_parts_of_bert(const Json& config, Json& json) {
  const auto name_of = [&](const char* key, const char* otherwise) {
    const std::string name = content_of(member(config, key));
    return name.empty() ? std::string(otherwise) : name;
  };
  json["model"].update({{"type", "WordPiece"}, {"unk_token", name_of("unk_token", "[UNK]")},
                        {"continuing_subword_prefix", "##"}, {"max_input_chars_per_word", 100}});
  json["normalizer"] = {{"type", "BertNormalizer"},
                        {"handle_chinese_chars", flag(config, "tokenize_chinese_chars", true)},
                        {"strip_accents", member(config, "strip_accents")},
                        {"lowercase", flag(config, "do_lower_case", true)}};
  json["pre_tokenizer"] = {{"type", "BertPreTokenizer"}};
  json["decoder"] = {{"type", "WordPiece"}};
  Json tokens = Json::object(), single = Json::array();
  for (const auto& [key, otherwise] : {std::pair{"cls_token", "[CLS]"}, std::pair{"sep_token", "[SEP]"}}) {
    const std::string name = name_of(key, otherwise);
    tokens[name] = {{"ids", Json::array({member(member(json["model"], "vocab"), name.c_str())})}};
    single.push_back({{"SpecialToken", {{"id", name}}}});
  }
  single.insert(single.begin() + 1, Json{{"Sequence", Json::object()}});
  json["post_processor"] = {{"type", "TemplateProcessing"}, {"single", single}, {"special_tokens", tokens}};
}

/// Sets the parts of T5Tokenizer and its post_processor. Only the precompiled one of the file's normalizers stays.
void put_parts_of_t5(const Json& config, Json& json) {
  const Json normalizer = member(json, "normalizer"), &parts = member(normalizer, "normalizers");
  json["normalizer"] = nullptr;
  for (const Json& part : parts.is_array() ? parts : Json::array({normalizer}))
    if (member(part, "type") == "Precompiled") json["normalizer"] = part;
  json["model"].update({{"unk_id", 2u}, {"byte_fallback", false}});
  const Json spaces = {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "always"}, {"split", true}};
  json["pre_tokenizer"] = {{"type", "Sequence"},
                           {"pretokenizers", Json::array({{{"type", "WhitespaceSplit"}}, spaces})}};
  json["decoder"] = spaces;
  const std::string named = content_of(member(config, "eos_token")), end = named.empty() ? "</s>" : named;
  const Json& pieces = member(json["model"], "vocab");
  Json ids = Json::array();
  for (size_t i = 0; i < pieces.size() && ids.empty(); ++i)
    if (pieces[i].is_array() && !pieces[i].empty() && pieces[i][0] == end) ids.push_back(i);
  for (const Json& token : member(json, "added_tokens"))
    if (ids.empty() && member(token, "content") == end) ids.push_back(member(token, "id"));
  const Json sequence = {{"Sequence", Json::object()}}, last = {{"SpecialToken", {{"id", end}}}};
  json["post_processor"] = {{"type", "TemplateProcessing"},
                            {"single", ids.empty() ? Json::array({sequence}) : Json::array({sequence, last})},
                            {"special_tokens", {{end, {{"ids", ids}}}}}};
}

}  // namespace

void put_parts_of_class(const std::string& tokenizer_class, const Json& config, Json& json) {
  Json& model = json["model"];
  const bool code_llama = tokenizer_class == "CodeLlamaTokenizer";
  if (tokenizer_class == "Qwen2Tokenizer") {
    model.update({{"unk_token", nullptr}, {"fuse_unk", false}, {"byte_fallback", false}, {"ignore_merges", false}});
    json["normalizer"] = {{"type", "NFC"}};
    json["decoder"] = {{"type", "ByteLevel"}};
    const Json split = {{"type", "Split"}, {"pattern", {{"Regex", qwen2_expression}}}, {"behavior", "Isolated"}};
    const Json bytes = {{"type", "ByteLevel"}, {"use_regex", false},
                        {"add_prefix_space", flag(config, "add_prefix_space", false)}};
    json["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", Json::array({split, bytes})}};
  } else if (tokenizer_class == "GemmaTokenizer") {
    const std::string unknown = content_of(member(config, "unk_token"));
    model.update({{"unk_token", unknown.empty() ? "<unk>" : unknown}, {"fuse_unk", true}, {"byte_fallback", true},
                  {"ignore_merges", false}});
    json["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}};
    json["pre_tokenizer"] = nullptr;        // a Split at spaces, which no longer occur
    json["decoder"] = spaces_decoder(false);
  } else if (tokenizer_class == "BertTokenizer") {
    put_parts_of_bert(config, json);
  } else if (tokenizer_class == "T5Tokenizer") {
    put_parts_of_t5(config, json);
  } else if (tokenizer_class == "GPT2Tokenizer") {
    model.update({{"unk_token", nullptr}, {"fuse_unk", false}, {"byte_fallback", false}, {"ignore_merges", false}});
    json["normalizer"] = nullptr;
    json["decoder"] = {{"type", "ByteLevel"}};
    json["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", flag(config, "add_prefix_space", false)}};
  } else if (code_llama || tokenizer_class == "LlamaTokenizer") {
    model.update({{"fuse_unk", true}, {"byte_fallback", true}, {"ignore_merges", false}});
    if (code_llama) {
      const std::string unknown = content_of(member(config, "unk_token"));
      model["unk_token"] = unknown.empty() ? "<unk>" : unknown;
    } else {
      model["unk_token"] = nullptr;
    }
    const bool everywhere = !code_llama && flag(config, "legacy", false);
    const char* scheme = !flag(config, "add_prefix_space", true) ? "never" : everywhere ? "always" : "first";
    json["normalizer"] = nullptr;
    json["decoder"] = spaces_decoder(code_llama || flag(config, "add_prefix_space", true));
    json["pre_tokenizer"] = {{"type", "Metaspace"}, {"prepend_scheme", scheme}, {"split", false}};
  }
}

}  // namespace blipft::tokenizer_json
