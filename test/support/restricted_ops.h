// GPU ops as other GPUs than this one have them; with CUDA alone.
#pragma once

#include <algorithm>
#include <string>

#include "cuda/cuda_ops.h"

namespace blipft::test {

/// As on a GPU whose blocks have at most `shared_bytes` of shared memory, and without warpgroup products.
class RestrictedOps : public CudaOps {
 public:
  RestrictedOps(Device& device, int shared_bytes, bool tf32 = false) : CudaOps(device, "", GemmEffort::quick, tf32) {
    shared_bytes_ = std::min(shared_bytes_, shared_bytes);
    wgmma_ = false;
  }
};

}  // namespace blipft::test
