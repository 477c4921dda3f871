// The largest magnitude of what a kernel writes, for a cast to fp8 that comes after it (Fp8Magnitude).
//
// The order of magnitudes' bits is that of numbers, with infinities and NaNs above all, so that a maximum of whole numbers is
// enough, whose order changes nothing.
#pragma once

#include "cuda/vector.cuh"

namespace blipft {

/// The greater of `most` and the bits of the magnitudes in `pack`, as they are stored.
template <class T, int N>
__device__ __forceinline__ unsigned larger(unsigned most, const Pack<T, N>& pack) {
  float x[N];
  unpack(pack, x);
#pragma unroll
  for (int i = 0; i < N; ++i) most = max(most, __float_as_uint(x[i]) & 0x7fffffffu);
  return most;
}

/// Raises `largest` to the greatest of the warp's. By all threads of a warp.
__device__ __forceinline__ void raise_by_warp(unsigned most, unsigned* largest) {
  most = __reduce_max_sync(0xffffffffu, most);
  if (threadIdx.x % 32 == 0) atomicMax(largest, most);
}

/// Raises `largest` to the greatest of the block's. By all threads of a block, which is one-dimensional and has whole warps.
__device__ __forceinline__ void raise_by_block(unsigned most, unsigned* largest) {
  __shared__ unsigned of_warps[32];
  most = __reduce_max_sync(0xffffffffu, most);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = most;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  most = __reduce_max_sync(0xffffffffu, threadIdx.x < blockDim.x / 32 ? of_warps[threadIdx.x] : 0u);
  if (threadIdx.x == 0) atomicMax(largest, most);
}

}  // namespace blipft
