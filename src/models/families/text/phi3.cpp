// Phi 3 and 4: one checkpoint matrix for q, k and v, one for gate and up; rotary positions in a part of each head.
#include "models/families/decoder/decoder_config.h"
#include "models/families/decoder/rotary_config.h"
#include "models/families/families.h"

namespace blipft {

namespace {

DecoderConfig read(const JsonFields& fields) {
  DecoderConfig config{.model_type = "phi3"};
  read_sizes(fields, {32064, 3072, 8192, 32, 32, 0, 0, 4096, 1e-5f, false, 32000}, config);
  config.fused_qkv = config.fused_gate_up = true;
  config.activation = read_activation(fields, "hidden_act", "silu");
  config.branch_dropout = fields.probability("resid_pdrop", 0);
  set_windows(config, read_window(fields, 0), std::vector<bool>(config.kinds.size(), true));
  const JsonFields rope = shared_rope(fields, config.model_type);
  config.rotary = read_rotary({.fields = fields, .rope = rope, .head_size = config.head_size,
                               .positions = config.max_text_tokens,
                               .original_positions = fields.rows("original_max_position_embeddings", 4096), .phi = true, .rotated_part = 1},
                              config.max_text_tokens);
  return config;
}

}  // namespace

Family families::phi3() {
  Family family{.spec = decoder_spec("phi3", "Phi3ForCausalLM"), .read_decoder = read};
  family.spec.tokenizer = {"", true};
  return family;
}

}  // namespace blipft
