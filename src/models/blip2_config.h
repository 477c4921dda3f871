// What config.json says of a BLIP-2 model with an OPT language model.
#pragma once

#include <string>

#include "models/qformer.h"

namespace blipft {

struct Blip2Config {
  struct Vision {
    int64_t hidden = 1408, inner = 6144, layers = 39, heads = 16, image = 224, patch = 14;
    float norm_eps = 1e-6f, attention_dropout = 0;  // attention_dropout: not supported, but where dropout is off
    bool qkv_bias = true;
    float init_std = 0.02f;
  } vision;
  QFormerShape qformer;
  float qformer_init_std = 0.02f;
  struct Text {
    int64_t vocabulary = 50272, hidden = 768, inner = 3072, layers = 12, heads = 12, positions = 2048, padding_id = 1;
    float dropout = 0.1f, attention_dropout = 0, norm_eps = 1e-5f, init_std = 0.02f;
    Activation activation = Activation::relu;
    bool bias = true, tied = true;
  } text;

  /// Reads and checks `file`; absent keys have transformers' defaults. Throws UserError naming file, key, found value
  /// and what is supported.
  static Blip2Config read(const std::string& file);
};

}  // namespace blipft
