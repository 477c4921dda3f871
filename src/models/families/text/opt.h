// OPT (Zhang et al. 2022), the language model in BLIP-2: norms before attention and MLP, ReLU, learned positions.
#pragma once

#include <functional>

#include "models/blocks/linear_lora.h"
#include "models/language/language_model.h"

namespace blipft {

struct OptShape {
  int64_t vocabulary = 50272, hidden = 768, inner = 3072, layers = 12, heads = 12, positions = 2048, padding_id = 1;
  float dropout = 0.1f, norm_eps = 1e-5f, init_std = 0.02f;
  float attention_dropout = 0;             ///< of attention probabilities: must be 0 unless dropout is off
  Activation activation = Activation::relu;
  bool bias = true, tied = true;
};

/// The names and numbers of OPT as a part of a model.
struct OptPlacement {
  std::string root;                        ///< prefix of its tensors' names ("language_model.")
  std::string units;                       ///< prefix of its units' names ("language.")
  uint32_t dropout_site = 0;               ///< number of its first dropout site; it has two per layer
};

/// Builds OPT; `add_unit` adds its units to a model.
LanguageModel make_opt(const OptShape& shape, const OptPlacement& placement, const ModelSettings& settings,
                       const std::function<Unit&(const std::string& name)>& add_unit, LoraBuilder& lora);

}  // namespace blipft
