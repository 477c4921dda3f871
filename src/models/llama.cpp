// LLaMA (Touvron et al. 2023), with the small differences of Mistral and Qwen 2: embeddings, layers, RMSNorm, head.
//
// Parameter groups: embeddings (with a tied head's weight), layers, head (the final norm and an own head's weight).
//
// Dimension legend: B samples, T text tokens (of packed samples: at most), M rows in all, B * T unless packed, V
// vocabulary, H hidden size, F inner size of the MLP, N and K heads of queries and of keys and values, of size D.
#include "models/llama.h"

#include <algorithm>

#include "models/causal_head.h"
#include "models/json_fields.h"
#include "models/llama_config.h"
#include "models/llama_layer.h"
#include "models/linear_lora.h"

namespace blipft {

namespace {

class Llama : public Model {
 public:
  Llama(const LlamaConfig& config, const ModelSettings& settings)
      : config_(config), settings_(settings), embeddings_group_(add_group(settings, "embeddings")),
        layers_group_(add_group(settings, "layers")), head_group_(add_group(settings, "head")),
        adapter_group_(add_adapter_group(settings)),
        lora_(settings.adapter, "",
              [this](const std::string& name) -> Unit& { return add_unit(name, *adapter_group_); }) {
    embeddings_ = &add_unit("embeddings", embeddings_group_);
    table_ = embeddings_->add("model.embed_tokens.weight", {config.vocabulary, config.hidden},
                              Init::normal(config.init_std), false, ParameterKind::embedding);
    for (int64_t i = 0; i < config.layers; ++i) add_layer(i);
    layers_.checkpointed = settings.checkpointing.layers_of(config.layers);
    add_head();
    lora_.check();
  }

  std::string description() const override {
    return concat(config_.model_type, " (", config_.layers, " x ", config_.hidden, ", ", config_.heads, " heads, ",
                  config_.kv_heads, " key/value heads)");
  }
  ModelInputs inputs() const override {
    return {.max_text_tokens = config_.max_text_tokens, .sliding_window = config_.sliding_window, .vocabulary = config_.vocabulary, .positions = true,
            .key_lengths = true,
            .label_rows = head_.unit->adapter && settings_.adapter.dropout > 0};
  }

  void forward_backward(const StepContext& context, const MicroBatch& batch) override;
  void forward_loss(const StepContext& context, const MicroBatch& batch) override;
  double unit_flops(const Unit& unit, Phase phase, int64_t batch_size, double text_rows) const override;

 private:
  /// Whether backward goes into the layers, or ends in the head.
  bool into_layers() const { return layers_group_.trained || embeddings_group_.trained || adapts_layers(); }
  bool adapts_layers() const {
    return std::any_of(layers_.layers.begin(), layers_.layers.end(),
                       [](const LlamaLayer& layer) { return layer.unit->adapter != nullptr; });
  }
  void add_layer(int64_t i);
  void add_head();
  LlamaLayer::Call call(const MicroBatch& batch) const {
    return {batch.samples, batch.most_rows, batch.positions, batch.sample_keys, batch.key_lengths, batch.packing};
  }
  /// Each row predicts the next one: a sample's last row has nothing to predict.
  RowBlocks predicting(const MicroBatch& batch) const {
    return {.block_rows = batch.most_rows, .count = batch.most_rows - 1, .packing = batch.packing};
  }
  TextEmbed embed(const MicroBatch& batch, const Tensor& flat, const Tensor& x) const {
    return {.ids = batch.ids, .lengths = batch.lengths,
            .tokens = flat.part(table_, {config_.vocabulary, config_.hidden}), .padding_id = config_.padding_id,
            .packing = batch.packing, .x = x};
  }
  Tensor forward(const StepContext& context, const MicroBatch& batch, bool save);
  void embed_backward(const StepContext& context, const MicroBatch& batch, Tensor dx) const;

