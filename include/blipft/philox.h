// Philox4x32-10, the counter-based generator behind every random number of the program.
//
// Salmon, Moraes, Dror, Shaw: "Parallel Random Numbers: As Easy as 1, 2, 3" (SC11). The same function runs in CPU code
// and in CUDA kernels, so that both backends draw the same numbers.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define BLIPFT_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define BLIPFT_HOST_DEVICE inline
#endif

namespace blipft {

struct Philox4 {
  uint32_t x, y, z, w;
};

/// The 64-bit product of two words. In kernels spelled out: nvcc adds a zero to most products that it writes itself.
struct Product {
  uint32_t low, high;

  BLIPFT_HOST_DEVICE Product(uint32_t a, uint32_t b) {
#if defined(__CUDA_ARCH__)
    asm("{\n.reg .b64 product;\nmul.wide.u32 product, %2, %3;\nmov.b64 {%0, %1}, product;\n}\n"
        : "=r"(low), "=r"(high)
        : "r"(a), "r"(b));
#else
    const uint64_t product = static_cast<uint64_t>(a) * b;
    low = static_cast<uint32_t>(product);
    high = static_cast<uint32_t>(product >> 32);
#endif
  }
};

/// Four random 32-bit words for a 128-bit counter under a 64-bit key.
BLIPFT_HOST_DEVICE Philox4 philox(Philox4 counter, uint32_t key0, uint32_t key1) {
#if defined(__CUDACC__)
#pragma unroll
#endif
  for (int round = 0; round < 10; ++round) {
    const Product product0(0xD2511F53u, counter.x), product1(0xCD9E8D57u, counter.z);
    counter = {product1.high ^ counter.y ^ key0, product1.low, product0.high ^ counter.w ^ key1, product0.low};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

/// Dropout decides an element by 16 random bits: it is kept when they are at or above p * 2^16, rounded to nearest. The
/// probability to drop is thus a multiple of 2^-16, off by at most 2^-17; it is 1 - 2^-16 at most, however close p is
/// to 1. This is what they are compared with, in the upper half of a word.
BLIPFT_HOST_DEVICE uint32_t dropout_threshold(float p) {
  const auto rounded = static_cast<uint32_t>(static_cast<double>(p) * 65536.0 + 0.5);
  return (rounded < 65535 ? rounded : 65535) << 16;
}

constexpr uint32_t kDropoutBlock = 8;  ///< elements that one Philox call decides

/// The random bits of a block of one dropout site of one sample: elements 8 b up to 8 b + 7, where 8 b + 2 i has the
/// lower half of word i and 8 b + 2 i + 1 the upper one.
/// `sample_key` counts samples since the run began, so that the mask does not depend on how samples are dealt to ranks.
struct DropoutBlock {
  Philox4 words;

  /// The block that `element` is in.
  BLIPFT_HOST_DEVICE DropoutBlock(uint64_t seed, uint32_t site, int64_t sample_key, uint64_t element) {
    const uint64_t sample = static_cast<uint64_t>(sample_key);
    const auto block = static_cast<uint32_t>(element / kDropoutBlock);
    words = philox({static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32), block, site},
                   static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  }
  /// Element e of the block. Its half becomes the upper one of a word; the bits below decide nothing, since those of
  /// the threshold are zeros.
  BLIPFT_HOST_DEVICE bool keeps(uint32_t e, uint32_t threshold) const {
    const uint32_t word = e & 4 ? (e & 2 ? words.w : words.z) : (e & 2 ? words.y : words.x);
    return word << 16 * (~e & 1) >= threshold;
  }
  /// Elements e and e + 1: bit 0 and bit 1. `after`: the first word of the next block, needed for e = 7.
  BLIPFT_HOST_DEVICE uint32_t keeps_pair(uint32_t e, uint32_t after, uint32_t threshold) const {
    const uint32_t a = e & 4 ? words.z : words.x, b = e & 4 ? words.w : words.y, c = e & 4 ? after : words.z;
    const uint64_t two = static_cast<uint64_t>(e & 2 ? c : b) << 32 | (e & 2 ? b : a);
    const auto pair = static_cast<uint32_t>(two >> 16 * (e & 1));
    return (pair << 16 >= threshold ? 1u : 0u) | (pair >= threshold ? 2u : 0u);
  }
};

}  // namespace blipft
