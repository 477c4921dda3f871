// Files that the tokenizer reads from a folder, and its error messages.
#include "text/golden_tokenizers.h"
#include "text/pattern.h"

using namespace blipft;
using Json = nlohmann::json;
namespace fs = std::filesystem;
using testing::has, testing::load_error, testing::read_json, testing::write_text;
using Directory = testing::TokenizerDirectory;

TEST_SUITE("tokenizer") {
  TEST_CASE("GPT-2's default special tokens, and ids put behind the text") {
    const Directory directory("vocab_merges");
    for (const char* name : {"special_tokens_map.json", "added_tokens.json"}) fs::remove(directory / name);
    write_text(directory / "tokenizer_config.json",
               R"({"pad_token": "<pad>", "eos_token": "</s>", "add_bos_token": true, "add_eos_token": true})");
    const auto tokenizer = load_tokenizer(directory.string(), {});
    // transformers gives an unnamed bos_token the next free id.
    const auto next = static_cast<int32_t>(read_json(directory / "vocab.json").size());
    CHECK(tokenizer->vocab_size() == next + 1);
    CHECK(tokenizer->encode("") == std::vector<int32_t>{next, 2});
    CHECK(tokenizer->encode("<|endoftext|>") == std::vector<int32_t>{next, next, 2});
    CHECK(tokenizer->bos_id() == next);
    CHECK(tokenizer->eos_id() == 2);
  }

  TEST_CASE("a directory without a tokenizer says what is missing") {
    const Directory empty;
    CHECK(has(load_error(empty), empty.string() + ": no tokenizer: neither tokenizer.json nor vocab.json"));
    write_text(empty / "tokenizer.model", "x");
    CHECK(has(load_error(empty), (empty / "tokenizer.model").string() + ": not a SentencePiece model"));
    const Directory other("sentencepiece_legacy");
    other.change("tokenizer_config.json", [](Json& json) { json["tokenizer_class"] = "GemmaTokenizer"; });
    CHECK(has(load_error(other), (other / "tokenizer_config.json").string() + ": tokenizer_class is GemmaTokenizer"));
    const Directory half("vocab_merges");
    fs::remove(half / "merges.txt");
    CHECK(has(load_error(half), "merges.txt: missing"));
  }

  TEST_CASE("broken files are named") {
    const Directory cut("fast_strings");
    write_text(cut / "tokenizer.json", "{\"model\": {");
    CHECK(has(load_error(cut), (cut / "tokenizer.json").string() + ": not valid JSON"));
    const Directory merge("vocab_merges");
    std::ofstream(merge / "merges.txt", std::ios::app) << "a b c\n";
    CHECK(has(load_error(merge), "is \"a b c\"; expected two tokens"));
    const Directory lacking("vocab_merges");
    std::ofstream(lacking / "merges.txt", std::ios::app) << "zz zz\n";
    CHECK(has(load_error(lacking), "needs the token \"zz\", which is not in the vocabulary"));
    const Directory ids("vocab_merges");
    ids.change("vocab.json", [](Json& json) { json["a"] = -3; });
    CHECK(has(load_error(ids), "token \"a\" has the id -3"));
    const Directory type("fast_pairs");
    type.change("tokenizer.json", [](Json& json) { json["added_tokens"][0]["lstrip"] = "yes"; });
    CHECK(has(load_error(type), "unexpected type"));
    const Directory clash("fast_pairs");
    clash.change("tokenizer.json", [](Json& json) { json["added_tokens"][1]["id"] = 7; });
    CHECK(has(load_error(clash), "added token \"<pad>\" has the id 7, but the vocabulary says 1"));
  }

  TEST_CASE("unsupported tokenizers are refused with what is supported") {
    const auto refused = [](auto&& change, const std::string& found) {
      const Directory directory("fast_pairs");
      directory.change("tokenizer.json", change);
      const std::string message = load_error(directory);
      INFO(message);
      CHECK(has(message, (directory / "tokenizer.json").string()));
      CHECK(has(message, found));
      CHECK((has(message, "supported") || has(message, "expected")));
    };
    refused([](Json& json) { json["model"]["type"] = "WordLevel"; }, "model.type is WordLevel");
    refused([](Json& json) { json["model"]["continuing_subword_prefix"] = "##"; }, "##");
    refused([](Json& json) { json["model"].update({{"end_of_word_suffix", "</w>"}, {"byte_fallback", true}}); }, "</w>");
    refused([](Json& json) { json["pre_tokenizer"] = {{"type", "Whitespace"}}; }, "of type Whitespace");
    refused([](Json& json) { json["pre_tokenizer"]["pretokenizers"].push_back({{"type", "Digits"}}); },
            "of type ByteLevel, Digits");
    const auto split = [](const std::string& expression, const std::string& behavior) {
      const Json part = {{"type", "Split"}, {"pattern", {{"Regex", expression}}}, {"behavior", behavior}};
      const Json level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
      return Json{{"type", "Sequence"}, {"pretokenizers", Json::array({part, level})}};
    };
    refused([&](Json& json) { json["pre_tokenizer"] = split("\\p{L}+(?<n>a)", "Isolated"); },
            "pre_tokenizer: Split.pattern: found a group of an unknown kind near character 9 of the pattern \"\\p{L}+(?<n>a)\"");
    refused([&](Json& json) { json["pre_tokenizer"] = split("a", "Sometimes"); }, "Split.behavior: found \"Sometimes\"");
    refused([](Json& json) { json["normalizer"] = {{"type", "Nmt"}}; }, "of type Nmt");
    refused([](Json& json) {
      json["normalizer"] = {{"type", "Replace"}, {"pattern", {{"Regex", "(a+"}}}, {"content", "b"}};
    }, "normalizer.pattern: found \"(\" without \")\" near character 3");
    refused([](Json& json) { json["post_processor"] = {{"type", "Unknown"}}; }, "of type Unknown");
    const Directory slow("vocab_merges");
    slow.change("tokenizer_config.json", [](Json& json) { json["tokenizer_class"] = "RobertaTokenizer"; });
    CHECK(has(load_error(slow), "tokenizer_class is RobertaTokenizer"));
  }

  TEST_CASE("CLIP's tokenizer.json: tokens that end words have a suffix") {
    const testing::TemporaryDirectory folder;
    const auto special = [](const char* content, int id) {
      return Json{{"id", id}, {"content", content}, {"special", true}, {"normalized", false}};
    };
    const auto sequence = [](const char* parts, const Json& list) { return Json{{"type", "Sequence"}, {parts, list}}; };
    const Json split = {{"type", "Split"}, {"behavior", "Removed"}, {"invert", true},
                        {"pattern", {{"Regex", "'s|'t|'re|'ve|'m|'ll|'d|[\\p{L}]+|[\\p{N}]|[^\\s\\p{L}\\p{N}]+"}}}};
    const Json spaces = {{"type", "Replace"}, {"pattern", {{"Regex", "\\s+"}}}, {"content", " "}};
    folder.write("tokenizer.json", Json{
        {"added_tokens", {special("<|startoftext|>", 9), special("<|endoftext|>", 10)}},
        {"normalizer", sequence("normalizers", {{{"type", "NFC"}}, spaces, {{"type", "Lowercase"}}})},
        {"pre_tokenizer", sequence("pretokenizers", {split, {{"type", "ByteLevel"}, {"add_prefix_space", false}}})},
        {"post_processor", {{"type", "RobertaProcessing"}, {"sep", {"<|endoftext|>", 10}}, {"cls", {"<|startoftext|>", 9}}}},
        {"decoder", {{"type", "ByteLevel"}}},
        {"model", {{"type", "BPE"}, {"unk_token", "<|endoftext|>"}, {"continuing_subword_prefix", ""}, {"end_of_word_suffix", "</w>"},
                   {"vocab", {{"a", 0}, {"b", 1}, {"c", 2}, {"a</w>", 3}, {"b</w>", 4}, {"c</w>", 5}, {"ab", 6}, {"ab</w>", 7},
                              {"abc</w>", 8}, {"<|startoftext|>", 9}, {"<|endoftext|>", 10}}},
                   {"merges", {"a b", "a b</w>", "ab c</w>"}}}}}.dump());
    const auto tokenizer = load_tokenizer(folder.path.string(), {});
    using Ids = std::vector<int32_t>;
    const std::pair<const char*, Ids> cases[] = {  // as the tokenizers library 0.23 gives them
        {"abc", {9, 8, 10}}, {"ab", {9, 7, 10}}, {"a b  C", {9, 3, 4, 5, 10}}, {"abcabc", {9, 6, 2, 8, 10}},
        {"abca", {9, 6, 2, 3, 10}}, {"ad", {9, 0, 10, 10}}, {"d", {9, 10, 10}}, {"ab\n<|endoftext|>ABC", {9, 7, 10, 8, 10}},
        {"", {9, 10}}};
    for (const auto& [text, ids] : cases) {
      CAPTURE(text);
      CHECK(tokenizer->encode(text) == ids);
    }
    CHECK(tokenizer->decode(Ids{9, 3, 8, 10}) == "a</w>abc</w>");
    TextPositions places{{0, 3, 4, 6}, {}};
    CHECK(tokenizer->encode_with_positions("abc abca", places) == Ids{8, 6, 2, 3});
    CHECK(places.ids == std::vector<size_t>{0, 1, 1, 2});
  }

  TEST_CASE("the padding token comes from the files, then from <pad>, then from the end token, else there is none") {
    const Directory directory("fast_pairs");
    CHECK(load_tokenizer(directory.string(), {})->pad_id() == 1);
    write_text(directory / "tokenizer_config.json", "{\"pad_token\": {\"content\": \"</s>\"}}");
    fs::remove(directory / "special_tokens_map.json");
    CHECK(load_tokenizer(directory.string(), {})->pad_id() == 2);
    fs::remove(directory / "tokenizer_config.json");
    CHECK(load_tokenizer(directory.string(), {})->pad_id() == 1);
    directory.change("tokenizer.json", [](Json& json) {
      json["model"]["vocab"].erase("<pad>");
      json["added_tokens"].erase(1);
    });
    CHECK(load_tokenizer(directory.string(), {})->pad_id() == -1);
    write_text(directory / "tokenizer_config.json", "{\"eos_token\": \"</s>\"}");
    CHECK(load_tokenizer(directory.string(), {})->pad_id() == 2);
  }
}
