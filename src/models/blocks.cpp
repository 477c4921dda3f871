// Parameter handles and small helpers of the models.
#include "models/blocks.h"

#include <algorithm>

namespace blipft {

ActivationCheckpointing ActivationCheckpointing::from_name(const std::string& name) {
  if (name == "none") return {Kind::none};
  if (name == "half") return {Kind::half};
  if (name == "full") return {Kind::full};
  throw UserError(concat("train.act_ckpt: found ", name, ", known are none, half, full"));
}

const ParameterGroup& Model::add_group(const ModelSettings& settings, const std::string& name, Source source) {
  const bool frozen = std::find(settings.freeze.begin(), settings.freeze.end(), name) != settings.freeze.end();
  groups_.push_back({name, !frozen && (!settings.adapter.any() || name == kAdapterGroup), source});
  return groups_.back();
}

const ParameterGroup* Model::add_adapter_group(const ModelSettings& settings) {
  if (!settings.adapter.any()) return nullptr;
  return &add_group(settings, kAdapterGroup, settings.adapter.saved ? Source::adapter : Source::fresh);
}

Unit& Model::add_unit(const std::string& name, const ParameterGroup& group) {
  units_.push_back(std::make_unique<Unit>(name, group));
  Unit& unit = *units_.back();
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

LinearLayer add_linear(Unit& unit, const std::string& name, int64_t in, int64_t out, bool bias, float init_std) {
  return add_packed_linear(unit, {PackedLinear{name, out}}, in, bias, init_std);
}

LinearLayer add_packed_linear(Unit& unit, const std::vector<std::string>& names, int64_t in, int64_t out_each,
                              bool bias, float init_std) {
  std::vector<PackedLinear> layers;
  for (const std::string& name : names) layers.push_back({name, out_each});
  return add_packed_linear(unit, layers, in, bias, init_std);
}

LinearLayer add_packed_linear(Unit& unit, const std::vector<PackedLinear>& layers, int64_t in, bool bias,
                              float init_std) {
  LinearLayer linear{.in = in};
  for (const PackedLinear& layer : layers) {
    const int64_t offset =
        unit.add(layer.name + ".weight", {layer.out, in}, Init::normal(init_std), linear.weight >= 0,
                 ParameterKind::layer_weight);
    if (linear.weight < 0) linear.weight = offset;
    linear.parts.push_back({linear.out, layer.out});
    linear.out += layer.out;
  }
  if (!bias) return linear;
  for (const PackedLinear& layer : layers) {
    const int64_t offset = unit.add(layer.name + ".bias", {layer.out}, Init::constant(0), linear.bias >= 0);
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

Norm add_rms_norm(Unit& unit, const std::string& name, int64_t size, float eps) {
  return {size, unit.add(name + ".weight", {size}, Init::constant(1)), -1, eps};
}

void give(const StepContext& context, Tensor& tensor) {
  if (tensor) context.arena.give(tensor);
  tensor = {};
}

NormResult take_norm(const StepContext& context, const Norm& norm, const Tensor& flat, const Tensor& x) {
  Arena& arena = context.arena;
  NormResult result;
  result.y = arena.take(Owner::activations, "norm output", x.dtype, {x.rows(), norm.size});
  if (!norm.rms()) result.mean = arena.take(Owner::activations, "norm statistics", DType::f32, {x.rows()});
  result.rstd = arena.take(Owner::activations, "norm statistics", DType::f32, {x.rows()});
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

void Norm::backward(const UnitBackward& pass, NormBackward args) const {
  args.gamma = g(pass.flat);
  if (args.y) args.beta = b(pass.flat);
  args.dgamma = pass.gradient(gamma, {size});
  if (!rms()) args.dbeta = pass.gradient(beta, {size});
  args.accumulate = pass.accumulate();
  pass.context.ops.norm_backward(args, pass.context.stream);
}

}  // namespace blipft
