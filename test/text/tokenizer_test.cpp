// The tokenizer against ids that transformers gave (tools/blipft_golden/small_tokenizers.py).
#include <doctest/doctest.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

#include "blipft/family.h"
#include "blipft/text.h"
#include "support/error_message.h"
#include "text/golden_tokenizers.h"
#include "text/unicode.h"

using namespace blipft;
using Json = nlohmann::json;
namespace fs = std::filesystem;
using testing::golden_tokenizer, testing::has, testing::read_json, testing::write_text;
using Directory = testing::TokenizerDirectory;

namespace {

std::string shared_path(const std::string& name) {
  const char* root = std::getenv("BLIPFT_SHARED");
  return std::string(root != nullptr ? root : "../shared") + "/data/" + name;
}

/// A tokenizer of the shared data, or null (and a visible line) where that is absent.
std::unique_ptr<Tokenizer> shared_tokenizer(const std::string& name, const std::string& test) {
  const std::string directory = shared_path("tokenizers/" + name);
  if (fs::exists(directory)) return load_tokenizer(directory, {});
  std::cout << "SKIPPED: " << name << " " << test << " (no " << directory << "; set BLIPFT_SHARED)" << std::endl;
  return nullptr;
}

int32_t id_in(const Json& json, const char* key) { return json[key].is_null() ? -1 : json[key].get<int32_t>(); }

std::string text_of(const Json& entry) {
  if (entry.contains("text")) return entry["text"].get<std::string>();
  const std::string hex = entry["hex"];
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2)
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

void check_cases(const Tokenizer& tokenizer, const std::string& file) {
  using Ids = std::vector<int32_t>;
  const Json json = read_json(golden_tokenizer(file));
  INFO(file);
  CHECK(tokenizer.pad_id() == json["pad_id"].get<int32_t>());
  CHECK(tokenizer.bos_id().value_or(-1) == id_in(json, "bos_id"));
  CHECK(tokenizer.eos_id().value_or(-1) == id_in(json, "eos_id"));
  CHECK(tokenizer.vocab_size() == json["vocab_size"].get<int64_t>());
  const Json& plain = json["plain"];
  const std::string plain_text = plain["text"];
  CHECK(tokenizer.encode(plain_text, {.add_special_tokens = false}) == plain["without_special"].get<Ids>());
  CHECK(tokenizer.encode(plain_text, {.split_special_tokens = true}) == plain["split_special"].get<Ids>());
  CHECK(json["cases"].size() > 150);
  for (const Json& entry : json["cases"]) {
    const std::string label = file + ": " + entry.dump();
    INFO(label);
    CHECK(tokenizer.encode(text_of(entry)) == entry["ids"].get<Ids>());
  }
}

/// FNV-1a, 32 bits, over the ids as 4 bytes each, lowest first.
uint32_t checksum(const std::vector<int32_t>& ids) {
  uint32_t value = 0x811C9DC5;
  for (int32_t id : ids)
    for (int shift : {0, 8, 16, 24}) value = (value ^ (static_cast<uint32_t>(id) >> shift & 255)) * 0x01000193u;
  return value;
}

void collect_strings(const nlohmann::ordered_json& value, std::vector<std::string>& out) {
  if (value.is_string()) out.push_back(value.get<std::string>());
  if (value.is_structured())
    for (const auto& item : value) collect_strings(item, out);
}

/// The texts that tools/blipft_golden/bert.py draws.
class BertDraws {
 public:
  explicit BertDraws(Json ranges) : ranges_(std::move(ranges)) {}
  std::string text() {
    std::string out;
    for (uint64_t i = 1 + below(30); i > 0; --i) unicode::append_utf8(out, character());
    return out;
  }

