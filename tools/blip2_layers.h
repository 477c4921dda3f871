// The linear layers of BLIP-2 opt-2.7b, whose matrix products the benches time.
#pragma once

#include <vector>

#include "blipft/ops.h"

namespace blipft::bench {

/// y [m, n] = act(x [m, k] w^T + bias) + residual
struct LinearLayer {
  const char* name;
  int64_t m, k, n;
  int count;                              ///< layers of this size
  bool bias, residual;
  Activation out = Activation::none;      ///< forward's activation
  Activation in = Activation::none;       ///< the activation that made its input, which backward goes through
  bool adds_input = false;                ///< its input's gradient is added to another
};

/// With micro-batches of `batch` samples: 257 picture, 32 query and 50 text positions.
inline std::vector<LinearLayer> blip2_layers(int64_t batch) {
  const int64_t vit = batch * 257, opt = batch * 82, query = batch * 32, head = batch * 49;
  constexpr auto none = Activation::none, relu = Activation::relu, gelu = Activation::gelu;
  return {{"vit qkv", vit, 1408, 4224, 39, true, false},
          {"vit proj", vit, 1408, 1408, 39, true, true},
          {"vit fc1", vit, 1408, 6144, 39, true, false, gelu, none},
          {"vit fc2", vit, 6144, 1408, 39, true, true, none, gelu},
          {"opt qkv", opt, 2560, 7680, 32, true, false},
          {"opt out", opt, 2560, 2560, 32, true, true},
          {"opt fc1", opt, 2560, 10240, 32, true, false, relu, none},
          {"opt fc2", opt, 10240, 2560, 32, true, true, none, relu},
          {"head", head, 2560, 50304, 1, false, false},
          {"qformer 768", query, 768, 768, 12 + 2 * 6, true, false},
          {"qformer qkv", query, 768, 2304, 12, true, false, none, none, true},
          {"qformer kv", vit, 1408, 1536, 6, true, false, none, none, true},
          {"qformer fc1", query, 768, 3072, 12, true, false, gelu, none, true},
          {"qformer fc2", query, 3072, 768, 12, true, false, none, gelu}};
}

}  // namespace blipft::bench
