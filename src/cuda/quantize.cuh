// Quantized blocks in kernels: a thread handles 8 consecutive numbers; 8 or 32 adjacent threads of a warp form a block.
#pragma once

#include "cuda/kernels.h"
#include "cuda/vector.cuh"
#include "ops/code_book.h"

namespace blipft {
namespace {

// Device copies of the host's constants.
__constant__ const CodeTable<16> kDeviceNf4 = kNf4;
__device__ const CodeTable<256> kDeviceDynamic8 = kDynamic8, kDeviceDynamic8Unsigned = kDynamic8Unsigned;
__device__ const MidpointIndex<6> kDeviceDynamic8Index = kDynamic8Index;
__device__ const MidpointIndex<7> kDeviceDynamic8UnsignedIndex = kDynamic8UnsignedIndex;

constexpr int kCodePack = 8;
template <CodeBook kBook>
constexpr int kCodeThreads = static_cast<int>(code_block(kBook)) / kCodePack;  ///< threads per block of quantized values

/// The quantized values of 8 numbers.
template <CodeBook kBook>
struct CodePack {
  using Word = std::conditional_t<code_bits(kBook) == 4, uint32_t, uint2>;
  Word word;

  /// Returns value j. The first of two 4-bit values is in the high half of their byte.
  __device__ __forceinline__ uint32_t code(int j) const {
    if constexpr (code_bits(kBook) == 4) return word >> 4 * (j ^ 1) & 15u;
    else return (j < 4 ? word.x : word.y) >> 8 * (j % 4) & 255u;
  }
  __device__ __forceinline__ void set(const uint32_t (&quantized)[kCodePack]) {
    if constexpr (code_bits(kBook) == 4) {
      word = 0;
#pragma unroll
      for (int j = 0; j < kCodePack; ++j) word |= quantized[j] << 4 * (j ^ 1);
    } else {
      word.x = quantized[0] | quantized[1] << 8 | quantized[2] << 16 | quantized[3] << 24;
      word.y = quantized[4] | quantized[5] << 8 | quantized[6] << 16 | quantized[7] << 24;
    }
  }
};

/// Returns the scale of the block that this thread's 8 numbers belong to. All threads of the warp must call it.
template <int kThreadsOfBlock>
__device__ __forceinline__ float scale_of(const float (&x)[kCodePack]) {
  uint32_t maximum = 0;
#pragma unroll
  for (int j = 0; j < kCodePack; ++j) maximum = max(maximum, __float_as_uint(x[j]) & 0x7fffffffu);
  if constexpr (kThreadsOfBlock == 32) {
    maximum = __reduce_max_sync(0xffffffffu, maximum);
  } else {
#pragma unroll
    for (int offset = kThreadsOfBlock / 2; offset > 0; offset /= 2)
      maximum = max(maximum, __shfl_xor_sync(0xffffffffu, maximum, offset));
  }
  return block_scale(maximum);
}

constexpr float kInt8Top = 127;

}  // namespace
}  // namespace blipft
