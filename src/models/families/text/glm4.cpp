// GLM-4 0414 (Zhipu AI 2025): norms before and after attention and MLP, gate and up as one matrix, rotary positions in
// the first half of each head. In files the two elements of a rotated pair are adjacent.
#include "models/families/decoder/decoder_config.h"
#include "models/families/families.h"

namespace blipft {

namespace {

DecoderConfig read(const JsonFields& fields) {
  DecoderConfig config{.model_type = "glm4"};
  read_sizes(fields, {151552, 4096, 13696, 40, 32, 2, 128, 131072, 1.5625e-7f, false, 151329}, config);
  config.norms = {"input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm"};
  config.activation = read_activation(fields, "hidden_act", "silu");
  config.qkv_bias = fields.get<bool>("attention_bias", true);
  config.fused_gate_up = true;
  config.rotary_neighbours = true;
  read_shared_rotary(fields, config, 10000, 0.5);
  return config;
}

}  // namespace

Family families::glm4() { return {.spec = decoder_spec("glm4", "Glm4ForCausalLM"), .read_decoder = read}; }

}  // namespace blipft
