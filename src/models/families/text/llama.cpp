// LLaMA (Touvron et al. 2023).
#include "models/families/text/llama.h"

#include "models/families/decoder/decoder_config.h"
#include "models/families/families.h"

namespace blipft {

DecoderConfig read_llama(const JsonFields& fields) {
  DecoderConfig config{.model_type = "llama"};
  read_sizes(fields, {32000, 4096, 11008, 32, 32, 0, 0, 2048, 1e-6f}, config);
  config.activation = read_activation(fields, "hidden_act", "silu");
  read_attention_bias(fields, config);
  config.mlp_bias = fields.get<bool>("mlp_bias", false);
  read_shared_rotary(fields, config);
  return config;
}

Family families::llama() { return {.spec = decoder_spec("llama", "LlamaForCausalLM"), .read_decoder = read_llama}; }

}  // namespace blipft
