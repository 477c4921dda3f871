// The keys of config.json that a LLaMA reads, and how everything else is refused.
#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "io/json_fields.h"
#include "models/families/families.h"
#include "support/error_message.h"
#include "support/temporary_directory.h"

using namespace blipft;
using namespace blipft::testing;
using nlohmann::json;

namespace {

DecoderConfig read(json config) {
  if (config.is_object() && !config.contains("model_type")) config["model_type"] = "llama";
  return read_decoder_config(JsonFields(config, "config.json"));
}

DecoderConfig read(const char* type, json changes = json::object()) {
  changes["model_type"] = type;
  return read(changes);
}

// `config` is refused with a message that names the file and has each of `parts`.
void check_refused(const json& config, const std::vector<std::string>& parts) {
  const std::string message = message_of([&] { read(config); });
  CHECK_MESSAGE(message.find("config.json: ") != std::string::npos, config.dump(), ": ", message);
  for (const std::string& part : parts)
    CHECK_MESSAGE(message.find(part) != std::string::npos, "found \"", message, "\", expected \"", part, "\" in it");
}

int64_t window(const DecoderConfig& config, size_t layer = 0) { return config.kinds.at(layer).window; }

double wavelength(const DecoderConfig& config, size_t i) { return 2 * M_PI / double(config.rotary.frequencies[i]); }

}  // namespace

