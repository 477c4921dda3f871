// What config.json says of a LLaMA: of the model types llama, mistral and qwen2, which are one architecture.
#pragma once

#include <array>
#include <string>

#include "blipft/ops.h"

namespace blipft {

struct LlamaConfig {
  std::string model_type;
  int64_t vocabulary = 0, hidden = 0, inner = 0, layers = 0;
  int64_t heads = 0, kv_heads = 0, head_size = 0;  // heads * head_size need not be the hidden size
  int64_t max_text_tokens = 0;             // positions
  int64_t sliding_window = 0;              // of any layer, 0: none; it changes nothing for texts no longer than it
  int64_t padding_id = -1;                 // its embedding gets no gradient; -1: none
  float norm_eps = 1e-6f, init_std = 0.02f;
  float attention_dropout = 0;             // of the attention's probabilities: not supported, but where dropout is off
  bool tied = false;
  bool qkv_bias = false, output_bias = false, mlp_bias = false;
  /// Radians from one position to the next, [head_size / 2], with the bits that transformers computes in f32.
  std::array<float, Rotary::kMostFrequencies> frequencies{};

  /// Reads and checks `file`; absent keys have transformers' defaults. Throws UserError naming file, key, found value
  /// and what is supported.
  static LlamaConfig read(const std::string& file);
};

}  // namespace blipft
