// Implements norms; see norm.h.
#include "models/blocks/norm.h"

namespace blipft {

namespace {

NormResult fresh(const StepContext& context, const Norm& norm, DType dtype, int64_t rows) {
  NormResult result;
  result.y = take(context, "norm output", dtype, {rows, norm.size});
  if (!norm.rms()) result.mean = take(context, "norm statistics", DType::f32, {rows});
  result.rstd = take(context, "norm statistics", DType::f32, {rows});
  return result;
}

}  // namespace

Norm add_norm(Unit& unit, const std::string& name, int64_t size, float eps) {
  Norm norm{size, -1, -1, eps};
  norm.gamma = unit.add(name + ".weight", {size}, Init::constant(1), false, ParameterKind::norm_or_bias);
  norm.beta = unit.add(name + ".bias", {size}, Init::constant(0), false, ParameterKind::norm_or_bias);
  return norm;
}

Norm add_rms_norm(Unit& unit, const std::string& name, int64_t size, float eps, RmsForm form) {
  const int64_t gamma =
      unit.add(name + ".weight", {size}, Init::constant(1 - form.offset), false, ParameterKind::norm_or_bias);
  return {size, gamma, -1, eps, form};
}

NormResult take_norm(const StepContext& context, const Norm& norm, const UnitWeights& flat, const Tensor& x,
                     const Tensor& amax) {
  const NormResult result = fresh(context, norm, x.dtype, x.rows());
  context.ops.norm_forward({.x = x, .gamma = norm.g(flat), .beta = norm.b(flat), .eps = norm.eps, .rms = norm.form,
                            .y = result.y, .amax = amax, .mean = result.mean, .rstd = result.rstd},
                           context.stream);
  return result;
}

NormResult take_norm_of_sum(const StepContext& context, const Norm& norm, const UnitWeights& flat, const Tensor& branch,
                            const Tensor& residual, const Dropout& dropout, const Tensor& sum, const Tensor& amax) {
  const NormResult result = fresh(context, norm, branch.dtype, branch.rows());
  context.ops.norm_forward({.x = branch, .residual = residual, .dropout = dropout, .sum = sum, .gamma = norm.g(flat),
                            .beta = norm.b(flat), .eps = norm.eps, .rms = norm.form, .y = result.y, .amax = amax,
                            .mean = result.mean, .rstd = result.rstd},
                           context.stream);
  return result;
}

Tensor take_norm_again(const StepContext& context, const Norm& norm, const UnitWeights& flat, const Tensor& x,
                       const NormResult& statistics) {
  const Tensor y = take(context, "norm output", x.dtype, x.shape);
  context.ops.norm_forward({.x = x, .gamma = norm.g(flat), .beta = norm.b(flat), .eps = norm.eps, .rms = norm.form,
                            .y = y, .mean = statistics.mean, .rstd = statistics.rstd},
                           context.stream);
  return y;
}

void give(const StepContext& context, NormResult& result) {
  give(context, result.y);
  give(context, result.mean);
  give(context, result.rstd);
}

void Norm::backward(const UnitBackward& pass, NormBackward args) const {
  args.gamma = g(pass.flat);
  if (args.y) args.beta = b(pass.flat);
  args.dgamma = pass.gradient(gamma, {size});
  if (!rms()) args.dbeta = pass.gradient(beta, {size});
  args.accumulate = pass.accumulate();
  args.rms = form;
  pass.context.ops.norm_backward(args, pass.context.stream);
}

}  // namespace blipft
