// Layer norm and RMSNorm: their parameters, forward into fresh tensors, backward.
//
// Dimension legend: M rows, H hidden size.
#pragma once

#include <string>

#include "models/blocks/linear_layer.h"
#include "models/blocks/scoped_tensor.h"

namespace blipft {

/// The place of a layer norm, or of an RMSNorm, which has no beta, in its unit's flat buffer.
struct Norm {
  int64_t size = 0;
  int64_t gamma = -1, beta = -1;           // -1: RMSNorm
  float eps = 1e-5f;
  RmsForm form;                            // of RMSNorm
  bool rms() const { return beta < 0; }
  Tensor g(const UnitWeights& flat) const { return flat.part(gamma, {size}); }
  Tensor b(const UnitWeights& flat) const { return rms() ? Tensor{} : flat.part(beta, {size}); }
  /// `args` without the parameters and their gradients; beta is filled in where y is wanted.
  void backward(const UnitBackward& pass, NormBackward args) const;
};

Norm add_norm(Unit& unit, const std::string& name, int64_t size, float eps);
/// Without "<name>.bias". New weights are those of the identity.
Norm add_rms_norm(Unit& unit, const std::string& name, int64_t size, float eps, RmsForm form = {});

/// y = norm(x) with statistics into fresh tensors. `amax` as in NormForward.
struct NormResult {
  Tensor y, mean, rstd;                    // [M, H], f32 [M], f32 [M]; no mean of RMSNorm
};
NormResult take_norm(const StepContext& context, const Norm& norm, const UnitWeights& flat, const Tensor& x,
                     const Tensor& amax = {});
/// The same of sum = residual + dropout(branch), which is written too: [M, H] each.
NormResult take_norm_of_sum(const StepContext& context, const Norm& norm, const UnitWeights& flat, const Tensor& branch,
                            const Tensor& residual, const Dropout& dropout, const Tensor& sum, const Tensor& amax = {});
/// y alone, again, into a fresh tensor and the statistics that are there.
Tensor take_norm_again(const StepContext& context, const Norm& norm, const UnitWeights& flat, const Tensor& x,
                       const NormResult& statistics);
void give(const StepContext& context, NormResult& result);

}  // namespace blipft
