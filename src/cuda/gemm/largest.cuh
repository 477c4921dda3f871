// The largest magnitude of a kernel's output, for a later cast to fp8 (Fp8Magnitude).
//
// The bits of magnitudes have the order of the numbers, with infinities and NaNs largest. An integer maximum therefore
// suffices, and its result does not depend on the order.
#pragma once

#include "cuda/vector.cuh"

namespace blipft {

/// Returns the maximum of `maximum` and the bits of the magnitudes in `pack`, as stored.
template <class T, int N>
__device__ __forceinline__ unsigned larger(unsigned maximum, const Pack<T, N>& pack) {
  float x[N];
  unpack(pack, x);
#pragma unroll
  for (int i = 0; i < N; ++i) maximum = max(maximum, __float_as_uint(x[i]) & 0x7fffffffu);
  return maximum;
}

/// Raises `largest` to the maximum of the warp. All threads of the warp must call it.
__device__ __forceinline__ void raise_by_warp(unsigned maximum, unsigned* largest) {
  maximum = __reduce_max_sync(0xffffffffu, maximum);
  if (threadIdx.x % 32 == 0) atomicMax(largest, maximum);
}

/// Raises `largest` to the maximum of the block. All threads of the block, which must be one-dimensional and consist of
/// whole warps, must call it.
__device__ __forceinline__ void raise_by_block(unsigned maximum, unsigned* largest) {
  __shared__ unsigned of_warps[32];
  maximum = __reduce_max_sync(0xffffffffu, maximum);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = maximum;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  maximum = __reduce_max_sync(0xffffffffu, threadIdx.x < blockDim.x / 32 ? of_warps[threadIdx.x] : 0u);
  if (threadIdx.x == 0) atomicMax(largest, maximum);
}

}  // namespace blipft
