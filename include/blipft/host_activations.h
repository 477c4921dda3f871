// HostActivations: keeps inputs of backward in page-locked host memory between forward and backward.
//
// Copies run in the offload stream, in parallel to the compute stream: out during forward, back during backward.
#pragma once

#include <vector>

#include "blipft/arena.h"
#include "blipft/device.h"
#include "blipft/tensor.h"

namespace blipft {

/// A stack within one pass: last put, first fetched. In addition to the host memory, at most one tensor that is being
/// copied to the host and one that is being copied back occupy device memory.
class HostActivations {
 public:
  HostActivations(Device& device, Arena& arena);
  /// Copies `tensor` [any shape, any dtype], a take of the arena, to the host, after the work enqueued in the compute
  /// stream so far. Gives it back to the arena when the copy has finished, at the latest in the first fetch().
  void put(const Tensor& tensor);
  /// Starts to copy back the tensor put last, if there is one and no other copy back is pending.
  void prefetch();
  /// Returns the tensor put last, in device memory that the caller must give back. The compute stream waits for it.
  Tensor fetch();

 private:
  void finish_copy();
  Device& device_;
  Arena& arena_;
  std::vector<Tensor> in_host_;            // without the one that is being copied back
  Tensor leaving_, arriving_;              // device memory
  Event reached_, left_, arrived_;
};

}  // namespace blipft
