// Dropout masks of a warp's scores, with each Philox call made only once: a call decides 8 consecutive elements, which
// are in the registers of 4 or 8 lanes, so lanes divide the calls and exchange the bits. Only for ScoreParams; the
// kernels of other Args use DropoutMask for each element.
#pragma once

#include "cuda/attention/mma.cuh"
#include "cuda/attention/params.cuh"

namespace blipft::attention {

/// Returns in bit e whether element e of the block that contains `element` is kept.
__device__ __forceinline__ uint32_t block_bits(const DropoutMask& mask, uint64_t element) {
  const DropoutBlock block = mask.block(element);
  const uint32_t words[4] = {block.words.x, block.words.y, block.words.z, block.words.w};
  uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (words[i] << 16 >= mask.threshold) bits |= 1u << 2 * i;
    if (words[i] >= mask.threshold) bits |= 2u << 2 * i;
  }
  return bits;
}

/// Decisions for one row of C fragments whose rows are queries: 8 * N keys from `element` on; `element` is that of the
/// quad's row. aligned: true if the elements of all rows are multiples of 8. The whole warp must construct it.
template <int N>
struct KeptKeys {
  uint32_t bits[N / 4];

  __device__ __forceinline__ KeptKeys(const DropoutMask& mask, uint64_t element, bool aligned) {
    static_assert(N % 4 == 0, "a lane of a quad takes every fourth block");
    const int t = static_cast<int>(threadIdx.x) & 3;
    uint32_t words[N / 4 + 1];
#pragma unroll
    for (int i = 0; i < N / 4; ++i) {
      uint32_t x = block_bits(mask, element + 8 * (4 * i + t)) << 8 * t;
      x |= __shfl_xor_sync(0xffffffffu, x, 1);
      words[i] = x | __shfl_xor_sync(0xffffffffu, x, 2);
    }
    words[N / 4] = aligned ? 0u : block_bits(mask, element + 8 * N);
#pragma unroll
    for (int i = 0; i < N / 4; ++i)
      bits[i] = __funnelshift_r(words[i], words[i + 1], static_cast<uint32_t>(element) % kDropoutBlock) >> 2 * t;
  }
  /// Returns in bits 0 and 1 the decisions for this lane's elements of the n-th tile of 8 keys.
  __device__ __forceinline__ uint32_t pair(int n) const { return bits[n / 4] >> 8 * (n % 4); }
};

/// Decisions for C fragments whose rows are 16 keys and whose columns are 8 * N queries; `element` is that of the first
/// query and key; queries are query_elements elements apart. The whole warp must construct and use it.
template <int N>
struct KeptQueries {
  uint32_t bits[N / 4];  // bit k: key k of query lane + 32 i

  __device__ __forceinline__ KeptQueries(const DropoutMask& mask, uint64_t element, int query_elements) {
    static_assert(N % 4 == 0, "a lane takes every 32nd query");
    const int lane = static_cast<int>(threadIdx.x) & 31;
#pragma unroll
    for (int i = 0; i < N / 4; ++i) {
      const uint64_t own = element + static_cast<uint64_t>(lane + 32 * i) * query_elements;
      uint32_t x = block_bits(mask, own) | block_bits(mask, own + 8) << 8;
      if (query_elements % kDropoutBlock != 0) x |= block_bits(mask, own + 16) << 16;
      bits[i] = x >> static_cast<uint32_t>(own) % kDropoutBlock;
    }
  }
  /// Returns, for this lane's column e of the n-th tile of 8 queries, key g in bit 0 and key g + 8 in bit 8.
  __device__ __forceinline__ uint32_t column(int n, int e) const {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    return __shfl_sync(0xffffffffu, bits[n / 4], 8 * (n % 4) + 2 * (lane & 3) + e) >> (lane >> 2);
  }
};

}  // namespace blipft::attention
