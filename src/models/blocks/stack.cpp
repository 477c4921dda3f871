// Implements layers and their stack; see stack.h.
#include "models/blocks/stack.h"

#include <algorithm>
#include <utility>

namespace blipft {

namespace {

/// Returns the number of a sample's rows that a sublayer processes.
double rows_of(const Sublayer& sublayer, double tokens) {
  return sublayer.range ? sublayer.range->inside(tokens) : tokens;
}

UnitPass open(const StepContext& context, const LayerCall& call, const Layer& layer, int64_t rows = 0) {
  UnitPass pass = acquire(context, *layer.unit, rows);
  pass.rows = {.seed = context.seed, .sample_keys = call.sample_keys, .rows_per_sample = call.tokens,
               .packing = call.packing};
  return pass;
}

}  // namespace

Sublayer::Placement Layer::placement_of(size_t i) const {
  return {.last = i + 1 == sublayers.size(), .makes_input_again = makes_input_again(i)};
}

bool Layer::makes_input_again(size_t i) const {
  if (i == 0) return false;
  const Sublayer& below = sublayers[i - 1];
  return below.after && below.after_sum && below.range == sublayers[i].range;
}

Tensor Layer::forward(const UnitPass& pass, const LayerCall& call, Tensor x, Saved& saved, bool save) const {
  saved.resize(sublayers.size());
  ResidualStream stream{.x = x};
  for (size_t i = 0; i < sublayers.size(); ++i)
    stream = sublayers[i].forward(pass, call, stream, placement_of(i), saved[i], save);
  return stream.x;
}

void Layer::give_all_but_input(const StepContext& context, Saved& saved) const {
  const Tensor x = std::exchange(saved[0].x, {});
  for (Sublayer::Saved& one : saved) give(context, one);
  saved[0].x = x;
}

void Layer::recompute(const UnitPass& pass, const LayerCall& call, Saved& saved) const {
  ResidualStream stream{.x = saved[0].x, .saved = true};
  const size_t last = sublayers.size() - 1;
  for (size_t i = 0; i < last; ++i)
    stream = sublayers[i].forward(pass, call, stream, placement_of(i), saved[i], true);
  sublayers[last].recompute(pass, call, stream, placement_of(last), saved[last]);
}

ResidualGradient Layer::backward(const UnitPass& unit_pass, const UnitGradients& gradients, const LayerCall& call,
                                 ResidualGradient dy, Saved& saved, const Layer* below) const {
  UnitBackward pass(unit_pass, gradients);
  std::vector<Tensor> inputs(sublayers.size());
  for (size_t i = 1; i < sublayers.size(); ++i)
    if (makes_input_again(i)) inputs[i] = sublayers[i - 1].output_again(pass, saved[i - 1]);
  for (size_t i = sublayers.size(); i-- > 0;) {
    Sublayer::Below of;
    if (i > 0) of.sublayer = &sublayers[i - 1];
    else if (below) of = {&below->sublayers.back(), below->unit};
    dy = sublayers[i].backward(pass, call, dy, saved[i], inputs[i], of);
  }
  pass.join();
  return dy;
}

Block::Flops Layer::flops(int64_t batch, double tokens, double memory_tokens) const {
  Block::Flops sum;
  for (const Sublayer& sublayer : sublayers) {
    const Block::Flops one = sublayer.block->forward_flops(batch, rows_of(sublayer, tokens), memory_tokens);
    sum.products += one.products, sum.memory_products += one.memory_products, sum.attention += one.attention;
  }
  return sum;
}

double Layer::forward_flops(int64_t batch, double tokens, double memory_tokens) const {
  return flops(batch, tokens, memory_tokens).all();
}

double Layer::recompute_flops(int64_t batch, double tokens, double memory_tokens) const {
  const double all = forward_flops(batch, tokens, memory_tokens);
  if (sublayers.back().after) return all;
  const LinearLayer& left_out = sublayers.back().block->last();
  return all - 2 * static_cast<double>(batch) * rows_of(sublayers.back(), tokens) *
                   static_cast<double>(left_out.in * left_out.out);
}

// Scores that attention's backward recomputes do not count.
double Layer::backward_flops(int64_t batch, double tokens, bool trained, double memory_tokens,
                             bool memory_gradient) const {
  const Block::Flops forward = flops(batch, tokens, memory_tokens);
  return (trained ? 2 : 1) * forward.products + ((trained ? 1 : 0) + (memory_gradient ? 1 : 0)) * forward.memory_products +
         2 * forward.attention;
}

// Computes the scores of relative positions from the table in the first layer's unit, which `pass` has acquired.
void Stack::make_relative(const UnitPass& pass) {
  RelativeBias args = relative->rule;
  args.table = relative_table(pass.flat);
  args.scores.values = take(pass.context, "relative positions", DType::f32, {relative->heads, args.scores.columns()});
  pass.context.ops.relative_bias_forward(args, pass.context.stream);
  scores_ = args.scores;
}

// Returns zeros if the table is trained, else an absent tensor.
Tensor Stack::relative_gradient(const StepContext& context) const {
  if (!relative || !layers.front().unit->trainable) return {};
  const Tensor gradient = take(context, "gradients", DType::f32, scores_.values.shape);
  context.device.zero(gradient.data, gradient.bytes(), context.stream);
  return gradient;
}

void Stack::relative_backward(const StepContext& context, const UnitGradient& gradient, const Tensor& scores) const {
  RelativeBias args = relative->rule;
  args.table = relative_table(gradient.flat);
  args.scores.values = scores;
  args.accumulate = gradient.accumulate;
  context.ops.relative_bias_backward(args, context.stream);
}

Tensor Stack::forward(const StepContext& context, const LayerCall& call, Tensor x, bool save) {
  saved_.assign(layers.size(), {});
  for (size_t i = 0; i < layers.size(); ++i) {
    const Layer& layer = layers[i];
    UnitPass pass = open(context, call, layer, save ? 0 : x.rows());
    pass.keeps = save && !recomputes(i);
    const ObservedPhase phase(context, Phase::forward, *layer.unit);
    if (relative && i == 0) make_relative(pass);
    LayerCall of_layer = call;
    of_layer.relative = scores_;
    if (call.decoding) {
      of_layer.cache = &call.decoding->layers.at(i);
      if (!call.decoding->memory_layers.empty()) of_layer.memory_cache = &call.decoding->memory_layers.at(i);
    }
    x = layer.forward(pass, of_layer, x, saved_[i], save);
    if (call.added && i < call.added->of_layer.size()) {
      context.ops.add_rows(call.added->of_layer[i], call.added->at, x, context.stream);
      give(context, call.added->of_layer[i]);
    }
    if (save && recomputes(i)) {           // keeps only x, from which backward recomputes the rest
      layer.give_all_but_input(context, saved_[i]);
      if (in_host(context, i)) context.in_host->put(std::exchange(saved_[i][0].x, {}));
    }
    release(context, *layer.unit);
  }
  if (!save) give(context, scores_.values);
  return x;
}

Tensor Stack::backward(const StepContext& context, const LayerCall& of_stack, Tensor dy) {
  ResidualGradient gradient_of_x{.dy = dy};
  LayerCall call = of_stack;
  call.relative = scores_;
  call.relative_gradient = relative_gradient(context);
  for (size_t i = layers.size(); i-- > 0;) {
    const Layer& layer = layers[i];
    if (in_host(context, i)) saved_[i][0].x = context.in_host->fetch();
    if (i > 0 && in_host(context, i - 1)) context.in_host->prefetch();
    const UnitPass pass = open(context, call, layer);
    if (recomputes(i)) {
      const ObservedPhase phase(context, Phase::recompute, *layer.unit);
      UnitPass again = pass;
      again.again = again.keeps = true;
      layer.recompute(again, call, saved_[i]);
    }
    const ObservedPhase phase(context, Phase::backward, *layer.unit);
    if (call.added && i < call.added->of_layer.size()) {
      const Tensor& dx = gradient_of_x.dy;
      call.added->of_layer[i] = take(context, "gradients", dx.dtype, {call.added->at.numel(), dx.cols()});
      context.ops.gather_rows(dx, call.added->at, call.added->of_layer[i], context.stream);
    }
    const UnitGradients of_unit = gradients(context, *layer.unit);
    gradient_of_x = layer.backward(pass, of_unit, call, gradient_of_x, saved_[i], i > 0 ? &layers[i - 1] : nullptr);
    if (i == 0 && call.relative_gradient) relative_backward(context, *of_unit.own, call.relative_gradient);
    release(context, *layer.unit);
    publish(context, *layer.unit);
  }
  give(context, call.relative_gradient);
  give(context, scores_.values);
  return gradient_of_x.dy;
}

const Layer* Stack::layer_of(const Unit& unit) const {
  const auto found = std::find_if(layers.begin(), layers.end(), [&](const Layer& layer) { return layer.unit == &unit; });
  return found == layers.end() ? nullptr : &*found;
}

std::vector<int64_t> Stack::cache_widths() const {
  std::vector<int64_t> widths;
  for (const Layer& layer : layers) {
    widths.push_back(0);
    for (const Sublayer& sublayer : layer.sublayers) widths.back() = std::max(widths.back(), sublayer.block->cache_width());
  }
  return widths;
}

std::vector<int64_t> Stack::memory_widths() const {
  std::vector<int64_t> widths;
  for (const Layer& layer : layers) {
    widths.push_back(0);
    for (const Sublayer& sublayer : layer.sublayers) widths.back() = std::max(widths.back(), sublayer.block->memory_width());
  }
  return widths;
}

bool Stack::trained() const {
  return adapted() || std::any_of(layers.begin(), layers.end(), [](const Layer& layer) { return layer.unit->trainable; });
}

bool Stack::adapted() const {
  return std::any_of(layers.begin(), layers.end(), [](const Layer& layer) { return layer.unit->adapter != nullptr; });
}

}  // namespace blipft
