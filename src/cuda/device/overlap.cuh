// Launches that overlap: a kernel starts while the one before it in its stream ends (programmatic dependent launch), so that a
// chain of short kernels does not pay for each start. Decoding is such a chain.
//
// The rules, which make any such chain right:
// - Every thread of a kernel that launch_overlapped starts calls wait_for_earlier() before it leaves. So, when a kernel has
//   ended, all kernels before it have.
// - Before that call a kernel reads nothing that any kernel writes, and writes nothing. prefetch() of a weight is no read: the
//   L2 is where all writes arrive.
#pragma once

#include "cuda/kernels.h"

namespace blipft {

/// The kernel behind this one may start, as soon as all blocks have called this; what it computes waits for this one's end.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Waits until the kernels before this one have ended and what they wrote can be read.
__device__ __forceinline__ void wait_for_earlier() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Both: for a kernel that can do nothing before.
__device__ __forceinline__ void join_chain() {
  let_next_start();
  wait_for_earlier();
}

/// Brings the line of this address into the L2.
__device__ __forceinline__ void prefetch(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

/// kernel<<<grid, threads, shared>>>(args...) in the context's stream. It overlaps with the kernel before it where the GPU can and
/// its blocks fill it once at most: more of them would hold the places of blocks that have work.
template <class... Params, class... Args>
void launch_overlapped(void (*kernel)(Params...), dim3 grid, int64_t threads, size_t shared, const LaunchContext& context,
                       Args&&... args) {
  constexpr int64_t kThreadsOfProcessor = 2048;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared;
  config.stream = context.stream;
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &overlap;
  const int64_t blocks = int64_t{grid.x} * grid.y * grid.z;
  config.numAttrs = context.wgmma && blocks * threads <= context.sm_count * kThreadsOfProcessor ? 1 : 0;
  BLIPFT_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...));
}

/// A grid of so many blocks.
inline dim3 blocks_of(int64_t count) { return dim3(static_cast<unsigned>(count)); }

}  // namespace blipft
