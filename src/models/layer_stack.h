// A stack of equal layers over the residual stream: unit brackets and activation checkpointing.
#pragma once

#include <utility>
#include <vector>

#include "models/blocks.h"

namespace blipft {

/// The gradient of the residual stream on its way down, and what its last writer made of it for the linear layer whose
/// output was added there: the layer below's fc2, or a projection.
struct ResidualGradient {
  Tensor dy;                               // [M, H]
  Tensor dropped;                          // [M, H], optional: dy through the dropout of that layer's output
  BiasGradient bias;                       // of that layer, as the writer was handed it
  const Tensor& of_output() const { return dropped ? dropped : dy; }
};

/// Of a class Layer with `unit`, types `Saved` (what backward needs, its input `x` among it) and `Call` (what varies from
/// call to call), and
///   Tensor forward(pass, call, x, saved, save) const: takes x over (it ends in `saved`, or is given back when
///     `save` is false); the result is the caller's.
///   void give_all_but_input(context, saved) const: leaves what recompute() starts from.
///   void recompute(pass, call, saved) const: computes the rest of what backward needs again.
///   ResidualGradient backward(pass, gradients, call, dy, saved, below) const: takes dy and what was saved over; the
///     result, of x, is the caller's. `below`, the layer that made x, is null for the first one: the result holds what
///     its backward begins with.
template <class Layer>
class LayerStack {
 public:
  using Call = typename Layer::Call;
  std::vector<Layer> layers;
  int64_t checkpointed = 0;                // the first layers recompute

  Tensor forward(const StepContext& context, const Call& call, Tensor x, bool save) {
    saved_.assign(layers.size(), {});
    for (size_t i = 0; i < layers.size(); ++i) {
      const Layer& layer = layers[i];
      const UnitPass pass = open(context, call, layer);
      const ObservedPhase phase(context, Phase::forward, *layer.unit);
      if (save && recomputes(i)) {
        // Only x stays: backward computes the rest again from it.
        x = layer.forward(pass, call, x, saved_[i], true);
        layer.give_all_but_input(context, saved_[i]);
        if (in_host(context, i)) context.in_host->put(std::exchange(saved_[i].x, {}));
      } else {
        x = layer.forward(pass, call, x, saved_[i], save);
      }
      release(context, *layer.unit);
    }
    return x;
  }

  Tensor backward(const StepContext& context, const Call& call, Tensor dy) {
    ResidualGradient gradient_of_x{dy, {}, {}};
    for (size_t i = layers.size(); i-- > 0;) {
      const Layer& layer = layers[i];
      if (in_host(context, i)) saved_[i].x = context.in_host->fetch();
      if (i > 0 && in_host(context, i - 1)) context.in_host->prefetch();
      const UnitPass pass = open(context, call, layer);
      if (recomputes(i)) {
        const ObservedPhase phase(context, Phase::recompute, *layer.unit);
        layer.recompute(pass, call, saved_[i]);
      }
      const ObservedPhase phase(context, Phase::backward, *layer.unit);
      gradient_of_x = layer.backward(pass, gradients(context, *layer.unit), call, gradient_of_x, saved_[i],
                                     i > 0 ? &layers[i - 1] : nullptr);
      release(context, *layer.unit);
      publish(context, *layer.unit);
    }
    return gradient_of_x.dy;
  }

 private:
  static UnitPass open(const StepContext& context, const Call& call, const Layer& layer) {
    UnitPass pass = acquire(context, *layer.unit);
    pass.rows = {.seed = context.seed, .sample_keys = call.sample_keys, .rows_per_sample = call.tokens,
                 .packing = call.packing};
    return pass;
  }
  // The last layer's backward comes next: its input would be back before it has gone.
  bool in_host(const StepContext& context, size_t i) const {
    return context.in_host && recomputes(i) && i + 1 < layers.size();
  }
  bool recomputes(size_t i) const { return static_cast<int64_t>(i) < checkpointed; }
  std::vector<typename Layer::Saved> saved_;
};

}  // namespace blipft
