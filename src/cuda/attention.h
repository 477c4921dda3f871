// The CUDA attention kernels' entry points; CudaOps checks the arguments before it calls them.
#pragma once

#include <cuda_runtime_api.h>

#include "blipft/ops.h"

namespace blipft {

/// Enqueues AttentionForward (see ops.h) in `stream`. `workspace` is u8 scratch of at least kWorkspaceBytes that
/// nothing else uses until the work is done.
void launch_attention_forward(const AttentionForward& args, const Tensor& workspace, cudaStream_t stream);
/// Enqueues AttentionBackward (see ops.h) in `stream`, with `workspace` as above.
void launch_attention_backward(const AttentionBackward& args, const Tensor& workspace, cudaStream_t stream);

}  // namespace blipft
