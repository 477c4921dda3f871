// GPU ops with the limits of other GPUs; only with CUDA.
#pragma once

#include <algorithm>
#include <string>

#include "cuda/cuda_ops.h"

namespace blipft::test {

/// Simulates a GPU with at most `shared_bytes` of shared memory per block and without warpgroup products.
class RestrictedOps : public CudaOps {
 public:
  RestrictedOps(Device& device, int shared_bytes, bool tf32 = false) : CudaOps(device, "", GemmEffort::quick, tf32) {
    shared_bytes_ = std::min(shared_bytes_, shared_bytes);
    wgmma_ = false;
  }
};

}  // namespace blipft::test
