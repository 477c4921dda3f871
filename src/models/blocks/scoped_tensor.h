// Helpers for temporary tensors of models in the arena.
#pragma once

#include "blipft/model.h"

namespace blipft {

/// A tensor of the arena that is given back at the end of a scope (or by reset()).
class ScopedTensor {
 public:
  ScopedTensor(const StepContext& context, const char* name, DType dtype, const Shape& shape,
               Owner owner = Owner::activations)
      : arena_(&context.arena), tensor_(arena_->take(owner, name, dtype, shape)) {}
  ~ScopedTensor() { reset(); }
  ScopedTensor(const ScopedTensor&) = delete;
  ScopedTensor& operator=(const ScopedTensor&) = delete;
  void reset() {
    if (tensor_) arena_->give(tensor_);
    tensor_ = {};
  }
  /// Returns the tensor; the caller must give it back.
  Tensor release() {
    Tensor tensor = tensor_;
    tensor_ = {};
    return tensor;
  }
  operator const Tensor&() const { return tensor_; }
  operator MatrixView() const { return tensor_; }
  const Tensor& get() const { return tensor_; }

 private:
  Arena* arena_;
  Tensor tensor_;
};

/// Returns a tensor of activations, which the caller must give back.
inline Tensor take(const StepContext& context, const char* name, DType dtype, const Shape& shape) {
  return context.arena.take(Owner::activations, name, dtype, shape);
}

/// Gives `tensor` back to the arena and makes it absent; ignores absent tensors.
inline void give(const StepContext& context, Tensor& tensor) {
  if (tensor) context.arena.give(tensor);
  tensor = {};
}

}  // namespace blipft
