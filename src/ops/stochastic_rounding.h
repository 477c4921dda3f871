// Stochastic rounding to bf16 for CPU code and CUDA kernels: see Rounding in ops.h.
//
// Counter layout: elements 8 b to 8 b + 7 of a unit use the half words of the Philox block with the counter {b, step,
// 0xfffffffe, unit} under the key `seed`, the lower half of a word first. The third word separates these blocks from
// those of dropout and of normal numbers.
#pragma once

#include <bit>
#include <cstdint>

#include "blipft/philox.h"

namespace blipft {

constexpr int64_t kRoundingBlock = 8;      ///< elements that one Philox call rounds

BLIPFT_HOST_DEVICE Philox4 rounding_words(uint64_t seed, uint32_t unit, uint32_t step, int64_t element) {
  return philox({static_cast<uint32_t>(element / kRoundingBlock), step, 0xfffffffeu, unit},
                static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
}

/// Returns the 16 random bits of `element`, given the words of its block.
BLIPFT_HOST_DEVICE uint32_t rounding_bits(const Philox4& words, int64_t element) {
  const auto e = static_cast<uint32_t>(element);
  const uint32_t word = e & 4 ? (e & 2 ? words.w : words.z) : (e & 2 ? words.y : words.x);
  return (e & 1 ? word >> 16 : word) & 0xffffu;
}

/// Rounds x to bf16: away from zero with a probability equal to the discarded fraction of a step, else towards zero.
/// Infinities and NaNs are kept.
BLIPFT_HOST_DEVICE uint16_t round_stochastically(float x, uint32_t bits) {
  const uint32_t number = std::bit_cast<uint32_t>(x);
  if ((number & 0x7f800000u) == 0x7f800000u)
    return static_cast<uint16_t>(number >> 16 | ((number & 0x007fffffu) != 0 ? 0x40u : 0u));
  return static_cast<uint16_t>((number + bits) >> 16);
}

}  // namespace blipft
