// Parameter handles and small helpers of the models.
#include "models/blocks.h"

namespace blipft {

ActivationCheckpointing ActivationCheckpointing::from_name(const std::string& name) {
  if (name == "none") return {Kind::none};
  if (name == "half") return {Kind::half};
  if (name == "full") return {Kind::full};
  throw UserError(concat("train.act_ckpt: found ", name, ", known are none, half, full"));
}

Unit& Model::add_unit(const std::string& name, bool trainable) {
  units_.push_back(std::make_unique<Unit>(name));
  Unit& unit = *units_.back();
  unit.trainable = trainable;
  unit.index = static_cast<int64_t>(units_.size()) - 1;
  unit_list_.push_back(&unit);
  return unit;
}

int64_t Model::parameter_count() const {
  int64_t count = 0;
  for (const Unit* unit : unit_list_) count += unit->parameter_count();
  return count;
}

double Model::flops(int64_t batch_size, double text_rows) const {
  double total = 0;
  for (const Unit* unit : unit_list_)
    for (const Phase phase : {Phase::forward, Phase::loss, Phase::backward})
      total += unit_flops(*unit, phase, batch_size, text_rows);
  return total;
}

int64_t Model::trainable_parameter_count() const {
  int64_t count = 0;
  for (const Unit* unit : unit_list_)
    if (unit->trainable) count += unit->parameter_count();
  return count;
}

Linear add_linear(Unit& unit, const std::string& name, int64_t in, int64_t out, bool bias, float init_std) {
  return add_packed_linear(unit, {name}, in, out, bias, init_std);
}

Linear add_packed_linear(Unit& unit, const std::vector<std::string>& names, int64_t in, int64_t out_each, bool bias,
                         float init_std) {
  Linear linear{in, out_each * static_cast<int64_t>(names.size()), -1, -1};
  for (const std::string& name : names) {
    const int64_t offset = unit.add(name + ".weight", {out_each, in}, Init::normal(init_std), linear.weight >= 0);
    if (linear.weight < 0) linear.weight = offset;
  }
  if (!bias) return linear;
  for (const std::string& name : names) {
    const int64_t offset = unit.add(name + ".bias", {out_each}, Init::constant(0), linear.bias >= 0);
    if (linear.bias < 0) linear.bias = offset;
  }
  return linear;
}

Norm add_norm(Unit& unit, const std::string& name, int64_t size, float eps) {
  Norm norm{size, -1, -1, eps};
  norm.gamma = unit.add(name + ".weight", {size}, Init::constant(1));
  norm.beta = unit.add(name + ".bias", {size}, Init::constant(0));
  return norm;
}

void give(const StepContext& context, Tensor& tensor) {
  if (tensor) context.arena.give(tensor);
  tensor = {};
}

NormResult take_norm(const StepContext& context, const Norm& norm, const Tensor& flat, const Tensor& x) {
  Arena& arena = context.arena;
  NormResult result{arena.take(Owner::activations, "norm output", x.dtype, {x.rows(), norm.size}),
                    arena.take(Owner::activations, "norm statistics", DType::f32, {x.rows()}),
                    arena.take(Owner::activations, "norm statistics", DType::f32, {x.rows()})};
  context.ops.norm_forward({.x = x, .gamma = norm.g(flat), .beta = norm.b(flat), .eps = norm.eps, .y = result.y,
                            .mean = result.mean, .rstd = result.rstd},
                           context.stream);
  return result;
}

void give(const StepContext& context, NormResult& result) {
  give(context, result.y);
  give(context, result.mean);
  give(context, result.rstd);
}

void WeightGradients::fork() {
  context_.device.record(context_.forked, context_.stream);
  context_.device.wait(context_.side, context_.forked);
  forked_ = true;
}

void WeightGradients::add_bias(const Linear& linear, const Tensor& sums) {
  if (!gradient_) return;
  fork();
  const Tensor bias = linear.b(gradient_->flat);
  if (gradient_->accumulate) context_.ops.add(sums, bias, context_.side);
  else context_.ops.cast(sums, bias, context_.side);
}

void WeightGradients::add(const Linear& linear, const Tensor& dy, const Tensor& x, bool with_bias) {
  if (!gradient_) return;
  fork();
  context_.ops.linear_backward_weight({.dy = dy, .x = x, .dw = linear.w(gradient_->flat),
                                       .dbias = with_bias ? linear.b(gradient_->flat) : Tensor{},
                                       .accumulate = gradient_->accumulate},
                                      context_.side);
}

void WeightGradients::keep(Tensor tensor) {
  if (tensor) kept_.push_back(tensor);
}

void WeightGradients::join() {
  if (forked_) {
    context_.device.record(context_.joined, context_.side);
    context_.device.wait(context_.stream, context_.joined);
    forked_ = false;
  }
  for (Tensor& tensor : kept_) give(context_, tensor);
  kept_.clear();
}

}  // namespace blipft