TEST_SUITE("llama config") {
  TEST_CASE("absent keys have transformers' defaults") {
    const DecoderConfig llama = read("llama");
    CHECK(llama.vocabulary == 32000);
    CHECK(llama.hidden == 4096);
    CHECK(llama.inner == 11008);
    CHECK(llama.layers == 32);
    CHECK(llama.heads == 32);
    CHECK(llama.kv_heads == 32);
    CHECK(llama.head_size == 128);
    CHECK(llama.max_text_tokens == 2048);
    CHECK(llama.norm_eps == 1e-6f);
    CHECK_FALSE(llama.tied);
    CHECK_FALSE(llama.qkv_bias);
    CHECK_FALSE(llama.output_bias);
    CHECK_FALSE(llama.mlp_bias);
    CHECK(llama.padding_id == -1);
    CHECK(llama.rotary.frequencies[0] == 1);
    CHECK(llama.rotary.frequencies[32] == doctest::Approx(0.01).epsilon(1e-6));
    const DecoderConfig mistral = read("mistral");
    CHECK(mistral.inner == 14336);
    CHECK(mistral.kv_heads == 8);
    CHECK(mistral.max_text_tokens == 131072);
    CHECK(window(mistral) == 4096);
    const DecoderConfig qwen2 = read("qwen2");
    CHECK(qwen2.vocabulary == 151936);
    CHECK(qwen2.inner == 22016);
    CHECK(qwen2.kv_heads == 32);
    CHECK(qwen2.max_text_tokens == 32768);
    CHECK(qwen2.qkv_bias);
    CHECK_FALSE(qwen2.output_bias);
  }

  TEST_CASE("heads: as many of keys as of queries, fewer, of a size of their own") {
    CHECK(read("llama", {{"num_attention_heads", 64}}).kv_heads == 64);
    CHECK(read("llama", {{"num_attention_heads", 64}, {"num_key_value_heads", nullptr}}).kv_heads == 64);
    CHECK(read("llama", {{"num_key_value_heads", 4}}).kv_heads == 4);
    CHECK(read("llama", {{"hidden_size", 3200}}).head_size == 100);
    CHECK(read("llama", {{"head_dim", 64}}).head_size == 64);
    CHECK(read("llama", {{"head_dim", nullptr}}).head_size == 128);
    CHECK(read("llama", {{"hidden_size", 30}, {"num_attention_heads", 4}, {"head_dim", 22}}).head_size == 22);
  }

  TEST_CASE("biases are llama's choice alone") {
    const json biases = {{"attention_bias", true}, {"mlp_bias", true}};
    const DecoderConfig llama = read("llama", biases);
    CHECK((llama.qkv_bias && llama.output_bias && llama.mlp_bias));
    const DecoderConfig mistral = read("mistral", biases);
    CHECK_FALSE((mistral.qkv_bias || mistral.output_bias || mistral.mlp_bias));
  }

  TEST_CASE("the padding token counts from the end where it is negative") {
    CHECK(read("llama", {{"pad_token_id", 0}}).padding_id == 0);
    CHECK(read("llama", {{"pad_token_id", -1}}).padding_id == 31999);
    CHECK(read("llama", {{"pad_token_id", nullptr}}).padding_id == -1);
  }

  TEST_CASE("sliding windows, of the layers that have one") {
    CHECK(window(read("mistral", {{"sliding_window", nullptr}})) == 0);
    CHECK(window(read("mistral", {{"sliding_window", 100}})) == 100);
    CHECK(read("mistral", {{"sliding_window", 100}, {"max_position_embeddings", 64}}).max_text_tokens == 64);
    CHECK(window(read("llama", {{"sliding_window", 100}})) == 0);
    CHECK(window(read("phi3")) == 0);
    CHECK(window(read("phi3", {{"sliding_window", 100}})) == 100);
    for (const char* type : {"qwen2", "qwen3"}) {
      CHECK(window(read(type, {{"sliding_window", 100}})) == 0);
      json on = {{"sliding_window", 100}, {"use_sliding_window", true}};
      CHECK(window(read(type, on), 27) == 0);
      CHECK(window(read(type, on), 28) == 100);
      on["max_window_layers"] = 32;
      CHECK(window(read(type, on), 31) == 0);
      on["num_hidden_layers"] = 2;
      on["layer_types"] = {"full_attention", "sliding_attention"};
      CHECK(window(read(type, on), 0) == 0);
      CHECK(window(read(type, on), 1) == 100);
      on["layer_types"] = {"full_attention"};
      on["model_type"] = type;
      check_refused(on, {"layer_types: found 1 types", "each of the 2 layers"});
      on["layer_types"] = {"full_attention", "chunked_attention"};
      check_refused(on, {"layer_types: found \"chunked_attention\"", "sliding_attention"});
    }
  }

  TEST_CASE("one function has two names, and what is not here is refused by its name") {
    CHECK(read("llama", {{"hidden_act", "swish"}}).layers == 32);
    CHECK(read("llama", {{"attention_dropout", 0.1}}).attention_dropout == 0.1f);
    check_refused({{"is_causal", false}}, {"is_causal: found false, supported is true"});
    check_refused({{"quantization_config", {{"quant_method", "gptq"}, {"bits", 4}}}},
                  {"quantization_config: found {\"bits\":4,\"quant_method\":\"gptq\"}", "model.quantize"});
    CHECK(read("llama", {{"quantization_config", nullptr}, {"is_causal", true}}).layers == 32);
  }

  // Values of transformers 5.23: AutoModel.from_config(config).rotary_emb.inv_freq.
  TEST_CASE("rotary frequencies, by the keys of every age") {
    const DecoderConfig plain = read("llama", {{"rope_theta", 500000.0}});
    CHECK(plain.rotary.frequencies[1] == doctest::Approx(0.81461723).epsilon(1e-7));
    CHECK(read("llama", {{"rope_parameters", {{"rope_theta", 500000.0},
        {"rope_type", "default"}}}}).rotary.frequencies ==
          plain.rotary.frequencies);
    CHECK(read("llama", {{"rope_theta", 500000.0}, {"rope_parameters", nullptr}, {"rope_scaling", nullptr}})
              .rotary.frequencies == plain.rotary.frequencies);
    const DecoderConfig half =
        read("llama", {{"rope_theta", 500000.0}, {"rope_scaling", {{"type", "linear"}, {"factor", 2}}}});
    for (size_t i = 0; i < 64; ++i) CHECK(half.rotary.frequencies[i] == plain.rotary.frequencies[i] / 2);
    const json scaling = {{"factor", 8.0}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0},
                          {"original_max_position_embeddings", 8192}, {"rope_type", "llama3"}};
    const DecoderConfig llama3 = read("llama", {{"rope_theta", 500000.0}, {"rope_scaling", scaling}});
    int64_t kept = 0, stretched = 0, between = 0;
    for (size_t i = 0; i < 64; ++i) {
      const double ratio = double(plain.rotary.frequencies[i]) / double(llama3.rotary.frequencies[i]),
          length = wavelength(plain, i);
      const bool is_short = length < 2048, is_long = length > 8192;
      kept += is_short, stretched += is_long, between += !is_short && !is_long;
      CHECK((is_short ? ratio == 1 : is_long ? std::fabs(ratio - 8) < 1e-6 : ratio > 1 && ratio < 8));
    }
    CHECK((kept > 20 && stretched > 20 && between > 3));
    json nested = scaling;
    nested["rope_theta"] = 500000.0;
    CHECK(read("llama", {{"rope_parameters", nested}}).rotary.frequencies == llama3.rotary.frequencies);
    CHECK(read("llama", {{"rope_parameters", nested}, {"rope_scaling", json::object()}}).rotary.frequencies ==
          llama3.rotary.frequencies);
    json elsewhere = nested;
    elsewhere["original_max_position_embeddings"] = 77;
    CHECK(read("llama", {{"rope_parameters", elsewhere}, {"original_max_position_embeddings",
        8192}}).rotary.frequencies ==
          llama3.rotary.frequencies);
    CHECK(read("llama", {{"rope_parameters", elsewhere}}).rotary.frequencies != llama3.rotary.frequencies);
    check_refused({{"rope_parameters", {{"full_attention", nested}}}}, {"rope_parameters.full_attention"});
  }

  TEST_CASE("what is not supported is refused by file, key, found and supported") {
    check_refused({{"model_type", "llama"}, {"hidden_act", "gelu_10"}}, {"hidden_act: found \"gelu_10\"", "\"silu\""});
    check_refused({{"attention_dropout", 1.5}}, {"attention_dropout: found 1.5", ">= 0 and < 1"});
    check_refused({{"pretraining_tp", 2}}, {"pretraining_tp: found 2", "1"});
    check_refused({{"num_key_value_heads", 5}}, {"num_key_value_heads: found 5", "32"});
    check_refused({{"num_attention_heads", 7}}, {"num_attention_heads: 7", "4096", "head_dim"});
    check_refused({{"head_dim", 63}}, {"head_dim: found heads of size 63", "even", "256"});
    CHECK(read("llama", {{"num_attention_heads", 16}, {"num_key_value_heads", 16}}).head_size == 256);
    check_refused({{"num_attention_heads", 8}, {"num_key_value_heads", 8}},
                  {"num_attention_heads: found heads of size 512", "256"});
    check_refused({{"num_hidden_layers", 0}}, {"num_hidden_layers: found 0", "positive"});
    check_refused({{"hidden_size", "big"}}, {"hidden_size: found \"big\"", "a number"});
    check_refused({{"tie_word_embeddings", 1}}, {"tie_word_embeddings: found 1", "true or false"});
    check_refused({{"sliding_window", 0}, {"model_type", "mistral"}}, {"sliding_window: found 0"});
    check_refused({{"partial_rotary_factor", 0.5}}, {"partial_rotary_factor: found 0.5"});
    check_refused({{"rope_theta", 0}}, {"rope_theta: found 0"});
    for (const char* type : {"dynamic", "yarn", "longrope", "proportional"}) {
      const std::string found = concat("found \"", type, "\"");
      check_refused({{"rope_scaling", {{"type", type}, {"factor", 2}}}},
                    {"rope_scaling.type: " + found, "linear", "llama3"});
      check_refused({{"rope_parameters", {{"rope_type", type}}}}, {"rope_parameters.rope_type: " + found});
    }
    check_refused({{"rope_scaling", {{"type", "linear"}}}}, {"rope_scaling.factor: found nothing"});
    check_refused({{"rope_scaling", {{"type", "linear"}, {"factor", 0.5}}}}, {"rope_scaling.factor: found 0.5"});
    check_refused({{"rope_scaling", {{"rope_type", "llama3"}, {"factor", 8}}}},
                  {"rope_scaling.low_freq_factor", "missing"});
    check_refused({{"rope_scaling",
                    {{"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 4}, {"high_freq_factor", 4}}}},
                  {"low_freq_factor 4", "high_freq_factor 4"});
    check_refused({{"rope_scaling", 3}}, {"rope_scaling", "object"});
    check_refused({{"rope_parameters", {{"partial_rotary_factor", 0.25}}}}, {"rope_parameters.partial_rotary_factor"});
    check_refused(json::array(), {"object"});
    const TemporaryDirectory directory;
    const std::string broken = directory.write("config.json", "{\"model_type\": ");
    CHECK(message_of([&] { io::read_json_file(broken); }).find("not valid JSON") != std::string::npos);
  }
}
