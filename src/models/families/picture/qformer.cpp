// Builds the Q-Former from blocks; see qformer.h.
#include "models/families/picture/qformer.h"

#include "models/blocks/attention.h"
#include "models/blocks/mlp.h"

namespace blipft {

namespace {
// Dropout sites of a layer. The first site of the Q-Former belongs to its input.
enum Site : uint32_t { kSelfProbabilities, kSelfOutput, kCrossProbabilities, kCrossOutput, kMlpOutput, kSites };
// Returns the site of an instruction MLP: one for each layer, after the sites of all layers.
uint32_t instruction_site(int64_t layers, int64_t i) { return 1 + static_cast<uint32_t>(kSites * layers + i); }
}  // namespace

QFormer::QFormer(const QFormerShape& shape, uint32_t site, const ModelSettings& settings, const AddUnit& add_unit,
                 LoraBuilder& lora)
    : shape_(shape) {
  if (!settings.dropout) shape_.hidden_dropout = shape_.attention_dropout = 0;
  input_.queries = shape.queries;
  input_.hidden = shape.hidden;
  input_.instruction = shape.instruction;
  input_.dropout = {shape_.hidden_dropout, site};
  input_.add(add_unit("qformer.embeddings"), shape.norm_eps, shape.init_std);
  for (int64_t i = 0; i < shape.layers; ++i)
    add_layer(i, site + 1 + kSites * static_cast<uint32_t>(i), site + instruction_site(shape.layers, i),
              add_unit(concat("qformer.layers.", i)), lora);
  layers_.checkpointed = settings.checkpointing.layers_of(shape.layers);
}

void QFormer::add_layer(int64_t i, uint32_t site, uint32_t text_site, Unit& unit, LoraBuilder& lora) {
  const QFormerShape& s = shape_;
  const int64_t d = s.hidden;
  const std::string name = concat("qformer.encoder.layer.", i, ".");
  const auto heads = [&](Site probabilities) {
    return Attention::Shape{.heads = s.heads, .kv_heads = s.heads, .head_size = d / s.heads,
                            .dropout = {s.attention_dropout, site + probabilities},
                            .texts = s.instruction && probabilities == kSelfProbabilities};
  };
  const auto norm_of = [&](const std::string& of) { return add_norm(unit, name + of, d, s.norm_eps); };
  const auto linear = [&](const std::string& of, int64_t in, int64_t out) {
    return add_linear(unit, of, in, out, true, s.init_std);
  };
  const std::optional<RowRange> of_queries = s.instruction ? std::optional(RowRange{s.queries}) : std::nullopt;
  Layer layer{&unit, {}};
  {
    const std::string self = name + "attention.attention.";
    LinearLayer qkv = add_packed_linear(unit, {self + "query", self + "key", self + "value"}, d, d, true, s.init_std);
    const std::string dense = name + "attention.output.dense";
    LinearLayer output = linear(dense, d, d);
    lora.attach(unit, {{&qkv, {self + "query", self + "key", self + "value"}}, {&output, {dense}}});
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
    const std::string dense = name + "crossattention.output.dense";
    LinearLayer output = linear(dense, d, d);
    lora.attach(unit, {{&query, {cross + "query"}}, {&key_value, {cross + "key", cross + "value"}}, {&output, {dense}}});
    layer.sublayers.push_back(
        {.block = std::make_shared<Attention>(unit, heads(kCrossProbabilities), std::move(query), std::move(key_value),
                                              std::move(output)),
         .after = norm_of("crossattention.output.LayerNorm"), .after_sum = true,
         .dropout = {s.hidden_dropout, site + kCrossOutput}, .range = of_queries});
  }
  layer.sublayers.push_back(mlp(unit, name, "_query", site + kMlpOutput, lora));
  layer.sublayers.back().range = of_queries;
  if (s.instruction) {
    layer.sublayers.push_back(mlp(unit, name, "", text_site, lora));
    layer.sublayers.back().range = RowRange{s.queries, true};
  }
  layers_.layers.push_back(std::move(layer));
}

// Adds the MLP `which` of a layer ("_query" or "").
Sublayer QFormer::mlp(Unit& unit, const std::string& name, const char* which, uint32_t site, LoraBuilder& lora) const {
  const QFormerShape& s = shape_;
  const std::string inner = concat(name, "intermediate", which, ".dense"), output = concat(name, "output", which);
  LinearLayer fc1 = add_linear(unit, inner, s.hidden, s.inner, true, s.init_std);
  LinearLayer fc2 = add_linear(unit, output + ".dense", s.inner, s.hidden, true, s.init_std);
  lora.attach(unit, {{&fc1, {inner}}, {&fc2, {output + ".dense"}}});
  return {.block = std::make_shared<Mlp>(unit, s.activation, std::move(fc1), std::move(fc2)),
          .after = add_norm(unit, output + ".LayerNorm", s.hidden, s.norm_eps), .after_sum = true,
          .dropout = {s.hidden_dropout, site}};
}

LayerCall QFormer::call(const MicroBatch& batch, const Tensor& picture) const {
  LayerCall call{.batch = batch.samples, .tokens = shape_.queries, .sample_keys = batch.sample_keys};
  if (shape_.instruction) call = call_of(batch.instruction);
  call.memory = picture, call.memory_tokens = picture.rows() / batch.samples;
  return call;
}

Tensor QFormer::forward(const StepContext& context, const MicroBatch& batch, const Tensor& picture, bool save) {
  const LayerCall of = call(batch, picture);
  Tensor x = layers_.forward(context, of, input_.forward(context, batch, of), save);
  if (!shape_.instruction) return x;
  const Tensor queries = take(context, "queries", x.dtype, {of.batch * shape_.queries, shape_.hidden});
  context.ops.pick_rows(RowRange{shape_.queries}.of(x, queries, of.tokens, of.packing), context.stream);
  give(context, x);
  return queries;
}

void QFormer::backward(const StepContext& context, const MicroBatch& batch, const Tensor& picture, Tensor dy,
                       const Tensor& dpicture) {
  MemoryGradient memory{dpicture};
  LayerCall of = call(batch, picture);
  of.memory_gradient = &memory;
  if (shape_.instruction) {                // nothing reads the output rows of the instructions
    const Tensor all = take(context, "gradients", dy.dtype, {batch.instruction.rows, shape_.hidden});
    RowBlocks rows = RowRange{shape_.queries}.of(all, dy, of.tokens, of.packing);
    rows.keep = false;
    context.ops.spread_rows(rows, context.stream);
    give(context, dy);
    dy = all;
  }
  dy = layers_.backward(context, of, dy);
  if (dpicture && !memory.started) context.device.zero(dpicture.data, dpicture.bytes(), context.stream);
  if (input_.unit().trainable) input_.backward(context, batch, of, dy);
  give(context, dy);
}

std::optional<double> QFormer::unit_flops(const Unit& unit, Phase phase, int64_t batch_size, int64_t picture_tokens,
                                          bool reached, bool picture_gradient, double instruction_rows) const {
  if (&unit == &input_.unit()) return 0;   // no matrix product
  const Layer* layer = layers_.layer_of(unit);
  if (!layer) return std::nullopt;
  const double rows = static_cast<double>(shape_.queries) + instruction_rows;
  const double picture = static_cast<double>(picture_tokens);
  switch (phase) {
    case Phase::forward: return layer->forward_flops(batch_size, rows, picture);
    case Phase::recompute: return layer->recompute_flops(batch_size, rows, picture);
    case Phase::backward:
      return reached ? layer->backward_flops(batch_size, rows, unit.trainable, picture, picture_gradient) : 0;
    default: break;
  }
  return 0;
}

}  // namespace blipft
