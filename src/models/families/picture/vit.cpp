// Builds the vision tower from blocks; see vit.h.
#include "models/families/picture/vit.h"

#include <algorithm>

#include "blipft/patch_ops.h"
#include "models/blocks/attention.h"
#include "models/blocks/mlp.h"

namespace blipft {

Vit::Vit(const VitShape& shape, const std::string& root, const ModelSettings& settings, const AddUnit& add_unit)
    : shape_(shape), compute_(settings.compute) {
  add_embeddings(root, add_unit);
  for (int64_t i = 0; i < shape.layers; ++i)
    add_layer(concat(root, "encoder.layers.", i, "."), add_unit(concat("vision.layers.", i)));
  layers_.checkpointed = settings.checkpointing.layers_of(shape.layers);
  norm_unit_ = &add_unit("vision.norm");
  norm_ = add_norm(*norm_unit_, root + "post_layernorm", shape.hidden, shape.norm_eps);
}

void Vit::add_embeddings(const std::string& root, const AddUnit& add_unit) {
  const VitShape& v = shape_;
  const Init init = Init::normal(v.init_std);
  embeddings_ = &add_unit("vision.embeddings");
  class_embedding_ = embeddings_->add(root + "embeddings.class_embedding", {1, 1, v.hidden}, init);
  positions_ = embeddings_->add(root + "embeddings.position_embedding", {1, v.tokens(), v.hidden}, init);
  patch_embedding_ = {3 * v.patch * v.patch, v.hidden, 0, 0};
  patch_embedding_.weight =
      embeddings_->add(root + "embeddings.patch_embedding.weight", {v.hidden, 3, v.patch, v.patch}, init);
  patch_embedding_.bias = embeddings_->add(root + "embeddings.patch_embedding.bias", {v.hidden}, Init::constant(0),
                                               false, ParameterKind::norm_or_bias);
}

void Vit::add_layer(const std::string& name, Unit& unit) {
  const VitShape& v = shape_;
  const Norm norm1 = add_norm(unit, name + "layer_norm1", v.hidden, v.norm_eps);
  LinearLayer qkv = add_linear(unit, name + "self_attn.qkv", v.hidden, 3 * v.hidden, v.qkv_bias, v.init_std);
  LinearLayer projection = add_linear(unit, name + "self_attn.projection", v.hidden, v.hidden, true, v.init_std);
  const Norm norm2 = add_norm(unit, name + "layer_norm2", v.hidden, v.norm_eps);
  LinearLayer fc1 = add_linear(unit, name + "mlp.fc1", v.hidden, v.inner, true, v.init_std);
  LinearLayer fc2 = add_linear(unit, name + "mlp.fc2", v.inner, v.hidden, true, v.init_std);
  const Attention::Shape heads{.heads = v.heads, .kv_heads = v.heads, .head_size = v.hidden / v.heads};
  layers_.layers.push_back(
      {&unit,
       {{.block = std::make_shared<Attention>(unit, heads, std::move(qkv), std::move(projection)), .before = norm1},
        {.block = std::make_shared<Mlp>(unit, Activation::gelu, std::move(fc1), std::move(fc2)), .before = norm2}}});
}

LayerCall Vit::call(const MicroBatch& batch) const {
  return {.batch = batch.samples, .tokens = shape_.tokens(), .sample_keys = batch.sample_keys};
}

Tensor Vit::patches_of(const StepContext& context, const MicroBatch& batch) const {
  const Tensor rows = take(context, "patches", compute_, {batch.samples * shape_.patches(), patch_embedding_.in});
  Patchify args{.pixels = batch.pixels, .patch = shape_.patch, .patches = rows};
  std::copy_n(batch.pixel_statistics.mean, 3, args.mean);
  std::copy_n(batch.pixel_statistics.std, 3, args.std);
  context.ops.patchify(args, context.stream);
  return rows;
}

Tensor Vit::embed_forward(const StepContext& context, const MicroBatch& batch) const {
  const int64_t b = batch.samples, e = shape_.hidden;
  const Tensor x = take(context, "residual stream", compute_, {b * shape_.tokens(), e});
  const Tensor flat = context.units.acquire(*embeddings_);
  const ObservedPhase phase(context, Phase::forward, *embeddings_);
  Tensor rows = patches_of(context, batch);
  ScopedTensor embedded(context, "patches", compute_, {b * shape_.patches(), e});
  patch_embedding_.forward({context, flat, {}, {}}, {.x = rows, .y = embedded});
  context.ops.vision_embed_forward({.patches = embedded, .class_embedding = flat.part(class_embedding_, {e}),
                                    .positions = flat.part(positions_, {shape_.tokens(), e}), .x = x},
                                   context.stream);
  give(context, rows);
  context.units.release(*embeddings_);
  return x;
}

Tensor Vit::forward(const StepContext& context, const MicroBatch& batch, bool save) {
  out_ = layers_.forward(context, call(batch), embed_forward(context, batch), save);
  const Tensor flat = context.units.acquire(*norm_unit_);
  const ObservedPhase phase(context, Phase::forward, *norm_unit_);
  normed_ = take_norm(context, norm_, flat, out_);
  context.units.release(*norm_unit_);
  const Tensor y = std::exchange(normed_.y, {});
  if (save) return y;
  give(context, out_);
  give(context, normed_);
  return y;
}

void Vit::backward(const StepContext& context, const MicroBatch& batch, Tensor dy) {
  {
    const Tensor flat = context.units.acquire(*norm_unit_);
    const ObservedPhase phase(context, Phase::backward, *norm_unit_);
    const UnitGradient gradient = context.units.gradient(*norm_unit_);
    context.ops.norm_backward({.dy = dy, .x = out_, .mean = normed_.mean, .rstd = normed_.rstd, .gamma = norm_.g(flat),
                               .dgamma = norm_.g(gradient.flat), .dbeta = norm_.b(gradient.flat),
                               .accumulate = gradient.accumulate, .dx = dy},
                              context.stream);
    give(context, normed_);
    give(context, out_);
    context.units.release(*norm_unit_);
    context.units.publish(*norm_unit_);
  }
  embed_backward(context, batch, layers_.backward(context, call(batch), dy));
}

// Takes ownership of dx.
void Vit::embed_backward(const StepContext& context, const MicroBatch& batch, Tensor dx) const {
  const int64_t e = shape_.hidden;
  const ObservedPhase phase(context, Phase::backward, *embeddings_);
  const UnitGradient gradient = context.units.gradient(*embeddings_);
  ScopedTensor dembedded(context, "patches", compute_, {batch.samples * shape_.patches(), e});
  context.ops.vision_embed_backward({.patches = dembedded, .class_embedding = gradient.flat.part(class_embedding_, {e}),
                                     .positions = gradient.flat.part(positions_, {shape_.tokens(), e}), .x = dx,
                                     .accumulate = gradient.accumulate, .parameters = true},
                                    context.stream);
  give(context, dx);
  const Tensor rows = patches_of(context, batch);
  // The pass has no weights, because the gradient of pictures is not computed.
  UnitBackward pass({context, {}, {}, {}}, {gradient, {}});
  patch_embedding_.weight_gradient(pass, dembedded, rows);
  pass.keep(rows);
  pass.join();
  context.units.publish(*embeddings_);
}

std::optional<double> Vit::unit_flops(const Unit& unit, Phase phase, int64_t batch_size) const {
  const bool trained = unit.trainable;
  if (&unit == norm_unit_) return 0;
  if (&unit == embeddings_) {
    const double product = 2 * static_cast<double>(batch_size * shape_.patches()) *
                           static_cast<double>(patch_embedding_.in * patch_embedding_.out);
    return phase == Phase::forward || (phase == Phase::backward && trained) ? product : 0;
  }
  const Layer* layer = layers_.layer_of(unit);
  if (!layer) return std::nullopt;
  const double tokens = static_cast<double>(shape_.tokens());
  switch (phase) {
    case Phase::forward: return layer->forward_flops(batch_size, tokens);
    case Phase::recompute: return layer->recompute_flops(batch_size, tokens);
    case Phase::backward: return trained ? layer->backward_flops(batch_size, tokens, true) : 0;
    default: break;
  }
  return 0;
}

}  // namespace blipft
