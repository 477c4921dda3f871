// OPT (Zhang et al. 2022), as the language model inside BLIP-2: layers with norms before, ReLU, learned positions.
#pragma once

#include <functional>

#include "models/blocks/linear_lora.h"
#include "models/language/language_model.h"

namespace blipft {

struct OptShape {
  int64_t vocabulary = 50272, hidden = 768, inner = 3072, layers = 12, heads = 12, positions = 2048, padding_id = 1;
  float dropout = 0.1f, norm_eps = 1e-5f, init_std = 0.02f;
  float attention_dropout = 0;             ///< of the probabilities: not supported, but where dropout is off
  Activation activation = Activation::relu;
  bool bias = true, tied = true;
};

/// Where OPT stands in a model.
struct OptPlace {
  std::string root;                        ///< how the names of its tensors begin ("language_model.")
  std::string units;                       ///< and those of its units ("language.")
  uint32_t dropout_site = 0;               ///< the first of its dropout sites, two a layer
  int64_t prefix_rows = 0;                 ///< of each sample, before its text
};

/// Adds its units to a model, which `add_unit` does.
LanguageModel make_opt(const OptShape& shape, const OptPlace& place, const ModelSettings& settings,
                       const std::function<Unit&(const std::string& name)>& add_unit, LoraBuilder& lora);

}  // namespace blipft
