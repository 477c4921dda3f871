// Mistral (Jiang et al. 2023): LLaMA with a window in every layer.
#include "models/families/decoder/decoder_config.h"
#include "models/families/families.h"

namespace blipft {

namespace {

DecoderConfig read(const JsonFields& fields) {
  DecoderConfig config{.model_type = "mistral"};
  read_sizes(fields, {32000, 4096, 14336, 32, 32, 8, 0, 131072, 1e-6f}, config);
  config.activation = read_activation(fields, "hidden_act", "silu");
  set_windows(config, read_window(fields, 4096), std::vector<bool>(config.kinds.size(), true));
  read_shared_rotary(fields, config);
  return config;
}

}  // namespace

Family families::mistral() {
  Family family{.spec = decoder_spec("mistral", "MistralForCausalLM"), .read_decoder = read};
  family.spec.tokenizer = {"", true};
  return family;
}

}  // namespace blipft
