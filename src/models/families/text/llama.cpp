// LLaMA (Touvron et al. 2023) and what differs from it by a few lines of config.json: Mistral, Qwen 2 and 3, SmolLM 3,
// Phi 3 and 4, OLMo 2.
#include "models/families/text/llama.h"

#include "models/families/text/llama_config.h"

namespace blipft {

std::unique_ptr<Model> make_llama(const std::string& config_file, const ModelSettings& settings) {
  return make_decoder(LlamaConfig::read(config_file), config_file, settings);
}

}  // namespace blipft
