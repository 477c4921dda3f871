// The numbers that fill_normal and fill_uniform draw, for CPU code and CUDA kernels.
//
// Counter layout: element `index` of stream `stream_id` uses the Philox block with the counter {low word of index / 4,
// high word of index / 4, 0xffffffff, stream_id} under the key `seed`, and of it the word pair (index % 4) / 2. One
// block thus gives two Box-Muller pairs, which are four normal numbers: the cosine for even, the sine for odd indices.
// Dropout stores an element block number in the third counter word, which is always smaller than 0xffffffff.
#pragma once

#include <cmath>
#include <cstdint>

#include "blipft/philox.h"

namespace blipft {

/// Returns the random words of elements 4 * block to 4 * block + 3.
BLIPFT_HOST_DEVICE Philox4 normal_words(uint64_t seed, uint32_t stream_id, int64_t block) {
  const uint64_t b = static_cast<uint64_t>(block);
  return philox({static_cast<uint32_t>(b), static_cast<uint32_t>(b >> 32), 0xffffffffu, stream_id},
                static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
}

/// Box-Muller transform (1958): radius from `u`, angle from `v`, both mapped to (0, 1). Host and device results agree
/// up to the rounding of log, sqrt, cos and sin.
BLIPFT_HOST_DEVICE void box_muller(uint32_t u, uint32_t v, float& even, float& odd) {
  constexpr float kTwoPi = 6.283185307179586f;
  // The upper 24 bits plus half a step are exact in f32 and never 0 or 1.
  const float unit = (static_cast<float>(u >> 8) + 0.5f) * (1.0f / 16777216.0f);
  const float angle = kTwoPi * ((static_cast<float>(v >> 8) + 0.5f) * (1.0f / 16777216.0f));
  const float radius = sqrtf(-2.0f * logf(unit));
  even = radius * cosf(angle);
  odd = radius * sinf(angle);
}

/// Returns element `index` of the normal numbers of (seed, stream_id).
BLIPFT_HOST_DEVICE float normal_at(uint64_t seed, uint32_t stream_id, int64_t index) {
  const Philox4 words = normal_words(seed, stream_id, index >> 2);
  float even, odd;
  if (index & 2) box_muller(words.z, words.w, even, odd);
  else box_muller(words.x, words.y, even, odd);
  return (index & 1) ? odd : even;
}

/// Returns element `index` of the uniform numbers in (-1, 1) of (seed, stream_id): 24 bits of the block's word index %
/// 4.
BLIPFT_HOST_DEVICE float uniform_at(uint64_t seed, uint32_t stream_id, int64_t index) {
  const Philox4 words = normal_words(seed, stream_id, index >> 2);
  const uint32_t word = (index & 2) ? ((index & 1) ? words.w : words.z) : ((index & 1) ? words.y : words.x);
  return (static_cast<float>(word >> 8) + 0.5f) * (2.0f / 16777216.0f) - 1.0f;
}

}  // namespace blipft
