// Builds and runs SigLIP; see siglip.h.
#include "models/towers/siglip.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "models/blocks/attention.h"
#include "models/blocks/mlp.h"

namespace blipft {

namespace {

PatchEmbeddingShape embedding_of(const SiglipShape& v) {
  return {.patch = v.patch, .hidden = v.hidden, .kernel = {v.hidden, 3, v.patch, v.patch}, .table = v.side(), .init_std = v.init_std};
}

}  // namespace

Siglip::Siglip(const SiglipShape& shape, const std::string& root, const std::string& merger, const TowerBuilding& building)
    : shape_(shape), embedding_(building.vision("vision.embeddings"), embedding_of(shape), root + "embeddings.patch_embedding",
                                root + "embeddings.position_embedding", building.settings.compute),
      layers_(make_layers(root, building)), norm_unit_(&building.vision("vision.norm")),
      norm_(add_norm(*norm_unit_, root + "post_layernorm", shape.hidden, shape.norm_eps)),
      merger_(building.merger("merger"), merger, shape.hidden, shape.out, shape.norm_eps, shape.init_std) {}

Stack Siglip::make_layers(const std::string& root, const TowerBuilding& building) const {
  Stack stack;
  stack.checkpointed = building.settings.checkpointing.layers_of(shape_.layers);
  for (int64_t i = 0; i < shape_.layers; ++i)
    stack.layers.push_back(make_layer(concat(root, "encoder.layers.", i, "."), building.vision(concat("vision.layers.", i)), building.lora));
  return stack;
}

Layer Siglip::make_layer(const std::string& name, Unit& unit, LoraBuilder& lora) const {
  const SiglipShape& v = shape_;
  const std::string self = name + "self_attn.", output = self + "out_proj", fc1 = name + "mlp.fc1", fc2 = name + "mlp.fc2";
  const std::vector<std::string> qkv = {self + "q_proj", self + "k_proj", self + "v_proj"};
  const Norm norm1 = add_norm(unit, name + "layer_norm1", v.hidden, v.norm_eps);
  LinearLayer input = add_packed_linear(unit, qkv, v.hidden, v.hidden, true, v.init_std);
  LinearLayer projection = add_linear(unit, output, v.hidden, v.hidden, true, v.init_std);
  const Norm norm2 = add_norm(unit, name + "layer_norm2", v.hidden, v.norm_eps);
  LinearLayer first = add_linear(unit, fc1, v.hidden, v.inner, true, v.init_std);
  LinearLayer last = add_linear(unit, fc2, v.inner, v.hidden, true, v.init_std);
  lora.attach(unit, {{&input, qkv}, {&projection, {output}}, {&first, {fc1}}, {&last, {fc2}}});
  const Attention::Shape heads{.heads = v.heads, .kv_heads = v.heads, .head_size = v.hidden / v.heads};
  return {&unit,
          {{.block = std::make_shared<Attention>(unit, heads, std::move(input), std::move(projection)), .before = norm1},
           {.block = std::make_shared<Mlp>(unit, Activation::gelu_tanh, std::move(first), std::move(last)), .before = norm2}}};
}

PictureRows Siglip::forward(const StepContext& context, const MicroBatch& batch, bool save) {
  const bool keep = save && trains_layers();
  out_ = layers_.forward(context, call_of(batch.patches), embedding_.forward(context, batch), keep);
  const Tensor flat = context.units.acquire(*norm_unit_);
  {
    const ObservedPhase phase(context, Phase::forward, *norm_unit_);
    normed_ = take_norm(context, norm_, flat, out_);
  }
  context.units.release(*norm_unit_);
  const Tensor y = std::exchange(normed_.y, {});
  if (!keep) {
    give(context, out_);
    give(context, normed_);
  }
  return {merger_.forward(context, y, y.rows() / (shape_.merge * shape_.merge), save), {}};
}

void Siglip::backward(const StepContext& context, const MicroBatch& batch, PictureRows gradients_of) {
  Tensor dx = merger_.backward(context, gradients_of.rows, trains_layers() ? batch.patches.rows : 0);
  if (!dx) return;
  {
    const UnitPass unit_pass = acquire(context, *norm_unit_);
    const ObservedPhase phase(context, Phase::backward, *norm_unit_);
    const UnitBackward pass(unit_pass, gradients(context, *norm_unit_));
    norm_.backward(pass, {.dy = dx, .x = out_, .mean = normed_.mean, .rstd = normed_.rstd, .dx = dx});
    give(context, normed_);
    give(context, out_);
    release(context, *norm_unit_);
    publish(context, *norm_unit_);
  }
  embedding_.backward(context, batch, layers_.backward(context, call_of(batch.patches), dx));
}

std::optional<double> Siglip::unit_flops(const Unit& unit, Phase phase, double rows, double pictures) const {
  const double patches = rows * static_cast<double>(shape_.merge * shape_.merge);
  if (const auto flops = embedding_.unit_flops(unit, phase, patches)) return flops;
  if (&unit == norm_unit_) return 0;
  const double below = trains_layers() ? 1 : 0, own = unit.trainable ? 1 : 0;
  if (&unit == &merger_.unit()) {
    const double forward = merger_.forward_flops(rows);
    if (phase == Phase::forward) return forward;
    return phase == Phase::backward && trained() ? forward * (1 + own) : 0;
  }
  const Layer* layer = layers_.layer_of(unit);
  if (!layer) return std::nullopt;
  const auto count = std::max<int64_t>(1, std::lround(pictures));
  const double of_picture = patches / static_cast<double>(count);
  switch (phase) {
    case Phase::forward: return layer->forward_flops(count, of_picture);
    case Phase::recompute: return layer->recompute_flops(count, of_picture);
    case Phase::backward: return below * layer->backward_flops(count, of_picture, unit.trainable);
    default: return 0;
  }
}

}  // namespace blipft
