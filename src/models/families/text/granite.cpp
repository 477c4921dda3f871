// Granite 3 (IBM 2024): LLaMA with factors of embedded tokens, of the outputs of attention and MLP, of attention scores
// and of logits.
#include "models/families/decoder/decoder_config.h"
#include "models/families/families.h"

namespace blipft {

namespace {

constexpr float kMaxFactor = 1e6f;

float read_factor(const JsonFields& fields, const char* key) {
  const float factor = fields.get<float>(key, 1);
  BLIPFT_USER_CHECK(factor >= 1 / kMaxFactor && factor <= kMaxFactor, fields.file(), ": ", fields.prefix(), key, ": found ",
                    factor, ", expected a number from ", 1 / kMaxFactor, " to ", kMaxFactor);
  return factor;
}

DecoderConfig read(const JsonFields& fields) {
  DecoderConfig config{.model_type = "granite"};
  read_sizes(fields, {32000, 4096, 11008, 32, 32, 0, 0, 2048, 1e-6f}, config);
  config.activation = read_activation(fields, "hidden_act", "silu");
  read_attention_bias(fields, config);
  config.mlp_bias = fields.get<bool>("mlp_bias", false);
  config.token_scale = read_factor(fields, "embedding_multiplier");
  config.branch_scale = read_factor(fields, "residual_multiplier");
  config.score_scale = read_factor(fields, "attention_multiplier");
  config.logit_scale = 1 / read_factor(fields, "logits_scaling");
  read_shared_rotary(fields, config);
  return config;
}

}  // namespace

Family families::granite() { return {.spec = decoder_spec("granite", "GraniteForCausalLM"), .read_decoder = read}; }

}  // namespace blipft
