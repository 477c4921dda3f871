// Philox4x32-10, the counter-based generator behind every random number of the program.
//
// Salmon, Moraes, Dror, Shaw: "Parallel Random Numbers: As Easy as 1, 2, 3" (SC11). CPU code and CUDA kernels run this
// function, so that both backends draw the same numbers.
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

/// The 64-bit product of two 32-bit words. Kernels use PTX because nvcc adds a zero to most products that it generates.
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

/// Dropout uses 16 random bits for each element and keeps it if they are >= p * 2^16, rounded to nearest. The drop
/// probability is thus a multiple of 2^-16, off by at most 2^-17; it is at most 1 - 2^-16, however close p is to 1.
/// Returns this threshold in the upper half of a word.
BLIPFT_HOST_DEVICE uint32_t dropout_threshold(float p) {
  const auto rounded = static_cast<uint32_t>(static_cast<double>(p) * 65536.0 + 0.5);
  return (rounded < 65535 ? rounded : 65535) << 16;
}

constexpr uint32_t kDropoutBlock = 8;  ///< elements that one Philox call decides

/// The random bits of a block of elements 8 b to 8 b + 7 of one sample at one dropout site. Element 8 b + 2 i uses the
/// lower half of word i, element 8 b + 2 i + 1 the upper half. `sample_key` counts samples since the start of the run,
/// so that the mask does not depend on the assignment of samples to ranks.
struct DropoutBlock {
  Philox4 words;

  /// Generates the block that contains `element`.
  BLIPFT_HOST_DEVICE DropoutBlock(uint64_t seed, uint32_t site, int64_t sample_key, uint64_t element) {
    const uint64_t sample = static_cast<uint64_t>(sample_key);
    const auto block = static_cast<uint32_t>(element / kDropoutBlock);
    words = philox({static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32), block, site},
                   static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  }
  /// Returns true if element e of the block is kept. The element's 16 bits are shifted to the upper half of a word; the
  /// bits below have no effect because those of the threshold are zero.
  BLIPFT_HOST_DEVICE bool keeps(uint32_t e, uint32_t threshold) const {
    const uint32_t word = e & 4 ? (e & 2 ? words.w : words.z) : (e & 2 ? words.y : words.x);
    return word << 16 * (~e & 1) >= threshold;
  }
  /// Returns the decisions of elements e and e + 1 in bits 0 and 1. `after`: the first word of the next block, used for
  /// e = 7.
  BLIPFT_HOST_DEVICE uint32_t keeps_pair(uint32_t e, uint32_t after, uint32_t threshold) const {
    const uint32_t a = e & 4 ? words.z : words.x, b = e & 4 ? words.w : words.y, c = e & 4 ? after : words.z;
    const uint64_t two = static_cast<uint64_t>(e & 2 ? c : b) << 32 | (e & 2 ? b : a);
    const auto pair = static_cast<uint32_t>(two >> 16 * (e & 1));
    return (pair << 16 >= threshold ? 1u : 0u) | (pair >= threshold ? 2u : 0u);
  }
};

}  // namespace blipft
