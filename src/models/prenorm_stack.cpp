// A stack of pre-norm layers: unit brackets and activation checkpointing.
#include "models/blocks.h"

namespace blipft {

Tensor PreNormStack::forward(const StepContext& context, const PreNormLayer::Call& call, Tensor x, bool save) {
  saved_.assign(layers.size(), {});
  for (size_t i = 0; i < layers.size(); ++i) {
    const PreNormLayer& layer = layers[i];
    const Tensor flat = context.units.acquire(*layer.unit);
    const ObservedPhase phase(context, Phase::forward, *layer.unit);
    if (save && static_cast<int64_t>(i) < checkpointed) {
      // Only x stays: backward computes the rest again from it.
      x = layer.forward(context, flat, call, x, saved_[i], true);
      layer.give_all_but_input(context, saved_[i]);
    } else {
      x = layer.forward(context, flat, call, x, saved_[i], save);
    }
    context.units.release(*layer.unit);
  }
  return x;
}

Tensor PreNormStack::backward(const StepContext& context, const PreNormLayer::Call& call, Tensor dy) {
  ResidualGradient gradient_of_x{dy, {}, {}};
  for (size_t i = layers.size(); i-- > 0;) {
    const PreNormLayer& layer = layers[i];
    const Tensor flat = context.units.acquire(*layer.unit);
    if (static_cast<int64_t>(i) < checkpointed) {
      const ObservedPhase phase(context, Phase::recompute, *layer.unit);
      layer.recompute(context, flat, call, saved_[i]);
    }
    const ObservedPhase phase(context, Phase::backward, *layer.unit);
    UnitGradient gradient;
    if (layer.unit->trainable) gradient = context.units.gradient(*layer.unit);
    gradient_of_x = layer.backward(context, flat, layer.unit->trainable ? &gradient : nullptr, call, gradient_of_x,
                                   saved_[i], i > 0 ? &layers[i - 1] : nullptr);
    context.units.release(*layer.unit);
    if (layer.unit->trainable) context.units.publish(*layer.unit);
  }
  return gradient_of_x.dy;
}

double PreNormLayer::forward_flops(int64_t batch, double tokens) const {
  const double rows = static_cast<double>(batch) * tokens, h = static_cast<double>(shape.hidden);
  const double products = 2 * rows * h * (4 * h + 2 * static_cast<double>(shape.inner));
  return products + 4 * rows * tokens * h * (shape.causal ? 0.5 : 1.0);
}

double PreNormLayer::recompute_flops(int64_t batch, double tokens) const {
  const double fc2_products = 2 * static_cast<double>(batch) * tokens * static_cast<double>(shape.hidden * shape.inner);
  return forward_flops(batch, tokens) - fc2_products;
}

}  // namespace blipft
