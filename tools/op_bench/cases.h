// The cases of op_bench, by family of ops. Each function runs its cases on the harness.
#pragma once

#include "op_bench/harness.h"

namespace blipft::bench {

/// Matrix products of BLIP-2's linear layers with micro-batches of `batch` samples (linear.cpp).
void linear_cases(Harness& harness, int64_t batch);
/// Attention of BLIP-2's three towers (attention.cpp).
void blip2_attention_cases(Harness& harness, int64_t batch);
/// Attention at the shapes of LLaMA-7B, of OpenLLaMA-3B (head size 100), and at head size 64 (attention.cpp).
void other_attention_cases(Harness& harness);
/// Attention to the cache and the choice of tokens, as in decoding by LLaMA-7B and later models (decode.cpp).
void decode_cases(Harness& harness);
/// Norms, activations, dropout, embeddings: ops that work on rows (rows.cpp).
void row_cases(Harness& harness, int64_t batch);
/// Loss, optimizers, and ops on flat buffers (flat.cpp).
void flat_cases(Harness& harness);

}  // namespace blipft::bench
