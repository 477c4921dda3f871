// Implements LinearLayer and the side stream of weight gradients; see linear_layer.h.
#include "models/blocks/linear_layer.h"

namespace blipft {

UnitPass acquire(const StepContext& context, const Unit& unit, int64_t rows) {
  UnitPass pass{context, {}, {}, {}, &unit};
  const bool few = rows > 0 && rows <= context.max_coded_rows;
  const AcceptedEncodings accepted = context.fp8 ? AcceptedEncodings::fp8 : few ? AcceptedEncodings::blocks : AcceptedEncodings::none;
  if (accepted == AcceptedEncodings::blocks) pass.coded = &unit;
  if (accepted == AcceptedEncodings::none) pass.flat = context.units.acquire(unit);
  else pass.flat = context.units.acquire_quantized(unit, accepted);
  if (unit.adapter) pass.adapter = context.units.acquire(*unit.adapter);
  return pass;
}

void release(const StepContext& context, const Unit& unit) {
  context.units.release(unit);
  if (unit.adapter) context.units.release(*unit.adapter);
}

UnitGradients gradients(const StepContext& context, const Unit& unit) {
  UnitGradients result;
  if (unit.trainable) result.own = context.units.gradient(unit);
  if (unit.adapter && unit.adapter->trainable) result.adapter = context.units.gradient(*unit.adapter);
  return result;
}

void publish(const StepContext& context, const Unit& unit) {
  if (unit.trainable) context.units.publish(unit);
  if (unit.adapter && unit.adapter->trainable) context.units.publish(*unit.adapter);
}

Stream UnitBackward::weight_stream() {
  if (weight_stream_ == WeightStream::main) return context.stream;
  context.device.record(context.forked, context.stream);
  context.device.wait(context.side, context.forked);
  forked_ = true;
  return context.side;
}

void UnitBackward::keep(Tensor tensor) {
  if (tensor) kept_.push_back(tensor);
}

void UnitBackward::join() {
  if (forked_) {
    context.device.record(context.joined, context.side);
    context.device.wait(context.stream, context.joined);
    forked_ = false;
  }
  for (const Tensor& tensor : kept_) context.arena.give(tensor);
  kept_.clear();
  reduced_.clear();
  in_fp8_.clear();
}

const Fp8Values& UnitBackward::in_fp8(const MatrixView& dy, int64_t weight) {
  for (const auto& [known, quantized] : in_fp8_)
    if (known.data == dy.data && known.shape == dy.shape) return quantized;
  const Fp8Values made = context.fp8->cast(context, *unit, weight, Fp8Factor::dy, dy, Fp8Seen::never, Fp8Layouts::both,
                                          context.stream);
  keep(made);
  return in_fp8_.emplace_back(dy, made).second;
}

Tensor UnitBackward::reduced(const LinearAdapter& of, const MatrixView& dy) {
  for (const auto& [known, tensor] : reduced_)
    if (known == &of) return tensor;
  const Tensor tensor = of.reduce(*this, dy);
  keep(tensor);
  reduced_.push_back({&of, tensor});
  return tensor;
}

void LinearLayer::attach(std::shared_ptr<const LinearAdapter> adapter, LinearPart to) {
  BLIPFT_CHECK(to.first >= 0 && to.count > 0 && to.first + to.count <= out, "outputs ", to.first, " to ",
               to.first + to.count, " of a linear layer with ", out);
  adapters.push_back({std::move(adapter), to});
}

Fp8Matrix LinearLayer::stored_values(const UnitPass& pass) const {
  if (!pass.context.fp8 || !pass.unit) return {};
  Fp8Matrix found = pass.context.units.fp8_values(*pass.unit, weight, out * in);
  if (found) found.quantized = found.quantized.view({out, in});
  return found;
}

// For products that do not use fp8. If the weight is stored only in fp8, it is decoded for this product.
template <class Product>
void LinearLayer::in_compute_dtype(const UnitPass& pass, Product product) const {
  const Fp8Matrix stored = stored_values(pass);
  if (!stored) return product(w(pass.flat));
  Arena& arena = pass.context.arena;
  const Tensor values = arena.take(Owner::parameters, "decoded weights", pass.flat.dtype(), {out, in});
  pass.context.ops.decode_fp8({stored.quantized.view({out * in}), stored.scale}, values.view({out * in}), pass.context.stream);
  product(values);
  arena.give(values);
}

// Computes the product without activation, with the weight as it is stored if the unit was acquired so.
void LinearLayer::multiply(const UnitPass& pass, LinearForward args, Fp8Seen later) const {
  args.bias = b(pass.flat);
  if (pass.coded) {
    if (const std::optional<Quantized> quantized = pass.context.units.quantized(*pass.coded, weight, out * in)) {
      BLIPFT_CHECK(args.scale == 1 && args.activation == Activation::none, "a product with codes, scaled or activated");
      return pass.context.ops.coded_linear(
          {.x = args.x, .w = *quantized, .bias = args.bias, .residual = args.residual, .y = args.y}, pass.context.stream);
    }
  }
  args.w = w(pass.flat);
  const StepContext& context = pass.context;
  if (!in_fp8(pass))
    return in_compute_dtype(pass, [&](const Tensor& values) {
      args.w = values;
      context.ops.linear_forward(args, context.stream);
    });
  const Fp8Seen seen = pass.again ? Fp8Seen::same : Fp8Seen::never;
  const bool keep = later == Fp8Seen::same && pass.keeps && pass.unit->trainable && adapters.empty();
  const Fp8Values x = keep ? context.fp8->cast_to_keep(context, *pass.unit, weight, args.x, seen)
                          : context.fp8->cast(context, *pass.unit, weight, Fp8Factor::x, args.x, seen, Fp8Layouts::plain, context.stream);
  const Fp8Values weights = context.fp8->weight(context, *pass.unit, weight, args.w, stored_values(pass), Fp8Layouts::plain);
  args.x8 = x.plain, args.w8 = weights.plain;
  context.ops.linear_forward(args, context.stream);
  for (const Fp8Values* made : {&weights, &x}) each_owned(*made, [&](const Tensor& tensor) { context.arena.give(tensor); });
}

void LinearLayer::forward(const UnitPass& pass, LinearForward args, Fp8Seen later) const {
  Ops& ops = pass.context.ops;
  if (adapters.empty() && !pass.coded) return multiply(pass, args, later);
  const Activation activation = std::exchange(args.activation, Activation::none);
  const MatrixView y = args.y;
  if (args.pre_activation) args.y = std::exchange(args.pre_activation, {});
  // An adapter that covers all columns runs first: the layer's product then adds its output as a residual, without a
  // separate pass.
  const bool first = adapters.size() == 1 && !args.residual && adapters[0].part.count == out && adapters[0].adapter->covers(out);
  if (first) {
    adapters[0].adapter->forward(pass, args.x, {}, args.y);
    args.residual = args.y;
  }
  multiply(pass, args, later);
  for (const Attached& a : adapters) {
    const MatrixView part = args.y.columns(a.part.first, a.part.count);
    if (!first) a.adapter->forward(pass, args.x, part, part);
  }
  if (activation != Activation::none) ops.activate(args.y.tensor(), y.tensor(), activation, pass.context.stream);
}

BiasGradient LinearLayer::bias_gradient(const UnitBackward& pass) const {
  if (bias < 0 || !trained(pass)) return {};
  return {pass.gradient(bias, {out}), pass.accumulate()};
}

BiasGradient LinearLayer::bias_gradient_ahead(const StepContext& context, const Unit& unit) const {
  if (bias < 0 || !unit.trainable) return {};
  return {.sums = context.arena.take(Owner::activations, "gradients", DType::f32, {out}), .ahead = true};
}

void LinearLayer::input_gradient(UnitBackward& pass, LinearBackwardInput args) const {
  for (const Attached& a : adapters) {
    const MatrixView dy = args.dy.columns(a.part.first, a.part.count);
    a.adapter->input_gradient(pass, dy, pass.reduced(*a.adapter, dy), args.add, args.dx);
    args.add = args.dx;
  }
  args.w = w(pass.flat);
  const StepContext& context = pass.context;
  if (!in_fp8(pass))
    return in_compute_dtype(pass, [&](const Tensor& values) {
      args.w = values;
      context.ops.linear_backward_input(args, context.stream);
    });
  // If no weight gradient reads dy, dy may change after this product, so its quantized values serve only this product.
  const Fp8Values own = trained(pass) ? Fp8Values{}
                                     : context.fp8->cast(context, *pass.unit, weight, Fp8Factor::dy, args.dy, Fp8Seen::never,
                                                         Fp8Layouts::plain, context.stream);
  args.dy8 = trained(pass) ? pass.in_fp8(args.dy, weight).plain : own.plain;
  const Fp8Values weights = context.fp8->weight(context, *pass.unit, weight, args.w, stored_values(pass), Fp8Layouts::transposed);
  args.wt8 = weights.transposed;
  context.ops.linear_backward_input(args, context.stream);
  for (const Fp8Values* made : {&weights, &own}) each_owned(*made, [&](const Tensor& tensor) { context.arena.give(tensor); });
}

void LinearLayer::weight_gradient(UnitBackward& pass, const MatrixView& dy, const MatrixView& x,
                                  const BiasGradient& summed, Fp8Seen seen) const {
  Ops& ops = pass.context.ops;
  if (trained(pass)) {
    const bool fp8 = in_fp8(pass);
    const Fp8Matrix dyt8 = fp8 ? pass.in_fp8(dy, weight).transposed : Fp8Matrix{};
    const Stream stream = pass.weight_stream();
    const Tensor dbias = bias < 0 ? Tensor{} : pass.gradient(bias, {out});
    LinearBackwardWeight args{.dy = dy, .x = x, .dw = pass.gradient(weight, {out, in}),
                              .dbias = summed ? Tensor{} : dbias, .accumulate = pass.accumulate()};
    if (fp8) {
      Fp8Values quantized = pass.context.fp8->take_input(*pass.unit, weight);
      if (!quantized.transposed)
        quantized = pass.context.fp8->cast(pass.context, *pass.unit, weight, Fp8Factor::x, x, seen, Fp8Layouts::transposed, stream);
      pass.keep(quantized);
      args.dyt8 = dyt8, args.xt8 = quantized.transposed;
    }
    ops.linear_backward_weight(args, stream);
    if (summed.ahead && pass.accumulate()) ops.add(summed.sums, dbias, stream);
    if (summed.ahead && !pass.accumulate()) ops.cast(summed.sums, dbias, stream);
  }
  if (summed.ahead) pass.keep(summed.sums);
  for (const Attached& a : adapters) {
    const MatrixView columns = dy.columns(a.part.first, a.part.count);
    a.adapter->weight_gradient(pass, columns, pass.reduced(*a.adapter, columns), x);
  }
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
  std::vector<std::string> modules;
  for (const PackedLinear& layer : layers) {
    const int64_t offset =
        unit.add(layer.name + ".weight", {layer.out, in}, Init::normal(layer.init_std > 0 ? layer.init_std : init_std),
                 linear.weight >= 0, ParameterKind::layer_weight);
    if (linear.weight < 0) linear.weight = offset;
    unit.order_rows(layer.name + ".weight", layer.rows);
    linear.parts.push_back({linear.out, layer.out, layer.rows});
    linear.out += layer.out;
    modules.push_back(layer.name);
  }
  unit.add_matrix({linear.weight, in, linear.out, std::move(modules)});
  if (!bias) return linear;
  for (const PackedLinear& layer : layers) {
    const int64_t offset = unit.add(layer.name + ".bias", {layer.out}, Init::constant(0), linear.bias >= 0,
                                    ParameterKind::norm_or_bias);
    unit.order_rows(layer.name + ".bias", layer.rows);
    if (linear.bias < 0) linear.bias = offset;
  }
  return linear;
}

}  // namespace blipft
