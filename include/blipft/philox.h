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

/// The four words that decide elements 4*block .. 4*block+3 of one dropout site of one sample.
/// `sample_key` counts samples since the run began, so that the mask does not depend on how samples are dealt to ranks.
BLIPFT_HOST_DEVICE Philox4 dropout_words(uint64_t seed, uint32_t site, int64_t sample_key, uint32_t block) {
  const uint64_t sample = static_cast<uint64_t>(sample_key);
  return philox({static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32), block, site},
                static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
}

/// A word keeps its element when it is at or above this threshold: drops with probability p.
BLIPFT_HOST_DEVICE uint32_t dropout_threshold(float p) {
  return static_cast<uint32_t>(static_cast<double>(p) * 4294967296.0);
}

}  // namespace blipft
