// config.json of LLaMA's younger relatives and of Gemma: defaults, layers that differ, and what is refused.
#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "io/json_fields.h"
#include "models/families/families.h"
#include "support/error_message.h"

using namespace blipft;
using namespace blipft::testing;
using nlohmann::json;

namespace {

using RopeKind = DecoderConfig::LayerKind::RopeKind;

DecoderConfig read(const char* type, json changes = json::object()) {
  changes["model_type"] = type;
  return read_decoder_config(JsonFields(changes, "config.json"));
}

// `config` is refused with a message that names the file and has each of `parts`.
void check_refused(const char* type, const json& config, const std::vector<std::string>& parts) {
  const std::string message = message_of([&] { read(type, config); });
  CHECK_MESSAGE(message.find("config.json: ") != std::string::npos, config.dump(), ": ", message);
  for (const std::string& part : parts)
    CHECK_MESSAGE(message.find(part) != std::string::npos, "found \"", message, "\", expected \"", part, "\" in it");
}

// A longrope of `pairs` pairs.
json longrope(int64_t pairs) {
  return {{"type", "longrope"}, {"short_factor", std::vector<double>(static_cast<size_t>(pairs), 2.0)},
          {"long_factor", std::vector<double>(static_cast<size_t>(pairs), 8.0)}};
}

}  // namespace

