// OLMo 2: norms after attention and MLP, inside the branches, and norms over all heads of queries and of keys.
#include "models/families/decoder/decoder_config.h"
#include "models/families/families.h"

namespace blipft {

namespace {

DecoderConfig read(const JsonFields& fields) {
  DecoderConfig config{.model_type = "olmo2"};
  read_sizes(fields, {50304, 4096, 11008, 32, 32, 0, 0, 2048, 1e-5f, false, 1}, config);
  config.norms = {"", "post_attention_layernorm", "", "post_feedforward_layernorm"};
  config.head_norms = DecoderConfig::HeadNorms::together;
  config.norm_form = {.offset = 0, .rounds_once = true};
  config.activation = read_activation(fields, "hidden_act", "silu");
  read_attention_bias(fields, config);
  read_shared_rotary(fields, config);
  return config;
}

}  // namespace

Family families::olmo2() {
  Family family{.spec = decoder_spec("olmo2", "Olmo2ForCausalLM"), .read_decoder = read};
  family.spec.tokenizer = {"", true};
  return family;
}

}  // namespace blipft
