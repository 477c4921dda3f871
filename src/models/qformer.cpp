// The Q-Former as a whole: query tokens in, attended queries out. Legend in qformer.h.
#include "models/qformer.h"

namespace blipft {

Dropout QFormer::input_dropout(const StepContext& context, const QFormerLayer::Call& call) const {
  return {context.training ? shape.hidden_dropout : 0, dropout_site, context.seed, call.sample_keys, shape.queries};
}

// The norm runs once over the [Q, D] query tokens, which are the same for every sample; dropout differs.
Tensor QFormer::forward(const StepContext& context, const QFormerLayer::Call& call, bool save) {
  saved_.assign(layers.size(), {});
  Tensor x;
  {
    const Tensor flat = context.units.acquire(*embeddings);
    const ObservedPhase phase(context, Phase::forward, *embeddings);
    NormResult normed = take_norm(context, input_norm, flat, flat.part(query_tokens, {shape.queries, shape.hidden}));
    Taken tiled(context, "queries", flat.dtype, {call.batch * shape.queries, shape.hidden});
    context.ops.tile_rows(normed.y, tiled, context.stream);
    if (const Dropout dropout = input_dropout(context, call))
      context.ops.dropout_add({.x = tiled, .dropout = dropout, .y = tiled}, context.stream);
    give(context, normed);
    x = tiled.keep();
    context.units.release(*embeddings);
  }
  for (size_t i = 0; i < layers.size(); ++i) {
    const QFormerLayer& layer = layers[i];
    const UnitPass pass = acquire(context, *layer.unit);
    const ObservedPhase phase(context, Phase::forward, *layer.unit);
    x = layer.forward(pass, call, x, saved_[i], save);
    if (save && static_cast<int64_t>(i) < checkpointed) layer.drop_all_but_input(context, saved_[i]);
    release(context, *layer.unit);
  }
  return x;
}

void QFormer::backward(const StepContext& context, const QFormerLayer::Call& call, Tensor dy, const Tensor& dpicture) {
  QFormerLayer::PictureGradient picture{dpicture};
  for (size_t i = layers.size(); i-- > 0;) {
    const QFormerLayer& layer = layers[i];
    const UnitPass pass = acquire(context, *layer.unit);
    if (static_cast<int64_t>(i) < checkpointed) {
      const ObservedPhase phase(context, Phase::recompute, *layer.unit);
      Tensor y = layer.forward(pass, call, saved_[i].x, saved_[i], true);
      give(context, y);
    }
    const ObservedPhase phase(context, Phase::backward, *layer.unit);
    dy = layer.backward(pass, gradients(context, *layer.unit), call, dy, saved_[i], picture);
    release(context, *layer.unit);
    publish(context, *layer.unit);
  }
  if (dpicture && !picture.started) context.device.zero(dpicture.data, dpicture.bytes(), context.stream);
  if (embeddings->trainable) {
    const Tensor flat = context.units.acquire(*embeddings);
    const ObservedPhase phase(context, Phase::backward, *embeddings);
    const UnitGradient gradient = context.units.gradient(*embeddings);
    const Tensor tokens = flat.part(query_tokens, {shape.queries, shape.hidden});
    if (shape.hidden_dropout > 0)
      context.ops.dropout_add({.x = dy, .dropout = input_dropout(context, call), .y = dy}, context.stream);
    Taken dnormed(context, "gradients", flat.dtype, {shape.queries, shape.hidden});
    context.ops.sum_tiles(dy, dnormed, false, context.stream);
    NormResult normed = take_norm(context, input_norm, flat, tokens);
    context.ops.norm_backward({.dy = dnormed, .x = tokens, .mean = normed.mean, .rstd = normed.rstd,
                               .gamma = input_norm.g(flat), .dgamma = input_norm.g(gradient.flat),
                               .dbeta = input_norm.b(gradient.flat), .accumulate = gradient.accumulate, .dx = dnormed},
                              context.stream);
    give(context, normed);
    context.ops.sum_tiles(dnormed, gradient.flat.part(query_tokens, {shape.queries, shape.hidden}), gradient.accumulate,
                          context.stream);
    context.units.release(*embeddings);
    context.units.publish(*embeddings);
  }
  give(context, dy);
}

double QFormerLayer::forward_flops(int64_t batch, int64_t picture_tokens) const {
  const double rows = static_cast<double>(batch * shape.queries), d = static_cast<double>(shape.hidden);
  const double keys = static_cast<double>(batch * picture_tokens), e = static_cast<double>(shape.encoder_hidden);
  const double own =
      2 * rows * d * (4 * d + 2 * static_cast<double>(shape.inner)) + 4 * rows * static_cast<double>(shape.queries) * d;
  if (!cross.present) return own;
  return own + 4 * rows * d * d + 4 * keys * e * d + 4 * rows * static_cast<double>(picture_tokens) * d;
}

}  // namespace blipft