  LlamaConfig config_;
  ModelSettings settings_;
  const ParameterGroup &embeddings_group_, &layers_group_, &head_group_;
  const ParameterGroup* adapter_group_;
  LoraBuilder lora_;
  Unit* embeddings_ = nullptr;
  int64_t table_ = -1;                     // offset of [V, H]
  LayerStack<LlamaLayer> layers_;
  CausalHead head_;
};

void Llama::add_layer(int64_t i) {
  const LlamaConfig& c = config_;
  const std::string name = concat("model.layers.", i, "."), attention = name + "self_attn.", mlp = name + "mlp.";
  LlamaLayer layer;
  layer.unit = &add_unit(concat("layers.", i), layers_group_);
  layer.shape = {c.hidden, c.heads, c.kv_heads, c.head_size, c.inner, c.frequencies};
  const int64_t q = layer.shape.q_width(), kv = layer.shape.kv_width();
  Unit& unit = *layer.unit;
  layer.norm1 = add_rms_norm(unit, name + "input_layernorm", c.hidden, c.norm_eps);
  layer.qkv = add_packed_linear(
      unit, {{attention + "q_proj", q}, {attention + "k_proj", kv}, {attention + "v_proj", kv}}, c.hidden, c.qkv_bias,
      c.init_std);
  layer.o = add_linear(unit, attention + "o_proj", q, c.hidden, c.output_bias, c.init_std);
  layer.norm2 = add_rms_norm(unit, name + "post_attention_layernorm", c.hidden, c.norm_eps);
  layer.gate_up =
      add_packed_linear(unit, {mlp + "gate_proj", mlp + "up_proj"}, c.hidden, c.inner, c.mlp_bias, c.init_std);
  layer.down = add_linear(unit, mlp + "down_proj", c.inner, c.hidden, c.mlp_bias, c.init_std);
  lora_.attach(unit, {{&layer.qkv, {attention + "q_proj", attention + "k_proj", attention + "v_proj"}},
                      {&layer.o, {attention + "o_proj"}}, {&layer.gate_up, {mlp + "gate_proj", mlp + "up_proj"}},
                      {&layer.down, {mlp + "down_proj"}}});
  layers_.layers.push_back(layer);
}

void Llama::add_head() {
  const LlamaConfig& c = config_;
  Unit& unit = add_unit("head", head_group_);
  head_.unit = &unit;
  head_.norm = add_rms_norm(unit, "model.norm", c.hidden, c.norm_eps);
  head_.weight_unit = c.tied ? embeddings_ : &unit;
  const std::string name = "lm_head.weight";
  if (c.tied) embeddings_->add_alias("model.embed_tokens.weight", name);
  head_.output = {.in = c.hidden, .out = c.vocabulary, .parts = {{0, c.vocabulary}}};
  head_.output.weight = c.tied ? table_ : unit.add(name, {c.vocabulary, c.hidden}, Init::normal(c.init_std));
  lora_.attach(unit, {{&head_.output, {"lm_head"}}});
}

// What the head reads [M, H]; `save` keeps what backward needs.
Tensor Llama::forward(const StepContext& context, const MicroBatch& batch, bool save) {
  context.arena.mark("before_forward");
  Taken x(context, "residual stream", settings_.compute, {batch.rows, config_.hidden});
  {
    const Tensor flat = context.units.acquire(*embeddings_);
    const ObservedPhase phase(context, Phase::forward, *embeddings_);
    context.ops.text_embed_forward(embed(batch, flat, x), context.stream);
    context.units.release(*embeddings_);
  }
  const Tensor out = layers_.forward(context, call(batch), x.keep(), save);
  context.arena.mark("after_forward");
  return out;
}

void Llama::forward_loss(const StepContext& context, const MicroBatch& batch) {
  StepContext evaluation = context;
  evaluation.training = false;
  const Tensor x = forward(evaluation, batch, false);
  head_.forward_loss(evaluation, x, predicting(batch), batch);
}

void Llama::forward_backward(const StepContext& context, const MicroBatch& batch) {
  const Tensor x = forward(context, batch, into_layers());
  Tensor dx = head_.forward_backward(context, x, predicting(batch), batch);
  if (into_layers()) dx = layers_.backward(context, call(batch), dx);
  embed_backward(context, batch, dx);
  context.arena.mark("after_backward");
}

// Takes dx [M, H] over.
void Llama::embed_backward(const StepContext& context, const MicroBatch& batch, Tensor dx) const {
  if (!embeddings_->trainable) return give(context, dx);
  const ObservedPhase phase(context, Phase::backward, *embeddings_);
  const UnitGradient gradient = context.units.gradient(*embeddings_);
  TextEmbed args = embed(batch, gradient.flat, dx);
  args.accumulate_tokens = gradient.accumulate;
  context.ops.text_embed_backward(args, context.stream);
  give(context, dx);
  context.units.publish(*embeddings_);
}

double Llama::unit_flops(const Unit& unit, Phase phase, int64_t batch_size, double text_rows) const {
  if (&unit == head_.unit) {
    const double forward = 2 * static_cast<double>(batch_size) * (text_rows - 1) *
                           static_cast<double>(config_.hidden * config_.vocabulary);
    // The input's gradient is always made; the weight's where it is trained.
    return phase == Phase::loss ? forward * (head_.weight_unit->trainable ? 3 : 2) : 0;
  }
  for (const LlamaLayer& layer : layers_.layers) {
    if (layer.unit != &unit) continue;
    if (phase == Phase::forward) return layer.forward_flops(batch_size, text_rows);
    if (phase == Phase::recompute) return layer.recompute_flops(batch_size, text_rows);
    if (phase == Phase::backward && into_layers()) return layer.backward_flops(batch_size, text_rows, unit.trainable);
  }
  return 0;                                // of embeddings: no matrix product
}

}  // namespace

std::unique_ptr<Model> make_llama(const std::string& config_file, const ModelSettings& settings) {
  LlamaConfig config = LlamaConfig::read(config_file);
  check_dropout(config_file, "attention_dropout", config.attention_dropout, settings.dropout);
  if (settings.untied_head) config.tied = false;
  return std::make_unique<Llama>(config, settings);
}

}  // namespace blipft
