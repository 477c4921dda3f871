// Ids back to text against transformers' decode() (tools/blipft_golden/decode.py), whole and as a stream.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "blipft/error.h"
#include "blipft/text.h"
#include "support/error_message.h"
#include "text/golden_tokenizers.h"
#include "text/unicode.h"

using namespace blipft;
using Json = nlohmann::json;
using Ids = std::vector<int32_t>;
namespace fs = std::filesystem;
using testing::golden_tokenizer, testing::read_json;

namespace {

uint32_t fnv(const std::string& text) {
  uint32_t value = 0x811C9DC5;
  for (const char c : text) value = (value ^ static_cast<uint8_t>(c)) * 0x01000193u;
  return value;
}

/// A golden tokenizer with other parts in its files.
std::unique_ptr<Tokenizer> changed_tokenizer(const Json& spec, const testing::TemporaryDirectory& directory) {
  fs::copy(golden_tokenizer(spec["directory"].get<std::string>()), directory.path, fs::copy_options::recursive);
  if (spec["decoder"] != "file") {
    Json json = read_json(directory.path / "tokenizer.json");
    json["decoder"] = spec["decoder"];
    std::ofstream(directory.path / "tokenizer.json") << json.dump();
  }
  if (!spec["tokenizer_config"].empty())
    std::ofstream(directory.path / "tokenizer_config.json") << spec["tokenizer_config"].dump();
  return load_tokenizer(directory.path.string(), {});
}

/// The pieces of a stream; each is whole characters.
std::string streamed(const Tokenizer& tokenizer, const Ids& ids, const DecodeOptions& options) {
  const std::unique_ptr<TextStream> stream = tokenizer.text_stream(options);
  std::string text;
  for (int pass = 0; pass < 2; ++pass) {   // a stream that has ended begins anew
    text.clear();
    const auto add = [&](const std::string& piece) {
      CHECK(unicode::repair_utf8(piece) == piece);
      text += piece;
    };
    for (const int32_t id : ids) add(stream->push(id));
    add(stream->finish());
  }
  return text;
}

void check_stream(const Tokenizer& tokenizer, const Ids& ids, const std::string& expected, bool skip) {
  CHECK(streamed(tokenizer, ids, {.skip_special_tokens = skip, .whole_bytes = true}) == expected);
  // Given as soon as it is whole: the same but for what a run of bytes has before it breaks.
  const std::string early = streamed(tokenizer, ids, {.skip_special_tokens = skip});
  if (expected.find("\xEF\xBF\xBD") == std::string::npos) CHECK(early == expected);
}

/// As in the tool.
class Draws {
 public:
  int64_t below(int64_t limit) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<int64_t>((state_ >> 33) % static_cast<uint64_t>(limit));
  }
  Ids ids(int64_t vocab) {
    Ids out(static_cast<size_t>(1 + below(24)));
    for (int32_t& id : out) {
      const int64_t limit = below(4) == 0 ? std::min<int64_t>(vocab, 300) : vocab;
      id = static_cast<int32_t>(below(limit));
    }
    return out;
  }

 private:
  uint64_t state_ = 42;
};

std::unique_ptr<Tokenizer> shared_tokenizer(const std::string& name) {
  const char* root = std::getenv("BLIPFT_SHARED");
  const std::string directory = std::string(root != nullptr ? root : "../shared") + "/data/tokenizers/" + name;
  if (fs::exists(directory)) return load_tokenizer(directory, {});
  std::cout << "SKIPPED: decoding with " << name << " (no " << directory << "; set BLIPFT_SHARED)" << std::endl;
  return nullptr;
}

}  // namespace

