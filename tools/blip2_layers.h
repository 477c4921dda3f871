// The linear layers of BLIP-2 opt-2.7b, whose matrix products the benches time.
#pragma once

#include <vector>

#include "blipft/ops.h"
#include "models/language/language_head.h"

namespace blipft::bench {

/// The tensor to which the gradient of a layer's input is added.
enum class Addend { none, itself, another };

/// y [m, n] = act(x [m, k] w^T + bias) + residual
struct LinearLayer {
  const char* name;
  int64_t m, k, n;
  int count;                              ///< layers of this size
  bool bias, residual;
  Activation out = Activation::none;      ///< forward's activation
  Activation in = Activation::none;       ///< the activation that computed its input; backward differentiates it
  Addend addend = Addend::none;
  bool input_gradient = true;
  int adding = 0;                         ///< the number of layers that already add to a weight gradient in the first micro-batch
};

/// Returns the layers for micro-batches of `batch` samples: 257 picture (256 of them patches), 32 query and `text` text
/// positions.
inline std::vector<LinearLayer> blip2_layers(int64_t batch, int64_t text = 50) {
  const int64_t patches = batch * 256, vit = batch * 257, opt = batch * (32 + text), query = batch * 32;
  constexpr auto none = Activation::none, relu = Activation::relu, gelu = Activation::gelu;
  constexpr int64_t vocabulary = 50304;
  std::vector<LinearLayer> layers = {
      {"patches", patches, 588, 1408, 1, true, false, none, none, Addend::none, false},
      {"vit qkv", vit, 1408, 4224, 39, true, false},
      {"vit proj", vit, 1408, 1408, 39, true, true},
      {"vit fc1", vit, 1408, 6144, 39, true, false, gelu, none},
      {"vit fc2", vit, 6144, 1408, 39, true, true, none, gelu},
      {"qformer 768", query, 768, 768, 12 + 6, true, false},
      {"qformer query", query, 768, 768, 6, true, false, none, none, Addend::another},
      {"qformer qkv", query, 768, 2304, 12, true, false, none, none, Addend::another},
      {"qformer kv", vit, 1408, 1536, 5, true, false, none, none, Addend::itself},
      {"qformer last kv", vit, 1408, 1536, 1, true, false},
      {"qformer fc1", query, 768, 3072, 12, true, false, gelu, none, Addend::another},
      {"qformer fc2", query, 3072, 768, 12, true, false, none, gelu},
      {"projection", query, 768, 2560, 1, true, false},
      {"opt qkv", opt, 2560, 7680, 32, true, false},
      {"opt out", opt, 2560, 2560, 32, true, false},  // dropout comes before the residual
      {"opt fc1", opt, 2560, 10240, 32, true, false, relu, none},
      {"opt fc2", opt, 10240, 2560, 32, true, false, none, relu}};
  // The head computes chunks of rows, which share one weight gradient.
  LanguageHead head;
  head.output.out = vocabulary;
  const int64_t rows = batch * (text - 1), chunk = head.chunk_rows(rows, true);
  const int chunks = static_cast<int>(rows / chunk);
  LinearLayer part{"head", chunk, 2560, vocabulary, chunks, false, false};
  part.adding = chunks - 1;
  layers.push_back(part);
  part.name = "head's rest", part.m = rows % chunk, part.count = part.adding = 1;
  if (part.m > 0) layers.push_back(part);
  return layers;
}

}  // namespace blipft::bench
