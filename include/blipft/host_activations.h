// HostActivations: what backward starts from, in page-locked host memory between forward and backward.
//
// Copies run beside the compute stream, in the offload stream, one way during forward and the other during backward.
#pragma once

#include <vector>

#include "blipft/arena.h"
#include "blipft/device.h"
#include "blipft/tensor.h"

namespace blipft {

/// A stack within one pass: what was put last is fetched first. Besides what the host holds, at most one tensor on its
/// way out and one on its way in take device memory.
class HostActivations {
 public:
  HostActivations(Device& device, Arena& arena);
  /// `tensor` [any shape, any dtype], a take of the arena, goes to the host behind what the compute stream has come to;
  /// it is given back when the copy is surely done, at the latest with the first fetch.
  void put(const Tensor& tensor);
  /// Starts the way back of the one put last, if there is one that is not on its way.
  void prefetch();
  /// That one; the compute stream waits for it. The caller's to give back.
  Tensor fetch();

 private:
  void settle();
  Device& device_;
  Arena& arena_;
  std::vector<Tensor> in_host_;            // without the one on its way back
  Tensor leaving_, arriving_;              // device memory
  Event reached_, left_, arrived_;
};

}  // namespace blipft
