// Entry points of the CUDA attention kernels; CudaOps checks the arguments before it calls them.
#pragma once

#include <cuda_runtime_api.h>

#include "blipft/ops.h"
#include "cuda/kernels.h"

namespace blipft {

/// Enqueues AttentionForward (see ops.h).
void launch_attention_forward(const AttentionForward& args, const LaunchContext& context);
/// Enqueues AttentionBackward (see ops.h). Sums for dbias use the context's scratch memory.
void launch_attention_backward(const AttentionBackward& args, const LaunchContext& context);

}  // namespace blipft