TEST_SUITE("modern config") {
  TEST_CASE("qwen3: heads of size 128 whatever the hidden size, norms of each") {
    const DecoderConfig qwen3 = read("qwen3", {{"hidden_size", 1024}, {"num_attention_heads", 16},
        {"num_key_value_heads", 8}});
    CHECK(qwen3.head_size == 128);
    CHECK(qwen3.vocabulary == 151936);
    CHECK(qwen3.inner == 22016);
    CHECK(qwen3.padding_id == -1);
    CHECK(qwen3.head_norms == DecoderConfig::HeadNorms::each);
    CHECK_FALSE((qwen3.qkv_bias || qwen3.output_bias || qwen3.mlp_bias));
    const DecoderConfig biased = read("qwen3", {{"attention_bias", true}, {"mlp_bias", true}});
    CHECK((biased.qkv_bias && biased.output_bias && !biased.mlp_bias));
  }

  TEST_CASE("smollm3: some layers do not turn, its own base, tied") {
    const DecoderConfig usual = read("smollm3");
    CHECK(usual.layers == 36);
    CHECK(usual.kv_heads == 4);
    CHECK(usual.tied);
    CHECK(usual.padding_id == 128004);
    for (size_t i = 0; i < 36; ++i) CHECK((usual.kinds[i].turns == RopeKind::none) == (i % 4 == 3));
    CHECK(usual.rotary.frequencies[1] == doctest::Approx(std::pow(2e6, -2.0 / 128)).epsilon(1e-6));
    const DecoderConfig listed = read("smollm3", {{"num_hidden_layers", 2}, {"no_rope_layers", {0, 1}}});
    CHECK(listed.kinds[0].turns == RopeKind::none);
    CHECK(listed.kinds[1].turns == RopeKind::global);
    check_refused("smollm3", {{"no_rope_layers", {0, 1}}}, {"no_rope_layers: found 2 numbers", "36 layers"});
    check_refused("smollm3", {{"no_rope_layers", {"a"}}}, {"no_rope_layers: found", "a list of numbers"});
    const DecoderConfig windows = read("smollm3", {{"use_sliding_window", true}, {"sliding_window", 9}});
    CHECK(windows.kinds[3].window == 9);
    CHECK(windows.kinds[2].window == 0);
  }

  TEST_CASE("olmo2: norms after the branches, of all queries and all keys, rounded once") {
    const DecoderConfig olmo = read("olmo2");
    CHECK((olmo.norms.before_attention.empty() && olmo.norms.before_mlp.empty()));
    CHECK(olmo.head_norms == DecoderConfig::HeadNorms::together);
    CHECK((olmo.norm_form.rounds_once && olmo.norm_form.offset == 0));
    CHECK(olmo.kv_heads == 32);
    CHECK(olmo.norm_eps == 1e-5f);
    CHECK(olmo.padding_id == 1);
    CHECK(read("olmo2", {{"pad_token_id", nullptr}}).padding_id == -1);
  }

  // Values of transformers 5.23: Phi3RotaryEmbedding(config).inv_freq and attention_scaling.
  TEST_CASE("phi3: fused matrices, a part of each head, longrope for texts up to the original length") {
    const DecoderConfig usual = read("phi3");
    CHECK((usual.fused_qkv && usual.fused_gate_up));
    CHECK(usual.head_size == 96);
    CHECK(usual.rotary.rotated == 0);
    CHECK(usual.rotary.magnitude == 1);
    CHECK(usual.max_text_tokens == 4096);
    json mini = {{"num_attention_heads", 24}, {"num_key_value_heads", 8}, {"partial_rotary_factor", 0.75},
                 {"max_position_embeddings", 131072}, {"rope_scaling", longrope(48)}};
    const DecoderConfig phi4 = read("phi3", mini);
    CHECK(phi4.head_size == 128);
    CHECK(phi4.rotary.rotated == 96);
    CHECK(phi4.rotary.frequencies[0] == 0.5f);
    CHECK(phi4.rotary.frequencies[1] == doctest::Approx(0.5 * std::pow(1e4, -2.0 / 96)).epsilon(1e-6));
    CHECK(phi4.rotary.magnitude == doctest::Approx(1.1902380714238083).epsilon(1e-6));
    CHECK(phi4.max_text_tokens == 4096);   // one call has one list of factors: that of its longest text
    mini["rope_scaling"]["type"] = "su";
    CHECK(read("phi3", mini).rotary.frequencies == phi4.rotary.frequencies);
    mini["rope_scaling"]["attention_factor"] = 1.5;
    CHECK(read("phi3", mini).rotary.magnitude == 1.5f);
    mini["partial_rotary_factor"] = 1.0;
    check_refused("phi3", mini, {"rope_scaling.short_factor: found 48 numbers", "64 pairs"});
    mini["partial_rotary_factor"] = 0.01;
    check_refused("phi3", mini, {"partial_rotary_factor: found 0.01", "128"});
    check_refused("phi3", {{"rope_scaling", {{"type", "linear"}, {"factor", 2}}}}, {"\"linear\"", "longrope"});
    CHECK(read("phi3", {{"resid_pdrop", 0.1}}).branch_dropout == 0.1f);
    CHECK(read("llama", {{"resid_pdrop", 0.1}}).branch_dropout == 0);
  }

  TEST_CASE("granite: factors of tokens, branches, scores and logits") {
    const DecoderConfig usual = read("granite");
    CHECK((usual.token_scale == 1 && usual.branch_scale == 1 && usual.score_scale == 1 && usual.logit_scale == 1));
    const DecoderConfig granite = read("granite", {{"embedding_multiplier", 12.0}, {"residual_multiplier", 0.22},
                                                   {"attention_multiplier", 0.0078125}, {"logits_scaling", 16}});
    CHECK(granite.token_scale == 12);
    CHECK(granite.branch_scale == 0.22f);
    CHECK(granite.score_scale == 0.0078125f);
    CHECK(granite.logit_scale == 0.0625f);
    for (const char* key : {"embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling"})
      for (const double factor : {0.0, -1.0, 1e7}) check_refused("granite", {{key, factor}}, {std::string(key) + ": found "});
  }

  TEST_CASE("glm4: four norms, one matrix for gate and up, half of each head in pairs of neighbours") {
    const DecoderConfig glm = read("glm4");
    CHECK(glm.norms.after_attention == "post_self_attn_layernorm");
    CHECK(glm.norms.before_mlp == "post_attention_layernorm");
    CHECK((glm.fused_gate_up && !glm.fused_qkv && glm.rotary_neighbours));
    CHECK((glm.qkv_bias && !glm.output_bias));
    CHECK(glm.rotary.rotated == 64);
    CHECK(glm.rotary.frequencies[1] == doctest::Approx(std::pow(1e4, -2.0 / 64)).epsilon(1e-6));
    CHECK(read("glm4", {{"partial_rotary_factor", 1.0}}).rotary.rotated == 0);
    CHECK(read("glm4", {{"rope_parameters", {{"partial_rotary_factor", 0.25}}}}).rotary.rotated == 32);
    check_refused("glm4", {{"partial_rotary_factor", 0.01}}, {"partial_rotary_factor: found 0.01", "128"});
    check_refused("llama", {{"partial_rotary_factor", 0.5}}, {"partial_rotary_factor: found 0.5"});
  }

  TEST_CASE("gemma2: caps, windows in every other layer, scales") {
    const DecoderConfig gemma = read("gemma2");
    CHECK(gemma.head_size == 256);
    CHECK(gemma.norms.before_mlp == "pre_feedforward_layernorm");
    CHECK(gemma.norms.after_mlp == "post_feedforward_layernorm");
    CHECK((gemma.norm_form.rounds_once && gemma.norm_form.offset == 1));
    CHECK(gemma.head_norms == DecoderConfig::HeadNorms::none);
    CHECK(gemma.activation == GateActivation::gelu_tanh);
    CHECK(gemma.score_scale == 0.0625f);
    CHECK((gemma.score_cap == 50 && gemma.logit_cap == 30));
    CHECK(gemma.token_scale == 48);
    CHECK((gemma.tied && gemma.padding_id == 0));
    for (size_t i = 0; i < 26; ++i) CHECK(gemma.kinds[i].window == (i % 2 ? 0 : 4096));
    const DecoderConfig none =
        read("gemma2", {{"attn_logit_softcapping", nullptr}, {"final_logit_softcapping", nullptr},
            {"sliding_window", nullptr}});
    CHECK((none.score_cap == 0 && none.logit_cap == 0 && none.kinds[0].window == 0));
    check_refused("gemma2", {{"attn_logit_softcapping", -1}}, {"attn_logit_softcapping: found -1", "or null"});
    check_refused("gemma2", {{"hidden_activation", "mish"}},
        {"hidden_activation: found \"mish\"", "gelu_pytorch_tanh"});
  }

  TEST_CASE("gemma3_text: two bases, an old file's scaling is of the layers without window") {
    const DecoderConfig gemma = read("gemma3_text");
    CHECK(gemma.vocabulary == 262208);
    CHECK(gemma.head_norms == DecoderConfig::HeadNorms::each);
    CHECK((gemma.score_cap == 0 && gemma.logit_cap == 0));
    for (size_t i = 0; i < 26; ++i) {
      CHECK(gemma.kinds[i].window == (i % 6 == 5 ? 0 : 4096));
      CHECK(gemma.kinds[i].turns == (i % 6 == 5 ? RopeKind::global : RopeKind::local));
    }
    CHECK(gemma.rotary.frequencies[1] == doctest::Approx(std::pow(1e6, -2.0 / 256)).epsilon(1e-6));
    CHECK(gemma.local_rotary.frequencies[1] == doctest::Approx(std::pow(1e4, -2.0 / 256)).epsilon(1e-6));
    const DecoderConfig scaled = read("gemma3_text", {{"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}},
                                                      {"rope_theta", 1e6}, {"rope_local_base_freq", 500.0}});
    CHECK(scaled.rotary.frequencies[1] == gemma.rotary.frequencies[1] / 8);
    CHECK(scaled.local_rotary.frequencies[1] == doctest::Approx(std::pow(500.0, -2.0 / 256)).epsilon(1e-6));
    const DecoderConfig nested = read(
        "gemma3_text", {{"rope_parameters",
                         {{"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 1e6}}},
                          {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 500.0}}}}}});
    CHECK(nested.rotary.frequencies == scaled.rotary.frequencies);
    CHECK(nested.local_rotary.frequencies == scaled.local_rotary.frequencies);
    check_refused("gemma3_text", {{"use_bidirectional_attention", true}}, {"use_bidirectional_attention: found true"});
    check_refused("gemma3_text", {{"rope_parameters", {{"rope_theta", 1e6}}}},
        {"rope_parameters.rope_theta", "full_attention"});
    check_refused("gemma3_text", {{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 8.0}}}}, {"found \"yarn\""});
  }

  TEST_CASE("quantised, bidirectional and unknown files are refused in every family") {
    for (const char* type : {"qwen3", "smollm3", "olmo2", "phi3", "granite", "glm4", "gemma2", "gemma3_text"}) {
      check_refused(type, {{"is_causal", false}}, {"is_causal: found false"});
      check_refused(type, {{"quantization_config", {{"bits", 4}}}}, {"quantization_config"});
      check_refused(type, {{"attention_dropout", 2}}, {"attention_dropout: found 2"});
      check_refused(type, {{"head_dim", 258}}, {"head_dim: found heads of size 258", "256"});
    }
    for (const char* type : {"qwen3_moe", "gemma", "phi", "olmo3"}) check_refused(type, {}, {"model_type: found"});
  }
}
