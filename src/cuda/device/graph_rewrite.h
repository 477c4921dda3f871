// What capture recorded, made cheaper to replay.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace blipft {

/// Stores the GPU's clock, in ns, into `slot` (device memory) when `stream` reaches this point.
void launch_timestamp(int64_t* slot, cudaStream_t stream);

/// Memset nodes, ours and cuBLASLt's, become kernels: between kernels a memset node costs 15 to 30 us on H200, a small
/// kernel 2. A reading of the clock that only another one precedes joins it: nothing lies between them.
/// For a graph that is not instantiated yet. What it computes stays the same. Throws Error when a CUDA call fails.
void rewrite_graph(cudaGraph_t graph);

}  // namespace blipft
