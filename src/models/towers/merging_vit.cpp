// Builds and runs a tower for pictures of any size; see merging_vit.h.
#include "models/towers/merging_vit.h"

#include <algorithm>
#include <cmath>

#include "models/blocks/attention.h"

namespace blipft {

namespace {
constexpr float kNormEps = 1e-6f;
constexpr double kRotaryBase = 10000;

PatchEmbeddingShape embedding_of(const MergingVitShape& v) {
  return {.patch = v.patch, .time = v.time, .hidden = v.hidden, .kernel = {v.hidden, 3, v.time, v.patch, v.patch},
          .bias = v.patch_bias, .table = v.table, .interpolated = true, .init_std = v.init_std};
}
}  // namespace

MergingVit::MergingVit(const MergingVitShape& shape, const std::string& root, const TowerBuilding& building)
    : shape_(shape), embedding_(building.vision("vision.embeddings"), embedding_of(shape), root + "patch_embed.proj",
                                root + "pos_embed", building.settings.compute) {
  const int64_t checkpointed = building.settings.checkpointing.layers_of(shape.layers);
  int64_t layer = 0;
  for (size_t s = 0; s <= shape.taps.size(); ++s) {
    const bool last = s == shape.taps.size();
    Segment& segment = segments_.emplace_back();
    segment.layers.checkpointed = checkpointed - layer;
    for (const int64_t end = last ? shape.layers : shape.taps[s] + 1; layer < end; ++layer)
      segment.layers.layers.push_back(make_layer(layer, concat(root, "blocks.", layer, "."), building.vision(concat("vision.layers.", layer)),
                                                 building.lora));
    const std::string name = last ? root + "merger." : concat(root, "deepstack_merger_list.", s, ".");
    segment.merger = make_merger(name, building.merger(last ? "merger" : concat("merger.", s)), !last, building.lora);
  }
}

Norm MergingVit::make_norm(Unit& unit, const std::string& name, int64_t size) const {
  return shape_.rms ? add_rms_norm(unit, name, size, kNormEps) : add_norm(unit, name, size, kNormEps);
}

// Half of the pairs rotates by the patch's row, the other half by its column.
RotaryPositions MergingVit::rotary() const {
  RotaryPositions rotary;
  const int64_t pairs = shape_.hidden / shape_.heads / 4;  // of each half
  for (int64_t i = 0; i < 2 * pairs; ++i) {
    const float exponent = static_cast<float>(i % pairs) / static_cast<float>(pairs);
    rotary.frequencies[static_cast<size_t>(i)] = 1.0f / static_cast<float>(std::pow(kRotaryBase, double{exponent}));
    rotary.axes[static_cast<size_t>(i)] = static_cast<uint8_t>(i / pairs);
  }
  return rotary;
}

Layer MergingVit::make_layer(int64_t i, const std::string& name, Unit& unit, LoraBuilder& lora) const {
  const MergingVitShape& v = shape_;
  const bool whole = v.window == 0 || std::find(v.whole.begin(), v.whole.end(), i) != v.whole.end();
  const Attention::Shape heads{.heads = v.heads, .kv_heads = v.heads, .head_size = v.hidden / v.heads, .rotary = rotary(),
                               .group_rows = whole ? 0 : v.window * v.window * v.merge * v.merge};
  const Norm norm = make_norm(unit, name + "norm1", v.hidden);
  LinearLayer qkv = add_linear(unit, name + "attn.qkv", v.hidden, 3 * v.hidden, true, v.init_std);
  LinearLayer projection = add_linear(unit, name + "attn.proj", v.hidden, v.hidden, true, v.init_std);
  lora.attach(unit, {{&qkv, {name + "attn.qkv"}}, {&projection, {name + "attn.proj"}}});
  return {&unit,
          {{.block = std::make_shared<Attention>(unit, heads, std::move(qkv), std::move(projection)), .before = norm},
           make_mlp(name, unit, lora)}};
}

Sublayer MergingVit::make_mlp(const std::string& name, Unit& unit, LoraBuilder& lora) const {
  const MergingVitShape& v = shape_;
  const Norm norm = make_norm(unit, name + "norm2", v.hidden);
  const std::string gate = name + "mlp.gate_proj", up = name + "mlp.up_proj", down = name + "mlp.down_proj";
  const std::string fc1 = name + "mlp.linear_fc1", fc2 = name + "mlp.linear_fc2";
  LinearLayer first = v.rms ? add_packed_linear(unit, {gate, up}, v.hidden, v.inner, true, v.init_std)
                            : add_linear(unit, fc1, v.hidden, v.inner, true, v.init_std);
  LinearLayer last = add_linear(unit, v.rms ? down : fc2, v.inner, v.hidden, true, v.init_std);
  lora.attach(unit, {{&first, v.rms ? std::vector{gate, up} : std::vector{fc1}}, {&last, {v.rms ? down : fc2}}});
  if (v.rms) return {.block = std::make_shared<GatedMlp>(unit, std::move(first), std::move(last)), .before = norm};
  return {.block = std::make_shared<Mlp>(unit, Activation::gelu_tanh, std::move(first), std::move(last)), .before = norm};
}

std::unique_ptr<PatchMerger> MergingVit::make_merger(const std::string& name, Unit& unit, bool norm_of_cell, LoraBuilder& lora) const {
  const MergingVitShape& v = shape_;
  const int64_t width = v.merge * v.merge * v.hidden;
  const Norm norm = make_norm(unit, name + v.merger_norm, norm_of_cell ? width : v.hidden);
  LinearLayer first = add_linear(unit, name + v.merger_first, width, width, true, v.init_std);
  LinearLayer last = add_linear(unit, name + v.merger_last, width, v.out, true, v.init_std);
  lora.attach(unit, {{&first, {name + v.merger_first}}, {&last, {name + v.merger_last}}});
  return std::make_unique<PatchMerger>(unit, norm, std::move(first), std::move(last));
}

bool MergingVit::trains_through(size_t segment) const {
  return embedding_.trained() || std::any_of(segments_.begin(), segments_.begin() + static_cast<std::ptrdiff_t>(segment) + 1,
                                               [](const Segment& of) { return of.layers.trained(); });
}

bool MergingVit::trained() const {
  return trains_through(segments_.size() - 1) ||
         std::any_of(segments_.begin(), segments_.end(), [](const Segment& of) { return of.merger->trained(); });
}

PictureRows MergingVit::forward(const StepContext& context, const MicroBatch& batch, bool save) {
  PictureRows result;
  Tensor x = embedding_.forward(context, batch);
  for (size_t s = 0; s < segments_.size(); ++s) {
    Segment& segment = segments_[s];
    const bool last = s + 1 == segments_.size(), through = trains_through(s);
    x = segment.layers.forward(context, call_of(batch.patches), x, save && through);
    Tensor read = x;
    if (!last) {                           // the next layers own x
      read = take(context, "residual stream", x.dtype, x.shape);
      context.ops.dropout_add({.x = x, .y = read}, context.stream);
    }
    const Tensor rows = segment.merger->forward(context, batch.patches, read, save && (through || segment.merger->trained()));
    if (last) result.rows = rows; else result.deeper.push_back(rows);
  }
  return result;
}

void MergingVit::backward(const StepContext& context, const MicroBatch& batch, PictureRows gradients) {
  Tensor dx;                               // of the output of a segment's layers
  for (size_t s = segments_.size(); s-- > 0;) {
    Segment& segment = segments_[s];
    Tensor dy = s + 1 == segments_.size() ? gradients.rows : gradients.deeper.at(s);
    const bool through = trains_through(s);
    if (!through && !segment.merger->trained()) {
      give(context, dy);
      continue;
    }
    Tensor of_merger = segment.merger->backward(context, batch.patches, dy);
    if (!through) {
      give(context, of_merger);
      continue;
    }
    if (dx) {
      context.ops.add(of_merger, dx, context.stream);
      give(context, of_merger);
    } else {
      dx = of_merger;
    }
    dx = segment.layers.backward(context, call_of(batch.patches), dx);
    if (s == 0 || !trains_through(s - 1)) {
      embedding_.backward(context, batch, dx);
      dx = {};
    }
  }
}

std::optional<double> MergingVit::unit_flops(const Unit& unit, Phase phase, double rows, double pictures) const {
  const double patches = rows * static_cast<double>(shape_.merge * shape_.merge);
  if (const auto flops = embedding_.unit_flops(unit, phase, patches)) return flops;
  const auto count = std::max<int64_t>(1, std::lround(pictures));
  const double of_picture = patches / static_cast<double>(count);
  for (size_t s = 0; s < segments_.size(); ++s) {
    const Segment& segment = segments_[s];
    const bool through = trains_through(s);
    if (&unit == &segment.merger->unit()) {
      const double forward = segment.merger->forward_flops(rows);
      if (phase == Phase::forward) return forward;
      return phase == Phase::backward && (through || segment.merger->trained()) ? forward * (unit.trainable ? 2 : 1) : 0;
    }
    const Layer* layer = segment.layers.layer_of(unit);
    if (!layer) continue;
    switch (phase) {
      case Phase::forward: return layer->forward_flops(count, of_picture);
      case Phase::recompute: return layer->recompute_flops(count, of_picture);
      case Phase::backward: return through ? layer->backward_flops(count, of_picture, unit.trainable) : 0;
      default: return 0;
    }
  }
  return std::nullopt;
}

}  // namespace blipft
