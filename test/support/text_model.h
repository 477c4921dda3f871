// A text-only model for tests: embeddings, pre-norm layers, head. It reads no pictures and puts nothing before a text.
#pragma once

#include "models/causal_head.h"
#include "models/prenorm_layer.h"

namespace blipft::testing {

class TextModel : public Model {
 public:
  struct Sizes {
    int64_t vocabulary = 128, hidden = 16, heads = 2, inner = 24, layers = 2, positions = 40;
    float dropout = 0;
  };
  TextModel(const Sizes& sizes, const ModelSettings& settings) : sizes_(sizes), settings_(settings) {
    const int64_t v = sizes.vocabulary, h = sizes.hidden;
    const ParameterGroup& text = add_group(settings, "text");
    embeddings_ = &add_unit("embeddings", text);
    tokens_ = embeddings_->add("tokens.weight", {v, h}, Init::normal(0.5f), false, ParameterKind::embedding);
    positions_ = embeddings_->add("positions.weight", {sizes.positions + kOffset, h}, Init::normal(0.5f));
    for (int64_t i = 0; i < sizes.layers; ++i) {
      const std::string name = concat("layers.", i, ".");
      PreNormLayer layer;
      layer.unit = &add_unit(concat("layers.", i), text);
      layer.shape = {h, sizes.heads, sizes.inner, Activation::gelu, true, settings.dropout ? sizes.dropout : 0};
      layer.dropout_site = 2 * static_cast<uint32_t>(i);
      layer.norm1 = add_norm(*layer.unit, name + "norm1", h, 1e-5f);
      layer.qkv = add_packed_linear(*layer.unit, {name + "q", name + "k", name + "v"}, h, h, true, 0.2f);
      layer.projection = add_linear(*layer.unit, name + "projection", h, h, true, 0.2f);
      layer.norm2 = add_norm(*layer.unit, name + "norm2", h, 1e-5f);
      layer.fc1 = add_linear(*layer.unit, name + "fc1", h, sizes.inner, true, 0.2f);
      layer.fc2 = add_linear(*layer.unit, name + "fc2", sizes.inner, h, true, 0.2f);
      layers_.layers.push_back(layer);
    }
    layers_.checkpointed = settings.checkpointing.layers_of(sizes.layers);
    head_.unit = head_unit_ = &add_unit("head", text);
    head_.weight_unit = head_unit_;
    head_.norm = add_norm(*head_unit_, "norm", h, 1e-5f);
    head_.output = {h, v};
    head_.output.weight = head_unit_->add("head.weight", {v, h}, Init::normal(0.2f));
  }

  std::string description() const override { return "a text-only model for tests"; }
  ModelInputs inputs() const override {
    return {.max_text_tokens = sizes_.positions, .vocabulary = sizes_.vocabulary};
  }
  void forward_backward(const StepContext& context, const MicroBatch& batch) override {
    const Tensor x = forward(context, batch, true);
    Tensor dx = head_.forward_backward(context, x, predicting(batch), batch);
    dx = layers_.backward(context, call(batch), dx);
    {
      const ObservedPhase phase(context, Phase::backward, *embeddings_);
      const UnitGradient gradient = context.units.gradient(*embeddings_);
      TextEmbed args = embed(batch, gradient.flat, dx);
      args.accumulate_tokens = args.accumulate_positions = gradient.accumulate;
      context.ops.text_embed_backward(args, context.stream);
      give(context, dx);
      context.units.publish(*embeddings_);
    }
    context.arena.mark("after_backward");
  }
  void forward_loss(const StepContext& context, const MicroBatch& batch) override {
    StepContext evaluation = context;
    evaluation.training = false;
    const Tensor x = forward(evaluation, batch, false);
    head_.forward_loss(evaluation, x, predicting(batch), batch);
  }
  double unit_flops(const Unit&, Phase, int64_t, double) const override { return 0; }

 private:
  static constexpr int64_t kOffset = 2;    // of the positions, as text_embed wants it

  TextEmbed embed(const MicroBatch& batch, const Tensor& flat, const Tensor& x) const {
    return {.ids = batch.ids, .lengths = batch.lengths,
            .tokens = flat.part(tokens_, {sizes_.vocabulary, sizes_.hidden}),
            .positions = flat.part(positions_, {sizes_.positions + kOffset, sizes_.hidden}), .packing = batch.packing,
            .x = x};
  }
  PreNormLayer::Call call(const MicroBatch& batch) const {
    return {batch.samples, batch.most_rows, {}, batch.sample_keys, batch.packing};
  }
  RowBlocks predicting(const MicroBatch& batch) const {
    return {.block_rows = batch.most_rows, .count = batch.most_rows - 1, .packing = batch.packing};
  }
  Tensor forward(const StepContext& context, const MicroBatch& batch, bool save) {
    context.arena.mark("before_forward");
    Taken x(context, "residual stream", settings_.compute, {batch.rows, sizes_.hidden});
    const Tensor flat = context.units.acquire(*embeddings_);
    {
      const ObservedPhase phase(context, Phase::forward, *embeddings_);
      context.ops.text_embed_forward(embed(batch, flat, x), context.stream);
    }
    context.units.release(*embeddings_);
    const Tensor out = layers_.forward(context, call(batch), x.keep(), save);
    context.arena.mark("after_forward");
    return out;
  }

  Sizes sizes_;
  ModelSettings settings_;
  Unit *embeddings_ = nullptr, *head_unit_ = nullptr;
  int64_t tokens_ = -1, positions_ = -1;
  PreNormStack layers_;
  CausalHead head_;
};

}  // namespace blipft::testing