TEST_SUITE("decode") {
  TEST_CASE("small tokenizers with decoders of every kind give the texts of transformers") {
    const Json small = read_json(golden_tokenizer("decode.json"))["small"];
    CHECK(small.size() > 20);
    for (const auto& [name, spec] : small.items()) {
      const testing::TemporaryDirectory directory;
      const auto tokenizer = changed_tokenizer(spec, directory);
      CHECK(spec["cases"].size() > 100);
      for (const Json& one : spec["cases"]) {
        CAPTURE(name);
        CAPTURE(one.dump());
        const Ids ids = one[0].get<Ids>();
        const std::string skipped = one[1], kept = one.size() > 2 ? one[2] : one[1];
        CHECK(tokenizer->decode(ids) == skipped);
        CHECK(tokenizer->decode(ids, {.skip_special_tokens = false}) == kept);
        check_stream(*tokenizer, ids, skipped, true);
        check_stream(*tokenizer, ids, kept, false);
      }
    }
  }

  TEST_CASE("OPT, LLaMA and OpenLLaMA give the texts of transformers, of random ids and of odd texts' ids") {
    const Json shared = read_json(golden_tokenizer("decode.json"))["shared"];
    CHECK(shared.size() == 3);
    for (const auto& [name, spec] : shared.items()) {
      const auto tokenizer = shared_tokenizer(name);
      if (!tokenizer) continue;
      CAPTURE(name);
      CHECK(tokenizer->vocab_size() == spec["vocab"].get<int64_t>());
      Draws draws;
      CHECK(spec["random"].size() >= 300);
      for (const Json& sums : spec["random"]) {
        std::string skipped, kept;
        for (int i = 0; i < 10; ++i) {
          const Ids ids = draws.ids(spec["vocab"]);
          skipped += tokenizer->decode(ids) + "|";
          kept += tokenizer->decode(ids, {.skip_special_tokens = false}) + "|";
          check_stream(*tokenizer, ids, tokenizer->decode(ids), true);
        }
        CHECK(fnv(skipped) == sums[0].get<uint32_t>());
        CHECK(fnv(kept) == sums[1].get<uint32_t>());
      }
      for (const Json& one : spec["texts"]) {
        CAPTURE(one.dump());
        CHECK(fnv(tokenizer->decode(tokenizer->encode(one[0]))) == one[1].get<uint32_t>());
      }
    }
  }

  TEST_CASE("a stream gives characters when they are whole, and what is none in the end") {
    const auto bytes = load_tokenizer(golden_tokenizer("vocab_merges"), {});
    const auto stream = bytes->text_stream();
    const Ids ids = bytes->encode_plain("a\U00010348b");
    REQUIRE(ids.size() == 6);
    std::vector<std::string> pieces;
    for (const int32_t id : ids) pieces.push_back(stream->push(id));
    CHECK(pieces == std::vector<std::string>{"a", "", "", "", "\U00010348", "b"});
    CHECK(stream->push(ids[1]).empty());
    CHECK(stream->push(ids[5]) == "\xEF\xBF\xBD""b");  // what came before is no character now
    CHECK(stream->push(ids[1]).empty());
    CHECK(stream->finish() == "\xEF\xBF\xBD");
    // Tokens of single bytes: <0xC3> is id 3 + 0xC3 here.
    const auto fallback = load_tokenizer(golden_tokenizer("llama_class"), {});
    const auto early = fallback->text_stream(), late = fallback->text_stream({.whole_bytes = true});
    const int32_t first = 3 + 0xC3, second = 3 + 0xA9;
    CHECK(early->push(first).empty());
    CHECK(early->push(second) == "\u00e9");
    CHECK(early->push(first).empty());
    CHECK(early->finish() == "\xEF\xBF\xBD");
    CHECK(late->push(first).empty());
    CHECK(late->push(second).empty());
    CHECK(late->finish() == "\u00e9");
    CHECK(fallback->decode(Ids{first, second, first}) == "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
  }

  TEST_CASE("a decoder that is not supported is an error of who decodes") {
    for (const char* decoder : {R"({"type": "CTC"})", R"({"type": "Strip", "content": " ", "start": 0, "stop": 1})",
                                R"({"type": "Replace", "pattern": {"Regex": "a+"}, "content": ""})",
                                R"({"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "ByteFallback"}]})"}) {
      const testing::TemporaryDirectory directory;
      const auto tokenizer = changed_tokenizer({{"directory", "byte_fallback"}, {"decoder", Json::parse(decoder)},
                                                {"tokenizer_config", Json::object()}}, directory);
      CHECK(tokenizer->encode("the word").size() > 1);
      const std::string message = testing::message_of([&] { tokenizer->decode(Ids{1}); });
      CAPTURE(message);
      CHECK(message.find(directory / "tokenizer.json") == 0);
      CHECK(message.find("not supported") != std::string::npos);
    }
  }
}
