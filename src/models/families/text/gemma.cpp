// Gemma 2 (Gemma Team 2024) and the texts' part of Gemma 3 (2025): norms before and after each branch, soft caps or
// norms of queries and keys, most layers within a window, embeddings that are scaled. Of a Gemma 3 that sees pictures too (4B and
// up) the texts' part is trained and generates; the rest of its folder stays as it is.
#include "models/families/text/gemma.h"

#include "models/families/text/gemma_config.h"

namespace blipft {

std::unique_ptr<Model> make_gemma(const std::string& config_file, const ModelSettings& settings) {
  const GemmaConfig config = GemmaConfig::read(config_file);
  if (!config.within) return make_decoder(config, config_file, settings);
  // As transformers' modules are called, and PEFT's adapters; files have the names of before.
  const DecoderPlace in_files{"language_model.model.", "language_model.lm_head"};
  return make_decoder(config, config_file, settings, {"model.language_model.", "lm_head"}, &in_files);
}

}  // namespace blipft
