// Overlapped launches: a kernel starts while the preceding kernel of its stream ends (programmatic dependent launch).
// This hides the launch latency in a chain of short kernels, such as a decode step.
//
// Two rules make any such chain correct:
// - Every thread of a kernel that is started by launch_overlapped calls wait_for_earlier() before it exits. Therefore
//   all preceding kernels have ended when a kernel has ended.
// - Before this call a kernel writes nothing and reads nothing that another kernel writes. A prefetch() of a weight is
//   allowed: all writes reach the L2 cache.
#pragma once

#include "cuda/kernels.h"

namespace blipft {

/// Allows the next kernel to start when all blocks have called this; its wait_for_earlier() still waits for our end.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Waits until the preceding kernels have ended and their writes are visible.
__device__ __forceinline__ void wait_for_earlier() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Does both, for a kernel without work before the wait.
__device__ __forceinline__ void join_chain() {
  let_next_start();
  wait_for_earlier();
}

/// Prefetches the cache line of this address into the L2 cache.
__device__ __forceinline__ void prefetch(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

/// Launches kernel<<<grid, threads, shared>>>(args...) in the context's stream. It overlaps with the preceding kernel
/// if the GPU supports it and all blocks are resident at once; otherwise waiting blocks would occupy the slots of
/// blocks that have work.
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

/// Returns a grid of `count` blocks.
inline dim3 blocks_of(int64_t count) { return dim3(static_cast<unsigned>(count)); }

}  // namespace blipft
