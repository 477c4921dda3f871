// Settings of generation_config.json: which are used, and which are refused by name.
#include "engine/decode/generate_settings.h"

#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "blipft/config.h"
#include "support/error_message.h"
#include "support/temporary_directory.h"

using namespace blipft;
using Json = nlohmann::json;

namespace {

const ModelInputs kDecoder{.text = {.vocabulary = 100, .max_tokens = 32}};
const ModelInputs kPictures{.text = {.vocabulary = 100, .max_tokens = 32, .first_rows = 4}};
const ModelInputs kEncoderDecoder{.text = {.vocabulary = 100, .max_tokens = 1 << 20}, .source = {.vocabulary = 100},
                                  .decoder_start = 3};

GenerateSettings read(const Json& file, const ModelInputs& inputs = kDecoder, const std::string& given = "", Config config = {}) {
  const testing::TemporaryDirectory directory;
  std::ofstream(directory.path / "generation_config.json") << file.dump();
  if (!given.empty()) config.locations["generate." + given] = "the command line";
  return generate_settings(config, directory.path.string(), nullptr, inputs);
}

std::string refusal(const Json& file, const ModelInputs& inputs = kDecoder, const std::string& given = "") {
  return testing::message_of([&] { read(file, inputs, given); });
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_SUITE("generate settings") {
  TEST_CASE("max_length counts the prompt and a picture's rows, as in transformers") {
    const GenerateSettings settings = read({{"max_length", 8}});
    CHECK(settings.text() == "greedy, at most 8 tokens with the prompt");
    CHECK(settings.new_tokens(kDecoder, 5) == 3);
    CHECK(settings.new_tokens(kPictures, 2) == 2);
    CHECK(settings.new_tokens(kEncoderDecoder, 20) == 7);  // the decoder begins with one token, whatever the encoder reads
    const std::string message = testing::message_of([&] { settings.new_tokens(kPictures, 4); });
    CHECK(has(message, "generation_config.json: max_length: found 8, but the prompt alone takes 8"));
    CHECK(has(message, "generate.max_new_tokens"));
  }

  TEST_CASE("max_new_tokens wins over max_length, wherever it is given") {
    CHECK(read({{"max_length", 8}, {"max_new_tokens", 11}}).new_tokens(kDecoder, 5) == 11);
    Config config;
    config.generate.max_new_tokens = 9;
    CHECK(read({{"max_length", 8}}, kDecoder, "max_new_tokens", config).new_tokens(kDecoder, 5) == 9);
    CHECK(read(Json::object()).new_tokens(kEncoderDecoder, 5) == GenerateSection().max_new_tokens);
  }

  TEST_CASE("the last token needs no position: nothing follows it") {
    const GenerateSettings settings = read({{"max_new_tokens", 1000}});
    CHECK(settings.new_tokens(kDecoder, 30) == 3);
    CHECK(settings.new_tokens(kDecoder, 32) == 1);
    CHECK(settings.max_ids(kDecoder, 30) == 33);
    CHECK(settings.new_tokens(kEncoderDecoder, 1 << 20) == 1000);
  }

  TEST_CASE("keys that would change tokens are refused by name, at neutral values they are not") {
    const std::vector<std::pair<const char*, Json>> keys = {
        {"watermarking_config", {{"bias", 2.5}}}, {"token_healing", true}, {"dola_layers", "high"}, {"low_memory", true},
        {"max_time", 3.0}, {"diversity_penalty", 0.5}, {"no_repeat_ngram_size", 3}};
    for (const auto& [key, value] : keys) {
      CAPTURE(key);
      CHECK(has(refusal({{key, value}}), std::string("generation_config.json: ") + key + ": found "));
      CHECK(has(refusal({{key, value}}), "remove it"));
      CHECK(refusal({{key, nullptr}}).empty());
    }
    CHECK(refusal({{"token_healing", false}, {"low_memory", false}, {"diversity_penalty", 0.0}}).empty());
  }

  TEST_CASE("what changes beams alone is refused with beams alone") {
    CHECK(refusal({{"renormalize_logits", true}}).empty());
    CHECK(refusal({{"renormalize_logits", true}, {"do_sample", true}}).empty());
    CHECK(has(refusal({{"renormalize_logits", true}, {"num_beams", 3}}), "generation_config.json: renormalize_logits: found true"));
  }

  TEST_CASE("texts that end an answer, and another start of the decoder") {
    CHECK(has(refusal({{"stop_strings", {"\n"}}}), "generation_config.json: stop_strings: found [\"\\n\"]"));
    CHECK(has(refusal({{"stop_strings", {"\n"}}}), "generate.stop"));
    CHECK(refusal({{"stop_strings", {"\n"}}}, kDecoder, "stop").empty());
    CHECK(has(refusal({{"decoder_start_token_id", 0}}, kEncoderDecoder),
              "generation_config.json: decoder_start_token_id: found 0, but the model is trained with 3"));
    CHECK(refusal({{"decoder_start_token_id", 3}}, kEncoderDecoder).empty());
    CHECK(refusal({{"decoder_start_token_id", 0}}).empty());
  }
}
