// Copies activations to host memory and back; see host_activations.h.
#include "blipft/host_activations.h"

#include "blipft/error.h"

namespace blipft {

HostActivations::HostActivations(Device& device, Arena& arena)
    : device_(device), arena_(arena), reached_(device.create_event()), left_(device.create_event()),
      arrived_(device.create_event()) {}

void HostActivations::put(const Tensor& tensor) {
  finish_copy();                                // the previous copy has run during the compute of a layer
  const Stream offload = device_.offload_stream();
  in_host_.push_back(arena_.take_in_host(Owner::activations, "inputs of checkpointed layers", tensor.dtype,
                                         tensor.shape));
  device_.record(reached_, device_.compute_stream());
  device_.wait(offload, reached_);
  device_.copy(in_host_.back().data, tensor.data, tensor.bytes(), offload);
  device_.record(left_, offload);
  leaving_ = tensor;
}

void HostActivations::finish_copy() {
  if (!leaving_) return;
  device_.wait(device_.compute_stream(), left_);
  arena_.give(leaving_);
  leaving_ = {};
}

// Host memory is given back before it is read: later copies into it run after this one in the same stream.
void HostActivations::prefetch() {
  finish_copy();
  if (arriving_ || in_host_.empty()) return;
  const Tensor from = in_host_.back();
  in_host_.pop_back();
  arriving_ = arena_.take(Owner::activations, "inputs of checkpointed layers", from.dtype, from.shape);
  const Stream offload = device_.offload_stream();
  device_.record(reached_, device_.compute_stream());  // until here, earlier compute may use the memory
  device_.wait(offload, reached_);
  device_.copy(arriving_.data, from.data, from.bytes(), offload);
  device_.record(arrived_, offload);
  arena_.give_in_host(from);
}

Tensor HostActivations::fetch() {
  prefetch();
  BLIPFT_CHECK(arriving_, "nothing was put into the host");
  device_.wait(device_.compute_stream(), arrived_);
  const Tensor tensor = arriving_;
  arriving_ = {};
  return tensor;
}

}  // namespace blipft
