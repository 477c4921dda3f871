// Layer norm and RMSNorm: parameters, forward into new tensors, backward.
//
// Dimension legend: M rows, H hidden size.
#pragma once

#include <string>

#include "models/blocks/linear_layer.h"
#include "models/blocks/scoped_tensor.h"

namespace blipft {

/// The offsets of a layer norm or RMSNorm (which has no beta) in its unit's flat buffer.
struct Norm {
  int64_t size = 0;
  int64_t gamma = -1, beta = -1;           // -1: RMSNorm
  float eps = 1e-5f;
  RmsForm form;                            // for RMSNorm
  bool rms() const { return beta < 0; }
  Tensor g(const UnitWeights& flat) const { return flat.part(gamma, {size}); }
  Tensor b(const UnitWeights& flat) const { return rms() ? Tensor{} : flat.part(beta, {size}); }
  /// Runs the backward op; sets the parameters and their gradients in `args`, and beta if `args` requests y.
  void backward(const UnitBackward& pass, NormBackward args) const;
};

Norm add_norm(Unit& unit, const std::string& name, int64_t size, float eps);
/// Adds an RMSNorm, without "<name>.bias". Its initial weights are those of the identity.
Norm add_rms_norm(Unit& unit, const std::string& name, int64_t size, float eps, RmsForm form = {});

/// y = norm(x) and its statistics, in new tensors. `amax` as in NormForward.
struct NormResult {
  Tensor y, mean, rstd;                    // [M, H], f32 [M], f32 [M]; mean is absent for RMSNorm
};
NormResult take_norm(const StepContext& context, const Norm& norm, const UnitWeights& flat, const Tensor& x,
                     const Tensor& amax = {});
/// take_norm() of sum = residual + dropout(branch), which is written too: [M, H] each.
NormResult take_norm_of_sum(const StepContext& context, const Norm& norm, const UnitWeights& flat, const Tensor& branch,
                            const Tensor& residual, const Dropout& dropout, const Tensor& sum, const Tensor& amax = {});
/// Recomputes only y, into a new tensor; overwrites the existing statistics.
Tensor take_norm_again(const StepContext& context, const Norm& norm, const UnitWeights& flat, const Tensor& x,
                       const NormResult& statistics);
void give(const StepContext& context, NormResult& result);

}  // namespace blipft
