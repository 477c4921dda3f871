// config.json that no model can have: each is refused with file and key, at once.
#include <doctest/doctest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "io/json_fields.h"
#include "models/families/families.h"
#include "models/families/picture/blip2_config.h"
#include "support/error_message.h"
#include "support/temporary_directory.h"

using namespace blipft;
using nlohmann::json;
using testing::message_of;
using testing::TemporaryDirectory;

namespace {

/// Returns the error of reading `text` as a LLaMA's config.json, without the file's name.
std::string llama(const std::string& text) {
  const TemporaryDirectory directory;
  const std::string file = directory.write("config.json", text);
  const std::string message = message_of([&] { (void)read_decoder_config(JsonFields(io::read_json_file(file), file)); });
  return message.substr(message.starts_with(file) ? file.size() : 0);
}

std::string llama_with(const std::string& key, const std::string& value) {
  return llama("{\"model_type\":\"llama\",\"" + key + "\":" + value + "}");
}

std::string blip2_with(const std::string& section, const std::string& key, const std::string& value) {
  const TemporaryDirectory directory;
  const std::string file = directory.write("config.json", "{\"" + section + "\":{\"" + key + "\":" + value + "}}");
  const std::string message = message_of([&] { (void)read_blip2(JsonFields(io::read_json_file(file), file)); });
  return message.substr(message.starts_with(file) ? file.size() : 0);
}

}  // namespace

TEST_SUITE("models") {
  TEST_CASE("sizes that no model has are refused") {
    CHECK(llama_with("num_hidden_layers", "32").empty());
    CHECK(llama_with("num_hidden_layers", "1000000") ==
          ": num_hidden_layers: found 1000000, expected a positive number, at most 1024");
    for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_attention_heads",
                            "num_key_value_heads", "head_dim", "max_position_embeddings"})
      for (const char* value : {"0", "-1", "4611686018427387904", "18446744073709551615", "1.5", "1e30"}) {
        CAPTURE(key);
        CAPTURE(value);
        CHECK(llama_with(key, value).starts_with(std::string(": ") + key + ": found "));
      }
    CHECK(blip2_with("vision_config", "num_hidden_layers", "1000000") ==
          ": vision_config.num_hidden_layers: found 1000000, expected a positive number, at most 1024");
    for (const char* section : {"qformer_config", "text_config"})
      CHECK(blip2_with(section, "num_hidden_layers", "1000000").starts_with(std::string(": ") + section));
  }

  TEST_CASE("epsilons, probabilities and deviations are of sense") {
    for (const char* value : {"-1e-6", "0", "2", "1e300", "-1e300", "1e-300", "\"1e-6\"", "[]"}) {
      CAPTURE(value);
      CHECK(llama_with("rms_norm_eps", value).starts_with(": rms_norm_eps: found "));
      CHECK(blip2_with("vision_config", "layer_norm_eps", value).starts_with(": vision_config.layer_norm_eps: found "));
      CHECK(blip2_with("qformer_config", "layer_norm_eps", value).starts_with(": qformer_config.layer_norm_eps: foun"));
    }
    CHECK(llama_with("rms_norm_eps", "1e-12").empty());
    for (const char* value : {"-0.1", "1", "1e300"}) {
      CAPTURE(value);
      CHECK(blip2_with("text_config", "dropout", value).starts_with(": text_config.dropout: found "));
    }
    for (const char* value : {"-0.1", "1e300"}) {
      CAPTURE(value);
      CHECK(llama_with("initializer_range", value).starts_with(": initializer_range: found "));
      CHECK(llama_with("rope_theta", value).starts_with(": rope_theta: found "));
      CHECK(llama_with("rope_scaling", std::string("{\"rope_type\":\"linear\",\"factor\":") + value + "}")
                .starts_with(": rope_scaling.factor: found "));
    }
  }

  TEST_CASE("deep and long values are refused, and cut in the message") {
    const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
    CHECK(llama_with("vocab_size", deep).find("nested more than 200 deep") != std::string::npos);
    CHECK(llama(deep).find("nested more than 200 deep") != std::string::npos);
    const std::string message = llama_with("vocab_size", "\"" + std::string(1'000'000, 'x') + "\"");
    CHECK(message.starts_with(": vocab_size: found \"xxxx"));
    CHECK(message.size() < 200);
    CHECK(llama_with("hidden_act", "\"" + std::string(1'000'000, 'x') + "\"").size() < 250);
    CHECK(llama_with("rope_scaling", "{\"type\":\"" + std::string(1'000'000, 'x') + "\"}").size() < 250);
  }
}