 private:
  uint64_t below(uint64_t limit) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return (state_ >> 33) % limit;
  }
  uint32_t character() {
    const Json& range = ranges_[below(3) == 0 ? below(ranges_.size()) : below(2)];
    const auto first = range[0].get<uint32_t>();
    const uint32_t drawn = first + static_cast<uint32_t>(below(range[1].get<uint32_t>() - first + 1));
    const uint32_t others[] = {' ', 0x301, '\t', 0xA0, '!'};
    const uint64_t which = below(12);
    return which < 5 ? others[which] : drawn;
  }
  uint64_t state_ = 42;
  Json ranges_;
};

}  // namespace

TEST_SUITE("tokenizer") {
  TEST_CASE("BERT's tokenizer gives the ids of transformers around every character, and on drawn texts") {
    const Json json = read_json(golden_tokenizer("bert_characters.json"));
    const Directory directory;
    std::string vocab = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
    for (const Json& range : json["ranges"])
      for (uint32_t c = range[0].get<uint32_t>(); c <= range[1].get<uint32_t>(); ++c)
        for (const char* prefix : {"", "##"}) {
          vocab += prefix;
          unicode::append_utf8(vocab, c);
          vocab += '\n';
        }
    write_text(directory / "vocab.txt", vocab);
    const auto tokenizer = load_tokenizer(directory.string(), {});
    const auto check = [&](const Json& sums, int64_t texts, const auto& next_text) {
      CHECK(sums.size() > 100);
      for (size_t i = 0; i < sums.size(); ++i) {
        std::vector<int32_t> ids;
        for (int64_t t = 0; t < texts; ++t)
          for (const int32_t id : tokenizer->encode(next_text())) ids.push_back(id);
        CAPTURE(i);
        CHECK(checksum(ids) == sums[i].get<uint32_t>());
      }
    };
    uint32_t next = 0;
    const auto group = json["group"].get<uint32_t>();
    check(json["code_points"], group, [&] {
      std::string text;
      for (const uint32_t end = next + group; next < end; ++next) {
        if (next >= 0xD800 && next <= 0xDFFF) continue;
        text += 'a';
        unicode::append_utf8(text, next);
        text += "b ";
      }
      return text;
    });
    BertDraws draws(json["ranges"]);
    check(json["drawn"], json["drawn_group"].get<int64_t>(), [&] { return draws.text(); });
  }

  TEST_CASE("small tokenizers in every form of files give the ids of transformers") {
    for (const char* form : {"vocab_merges", "fast_strings", "fast_pairs", "byte_fallback", "llama_class", "llama3",
                             "qwen2", "tekken", "gemma", "o200k", "digits", "t5", "bert", "bert_json", "bert_plain",
                             "sentencepiece_legacy", "sentencepiece_new", "sentencepiece_no_prefix"})
      check_cases(*load_tokenizer(golden_tokenizer(form), {}), std::string(form) + "/cases.json");
  }

  TEST_CASE("a model's family may know better than tokenizer.json and the class that files name") {
    for (const char* name : {"mistral_llama_class", "qwen2_fast_class", "qwen2_no_class", "qwen2_llama_class",
                             "llama_gpt2_class", "blip2_gpt2_class", "blip2_no_class", "llama_class_of_bytes",
                             "llama_split_special", "llama_decoder", "qwen2_decoder", "code_llama",
                             "code_llama_python", "phi3_llama_class", "olmo2_gpt2_class", "gemma2_class", "gemma2_no_class",
                             "qwen3_llama_class", "qwen3_fast_class", "qwen3_no_class", "t5_no_class", "t5_fast_class",
                             "blip2_t5_class", "llama_ordinary_begin", "llama_class_ordinary_begin"}) {
      const std::string file = std::string("family_") + name + ".json";
      const Json json = read_json(golden_tokenizer(file));
      const Directory directory(json["directory"].get<std::string>());
      write_text(directory / "config.json", Json{{"model_type", json["model_type"]}}.dump());
      if (!json["tokenizer_config"].is_null())
        write_text(directory / "tokenizer_config.json", json["tokenizer_config"].dump());
      if (json.contains("tokenizer_json"))
        directory.change("tokenizer.json", [&](Json& tokenizer) { tokenizer.update(json["tokenizer_json"]); });
      const FamilySpec* family = find_family(json["model_type"]);
      REQUIRE(family);
      check_cases(*load_tokenizer(directory.string(), family->tokenizer), file);
    }
  }

  TEST_CASE("OPT, LLaMA and OpenLLaMA give the ids of transformers on odd texts") {
    for (const std::string name : {"opt", "llama", "open_llama"})
      if (const auto tokenizer = shared_tokenizer(name, "on odd texts"))
        check_cases(*tokenizer, name + "_cases.json");
  }

  TEST_CASE("OPT, LLaMA and OpenLLaMA give the ids of transformers on captions, chess games and instructions") {
    for (const std::string tokenizer_name : {"opt", "llama", "open_llama"}) {
      const auto tokenizer = shared_tokenizer(tokenizer_name, "on captions, chess games and instructions");
      if (!tokenizer) continue;
      const Json json = read_json(golden_tokenizer(tokenizer_name + "_corpus.json"));
      for (const auto& [name, sums] : json["files"].items()) {
        std::ifstream in(shared_path(name), std::ios::binary);
        REQUIRE_MESSAGE(in.good(), name);
        std::vector<std::string> texts;
        int64_t lines = json["lines_per_file"];
        for (std::string line; lines > 0 && std::getline(in, line); --lines)
          collect_strings(nlohmann::ordered_json::parse(line), texts);
        REQUIRE(texts.size() == sums.size());
        CHECK(texts.size() > 80);
        for (size_t i = 0; i < texts.size(); ++i) {
          INFO(tokenizer_name << ", " << name << ": " << texts[i]);
          CHECK(checksum(tokenizer->encode(texts[i])) == sums[i].get<uint32_t>());
        }
      }
    }
  }

  TEST_CASE("tokenizer.json and tokenizer.model of LLaMA agree") {
    const auto json = shared_tokenizer("llama", "from tokenizer.model");
    if (!json) return;
    const Directory directory;
    fs::copy(shared_path("tokenizers/llama/tokenizer.model"), directory / "tokenizer.model");
    const auto model = load_tokenizer(directory.string(), {});
    CHECK(model->bos_id() == 1);
    CHECK(model->eos_id() == 2);
    CHECK(model->vocab_size() == 32000);
    for (const Json& entry : read_json(golden_tokenizer("llama_cases.json"))["cases"]) {
      const std::string text = text_of(entry);
      INFO(text);
      // Special rules of transformers 5: a space or its stand-in in front, and text behind special tokens.
      const bool differs = text.starts_with(' ') || has(text, "\u2581") || has(text, "<s>") || has(text, "</s>") ||
                           has(text, "<unk>");
      if (!differs) CHECK(model->encode(text) == json->encode(text));
    }
  }

  TEST_CASE("a text to fill has one place, and is no conversation") {
    const Directory directory("llama_class");
    directory.change("tokenizer_config.json", [](Json& json) { json["tokenizer_class"] = "CodeLlamaTokenizer"; });
    const auto tokenizer = load_tokenizer(directory.string(), {});
    CHECK(has(testing::message_of([&] { tokenizer->encode("a<FILL_ME>b<FILL_ME>"); }), "<FILL_ME> more than once"));
    TextPositions positions;
    positions.bytes = {0};
    CHECK(has(testing::message_of([&] { tokenizer->encode_with_positions("a<FILL_ME>b", positions); }), "conversation"));
  }

  TEST_CASE("many threads share one tokenizer") {
    const auto tokenizer = load_tokenizer(golden_tokenizer("vocab_merges"), {});
    const auto text = [](int64_t i) {
      return "the word" + std::to_string(i % 97) + " jumps over " + std::to_string(i);
    };
    const auto other = load_tokenizer(golden_tokenizer("vocab_merges"), {});
    std::vector<std::vector<int32_t>> expected;
    for (int64_t i = 0; i < 5; ++i) expected.push_back(other->encode(text(i)));
    std::array<int64_t, 4> wrong{};
    std::vector<std::thread> threads;
    for (size_t t = 0; t < wrong.size(); ++t)
      threads.emplace_back([&, t] {
        for (int64_t i = 0; i < 40000; ++i) {
          tokenizer->encode(text(i));  // enough words to empty the cache now and then
          wrong[t] += tokenizer->encode(text(i % 5)) != expected[static_cast<size_t>(i % 5)];
        }
      });
    for (std::thread& thread : threads) thread.join();
    for (int64_t count : wrong) CHECK(count == 0);
  }

  TEST_CASE("a word of 200,000 letters takes no quadratic time") {
    const auto tokenizer = load_tokenizer(golden_tokenizer("vocab_merges"), {});
    std::string word;
    for (int64_t i = 0; i < 200000; ++i) word.push_back(static_cast<char>('a' + i * i % 23));
    CHECK(tokenizer->encode(word).size() > 60000);
    const auto characters = load_tokenizer(golden_tokenizer("byte_fallback"), {});
    CHECK(characters->encode(word).size() > 60000);
    CHECK(characters->encode(std::string(200000, ' ')).size() > 50000);
  }

  TEST_CASE("places: the id that stands for a byte of the text") {
    // Every character of texts that the tokenizers take apart in different ways; ids may hold more than one character.
    for (const char* form : {"byte_fallback", "llama_class", "llama3", "qwen2", "sentencepiece_legacy",
                             "sentencepiece_new", "sentencepiece_no_prefix"}) {
      const auto tokenizer = load_tokenizer(golden_tokenizer(form), {});
      for (const std::string text : {"the word, another word", " a photo  of a</s>\u4e2d\u6587 cat\n", "<s>red",
                                     "x\U0001f600<|im_end|>\n\nthe quick", "e\u0301 cafe\u0301\u0301 A\u030a\u4e2d e"}) {
        TextPositions positions;
        for (size_t at = 0; at < text.size(); unicode::next_code_point(text, at)) positions.bytes.push_back(at);
        const auto ids = tokenizer->encode_with_positions(text, positions);
        CAPTURE(form);
        CAPTURE(text);
        CHECK(ids == tokenizer->encode_plain(text));
        REQUIRE(positions.ids.size() == positions.bytes.size());
        CHECK(std::is_sorted(positions.ids.begin(), positions.ids.end()));
        CHECK(positions.ids.front() <= 1);          // a word start of its own may stand before the first character
        CHECK(positions.ids.back() == ids.size() - 1);
        for (size_t i = 0; i < positions.bytes.size(); ++i) {  // the places before it change nothing
          TextPositions one;
          one.bytes = {positions.bytes[i]};
          tokenizer->encode_with_positions(text, one);
          CHECK(one.ids.at(0) == positions.ids[i]);
        }
      }
    }
  }

  TEST_CASE("places of a conversation with many turns take linear time") {
    const auto processor_seconds = [](const Tokenizer& tokenizer, int turns) {
      std::string text;
      TextPositions positions;
      for (int i = 0; i < turns; ++i) {
        positions.bytes.push_back(text.size());
        text += "USER: a cafe\u0301 in the morning? ASSISTANT: a word, another word.\n";
      }
      double minimum = 1e9;
      for (int i = 0; i < 3; ++i) {
        positions.ids.clear();
        const std::clock_t begin = std::clock();
        tokenizer.encode_with_positions(text, positions);
        minimum = std::min(minimum, static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
      }
      return minimum;
    };
    for (const char* form : {"byte_fallback", "llama_class", "llama3", "qwen2", "sentencepiece_legacy", "sentencepiece_new"}) {
      CAPTURE(form);
      const auto tokenizer = load_tokenizer(golden_tokenizer(form), {});
      const double few = processor_seconds(*tokenizer, 1000), many = processor_seconds(*tokenizer, 8000);
      CHECK(many < 24 * few + 0.05);         // 8 times as much; 64 times, if each place began anew
    }
  }
}
