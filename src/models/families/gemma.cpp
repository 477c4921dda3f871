// Gemma 2 (Gemma Team 2024) and the texts' part of Gemma 3 (2025): norms before and after each branch, soft caps or
// norms of queries and keys, most layers within a window, embeddings that are scaled.
#include "models/families/gemma.h"

#include "models/families/gemma_config.h"

namespace blipft {

std::unique_ptr<Model> make_gemma(const std::string& config_file, const ModelSettings& settings) {
  return make_decoder(GemmaConfig::read(config_file), config_file, settings);
}

}  // namespace blipft
