// Optimizes captured graphs for replay.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace blipft {

/// Stores the GPU clock, in ns, into `slot` (device memory) when `stream` reaches this point.
void launch_timestamp(int64_t* slot, cudaStream_t stream);

/// Replaces memset nodes (also those of cuBLASLt) by kernels: between kernels a memset node costs 15 to 30 us on H200,
/// a small kernel 2 us. Merges a timestamp into a preceding timestamp if it depends on nothing else. The graph must not
/// be instantiated yet; its results do not change. Throws Error if a CUDA call fails.
void rewrite_graph(cudaGraph_t graph);

}  // namespace blipft
