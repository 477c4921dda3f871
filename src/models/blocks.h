// Pieces that model families share: parameter handles and small helpers.
//
// Dimension legend: M rows, H hidden size.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "blipft/model.h"
#include "models/linear_layer.h"

namespace blipft {

/// The place of a layer norm, or of an RMSNorm, which has no beta, in its unit's flat buffer.
struct Norm {
  int64_t size = 0;
  int64_t gamma = -1, beta = -1;           // -1: RMSNorm
  float eps = 1e-5f;
  bool rms() const { return beta < 0; }
  Tensor g(const Tensor& flat) const { return flat.part(gamma, {size}); }
  Tensor b(const Tensor& flat) const { return rms() ? Tensor{} : flat.part(beta, {size}); }
  /// `args` without the parameters and their gradients; beta is filled in where y is wanted.
  void backward(const UnitBackward& pass, NormBackward args) const;
};

/// Adds "<name>.weight" and, if wanted, "<name>.bias" to the unit.
LinearLayer add_linear(Unit& unit, const std::string& name, int64_t in, int64_t out, bool bias, float init_std);
/// One of several linear layers over one input.
struct PackedLinear {
  std::string name;
  int64_t out = 0;
};
/// Adds the weights of several linear layers over one input as one matrix, then their biases as one vector.
LinearLayer add_packed_linear(Unit& unit, const std::vector<PackedLinear>& layers, int64_t in, bool bias,
                              float init_std);
/// The same for layers of equal width.
LinearLayer add_packed_linear(Unit& unit, const std::vector<std::string>& names, int64_t in, int64_t out_each,
                              bool bias, float init_std);
Norm add_norm(Unit& unit, const std::string& name, int64_t size, float eps);
/// Without "<name>.bias".
Norm add_rms_norm(Unit& unit, const std::string& name, int64_t size, float eps);

/// A tensor taken from the arena for the length of a scope (or until give()).
class Taken {
 public:
  Taken(const StepContext& context, const char* name, DType dtype, const Shape& shape, Owner owner = Owner::activations)
      : arena_(&context.arena), tensor_(arena_->take(owner, name, dtype, shape)) {}
  ~Taken() { give(); }
  Taken(const Taken&) = delete;
  Taken& operator=(const Taken&) = delete;
  void give() {
    if (tensor_) arena_->give(tensor_);
    tensor_ = {};
  }
  /// The caller becomes responsible for giving it back.
  Tensor keep() {
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

/// Gives `tensor` back to the arena and forgets it; absent tensors are fine.
void give(const StepContext& context, Tensor& tensor);

/// y = norm(x) with statistics into fresh tensors.
struct NormResult {
  Tensor y, mean, rstd;                    // [M, H], f32 [M], f32 [M]; no mean of RMSNorm
};
NormResult take_norm(const StepContext& context, const Norm& norm, const Tensor& flat, const Tensor& x);
void give(const StepContext& context, NormResult& result);

}  // namespace blipft
