// The Q-Former, made of blocks; see qformer.h.
#include "models/families/qformer.h"

#include "models/blocks/attention.h"
#include "models/blocks/mlp.h"

namespace blipft {

namespace {
// Dropout sites of a layer; the first of all is the input's.
enum Site : uint32_t { kSelfProbabilities, kSelfOutput, kCrossProbabilities, kCrossOutput, kMlpOutput, kSites };
}  // namespace

QFormer::QFormer(const QFormerShape& shape, uint32_t site, const ModelSettings& settings, const AddUnit& add_unit)
    : shape_(shape) {
  if (!settings.dropout) shape_.hidden_dropout = shape_.attention_dropout = 0;
  input_dropout_ = {shape_.hidden_dropout, site};
  embeddings_ = &add_unit("qformer.embeddings");
  query_tokens_ = embeddings_->add("query_tokens", {1, shape.queries, shape.hidden}, Init::normal(shape.init_std));
  input_norm_ = add_norm(*embeddings_, "qformer.layernorm", shape.hidden, shape.norm_eps);
  for (int64_t i = 0; i < shape.layers; ++i)
    add_layer(i, site + 1 + kSites * static_cast<uint32_t>(i), add_unit(concat("qformer.layers.", i)));
  layers_.checkpointed = settings.checkpointing.layers_of(shape.layers);
}

void QFormer::add_layer(int64_t i, uint32_t site, Unit& unit) {
  const QFormerShape& s = shape_;
  const int64_t d = s.hidden;
  const std::string name = concat("qformer.encoder.layer.", i, ".");
  const auto heads = [&](Site probabilities) {
    return Attention::Shape{.heads = s.heads, .kv_heads = s.heads, .head_size = d / s.heads,
                            .dropout = {s.attention_dropout, site + probabilities}};
  };
  const auto norm_of = [&](const std::string& of) { return add_norm(unit, name + of, d, s.norm_eps); };
  const auto linear = [&](const std::string& of, int64_t in, int64_t out) {
    return add_linear(unit, of, in, out, true, s.init_std);
  };
  Layer layer{&unit, {}};
  {
    const std::string self = name + "attention.attention.";
    LinearLayer qkv = add_packed_linear(unit, {self + "query", self + "key", self + "value"}, d, d, true, s.init_std);
    LinearLayer output = linear(name + "attention.output.dense", d, d);
    layer.sublayers.push_back(
        {.block = std::make_shared<Attention>(unit, heads(kSelfProbabilities), std::move(qkv), std::move(output)),
         .after = norm_of("attention.output.LayerNorm"), .after_sum = true,
         .dropout = {s.hidden_dropout, site + kSelfOutput}});
  }
  if (i % s.cross_frequency == 0) {
    const std::string cross = name + "crossattention.attention.";
    LinearLayer query = linear(cross + "query", d, d);
    LinearLayer key_value =
        add_packed_linear(unit, {cross + "key", cross + "value"}, s.encoder_hidden, d, true, s.init_std);
    LinearLayer output = linear(name + "crossattention.output.dense", d, d);
    layer.sublayers.push_back(
        {.block = std::make_shared<Attention>(unit, heads(kCrossProbabilities), std::move(query), std::move(key_value),
                                              std::move(output)),
         .after = norm_of("crossattention.output.LayerNorm"), .after_sum = true,
         .dropout = {s.hidden_dropout, site + kCrossOutput}});
  }
  LinearLayer fc1 = linear(name + "intermediate_query.dense", d, s.inner);
  LinearLayer fc2 = linear(name + "output_query.dense", s.inner, d);
  layer.sublayers.push_back({.block = std::make_shared<Mlp>(unit, s.activation, std::move(fc1), std::move(fc2)),
                             .after = norm_of("output_query.LayerNorm"), .after_sum = true,
                             .dropout = {s.hidden_dropout, site + kMlpOutput}});
  layers_.layers.push_back(std::move(layer));
}

LayerCall QFormer::call(const MicroBatch& batch, const Tensor& picture) const {
  return {.batch = batch.samples, .tokens = shape_.queries, .sample_keys = batch.sample_keys, .memory = picture,
          .memory_tokens = picture.rows() / batch.samples};
}

// The norm runs once over the [Q, D] query tokens, which are the same for every sample; dropout differs.
Tensor QFormer::queries_forward(const StepContext& context, const LayerCall& call) const {
  const Tensor flat = context.units.acquire(*embeddings_);
  const ObservedPhase phase(context, Phase::forward, *embeddings_);
  NormResult normed =
      take_norm(context, input_norm_, flat, flat.part(query_tokens_, {shape_.queries, shape_.hidden}));
  const Tensor tiled = take(context, "queries", flat.dtype, {call.batch * shape_.queries, shape_.hidden});
  context.ops.tile_rows(normed.y, tiled, context.stream);
  if (const Dropout dropout = input_dropout_.of(context, call))
    context.ops.dropout_add({.x = tiled, .dropout = dropout, .y = tiled}, context.stream);
  give(context, normed);
  context.units.release(*embeddings_);
  return tiled;
}

Tensor QFormer::forward(const StepContext& context, const MicroBatch& batch, const Tensor& picture, bool save) {
  const LayerCall of = call(batch, picture);
  return layers_.forward(context, of, queries_forward(context, of), save);
}

void QFormer::backward(const StepContext& context, const MicroBatch& batch, const Tensor& picture, Tensor dy,
                       const Tensor& dpicture) {
  MemoryGradient memory{dpicture};
  LayerCall of = call(batch, picture);
  of.memory_gradient = &memory;
  dy = layers_.backward(context, of, dy);
  if (dpicture && !memory.started) context.device.zero(dpicture.data, dpicture.bytes(), context.stream);
  if (embeddings_->trainable) queries_backward(context, of, dy);
  give(context, dy);
}

void QFormer::queries_backward(const StepContext& context, const LayerCall& call, Tensor dy) const {
  const Shape shape = {shape_.queries, shape_.hidden};
  const Tensor flat = context.units.acquire(*embeddings_);
  const ObservedPhase phase(context, Phase::backward, *embeddings_);
  const UnitGradient gradient = context.units.gradient(*embeddings_);
  const Tensor tokens = flat.part(query_tokens_, shape);
  if (const Dropout dropout = input_dropout_.of(context, call))
    context.ops.dropout_add({.x = dy, .dropout = dropout, .y = dy}, context.stream);
  ScopedTensor dnormed(context, "gradients", flat.dtype, shape);
  context.ops.sum_tiles(dy, dnormed, false, context.stream);
  NormResult normed = take_norm(context, input_norm_, flat, tokens);
  context.ops.norm_backward({.dy = dnormed, .x = tokens, .mean = normed.mean, .rstd = normed.rstd,
                             .gamma = input_norm_.g(flat), .dgamma = input_norm_.g(gradient.flat),
                             .dbeta = input_norm_.b(gradient.flat), .accumulate = gradient.accumulate, .dx = dnormed},
                            context.stream);
  give(context, normed);
  context.ops.sum_tiles(dnormed, gradient.flat.part(query_tokens_, shape), gradient.accumulate, context.stream);
  context.units.release(*embeddings_);
  context.units.publish(*embeddings_);
}

std::optional<double> QFormer::unit_flops(const Unit& unit, Phase phase, int64_t batch_size, int64_t picture_tokens,
                                          bool reached, bool picture_gradient) const {
  if (&unit == embeddings_) return 0;      // no matrix product
  const Layer* layer = layers_.layer_of(unit);
  if (!layer) return std::nullopt;
  const double queries = static_cast<double>(shape_.queries), picture = static_cast<double>(picture_tokens);
  switch (phase) {
    case Phase::forward: return layer->forward_flops(batch_size, queries, picture);
    case Phase::recompute: return layer->recompute_flops(batch_size, queries, picture);
    case Phase::backward:
      return reached ? layer->backward_flops(batch_size, queries, unit.trainable, picture, picture_gradient) : 0;
    default: break;
  }
  return 0;
}

}  // namespace blipft
