// LLaMA (Touvron et al. 2023), with the small differences of Mistral and Qwen 2: RMSNorms before, rotary positions, grouped
// heads, gated MLPs.
//
// Parameter groups: embeddings (with a tied head's weight), layers, head (the final norm and an own head's weight).
#include "models/families/llama.h"

#include "models/blocks/attention.h"
#include "models/blocks/language_model.h"
#include "models/blocks/linear_lora.h"
#include "models/blocks/mlp.h"
#include "models/families/llama_config.h"
#include "models/json_fields.h"

namespace blipft {

namespace {

class Llama : public Model {
 public:
  Llama(const LlamaConfig& config, const ModelSettings& settings)
      : config_(config), compute_(settings.compute), embeddings_group_(add_group(settings, "embeddings")),
        layers_group_(add_group(settings, "layers")), head_group_(add_group(settings, "head")),
        adapter_group_(add_adapter_group(settings)),
        lora_(settings.adapter, "",
              [this](const std::string& name) -> Unit& { return add_unit(name, *adapter_group_); }) {
    const std::string table = "model.embed_tokens.weight";
    Unit& embeddings = add_unit("embeddings", embeddings_group_);
    language_.embedding = {.unit = &embeddings, .vocabulary = config.vocabulary, .hidden = config.hidden,
                           .padding_id = config.padding_id};
    language_.embedding.tokens = embeddings.add(table, {config.vocabulary, config.hidden},
                                                Init::normal(config.init_std), false, ParameterKind::embedding);
    for (int64_t i = 0; i < config.layers; ++i) language_.layers.layers.push_back(make_layer(i));
    language_.layers.checkpointed = settings.checkpointing.layers_of(config.layers);
    LanguageHead& head = language_.head;
    head.unit = &add_unit("head", head_group_);
    head.norm = add_rms_norm(*head.unit, "model.norm", config.hidden, config.norm_eps);
    head.add_output(embeddings, config.tied ? table : "", "lm_head", config.hidden, config.vocabulary, config.init_std);
    lora_.attach(*head.unit, {{&head.output, {"lm_head"}}});
    lora_.check();
    label_rows_ = head.unit->adapter && settings.adapter.dropout > 0;
  }

  std::string description() const override {
    return concat(config_.model_type, " (", config_.layers, " x ", config_.hidden, ", ", config_.heads, " heads, ",
                  config_.kv_heads, " key/value heads)");
  }
  ModelInputs inputs() const override {
    return {.max_text_tokens = config_.max_text_tokens, .sliding_window = config_.sliding_window,
            .vocabulary = config_.vocabulary, .positions = true, .key_lengths = true, .label_rows = label_rows_};
  }
  void forward_backward(const StepContext& context, const MicroBatch& batch) override {
    const Tensor x = forward(context, batch, language_.trains_below_head(false));
    language_.loss_and_backward(context, batch, x, false);
    context.arena.mark("after_backward");
  }
  void forward_loss(const StepContext& context, const MicroBatch& batch) override {
    StepContext evaluation = context;
    evaluation.training = false;
    language_.loss(evaluation, batch, forward(evaluation, batch, false));
  }
  std::vector<int64_t> cache_widths() const override { return language_.layers.cache_widths(); }
  Tensor read_prompts(const StepContext& context, const MicroBatch& batch, const CacheCall& cache) override {
    return language_.read_prompts(context, batch, compute_, {}, cache);
  }
  Tensor decode(const StepContext& context, const CacheCall& cache) override {
    return language_.decode(context, compute_, cache);
  }
  double unit_flops(const Unit& unit, Phase phase, int64_t batch_size, double text_rows) const override {
    return language_.unit_flops(unit, phase, batch_size, text_rows, false).value_or(0);
  }

 private:
  Layer make_layer(int64_t i);
  // What the head reads; `save` keeps what backward needs.
  Tensor forward(const StepContext& context, const MicroBatch& batch, bool save) {
    context.arena.mark("before_forward");
    const Tensor x = language_.forward(context, batch, compute_, {}, save);
    context.arena.mark("after_forward");
    return x;
  }

  LlamaConfig config_;
  DType compute_;
  const ParameterGroup &embeddings_group_, &layers_group_, &head_group_;
  const ParameterGroup* adapter_group_;
  LoraBuilder lora_;
  LanguageModel language_;
  bool label_rows_ = false;
};

Layer Llama::make_layer(int64_t i) {
  const LlamaConfig& c = config_;
  const std::string name = concat("model.layers.", i, "."), attention = name + "self_attn.", mlp = name + "mlp.";
  Unit& unit = add_unit(concat("layers.", i), layers_group_);
  const Attention::Shape heads{.heads = c.heads, .kv_heads = c.kv_heads, .head_size = c.head_size, .causal = true,
                               .rotary = c.frequencies};
  const int64_t q = heads.q_width(), kv = heads.kv_width();
  const Norm norm1 = add_rms_norm(unit, name + "input_layernorm", c.hidden, c.norm_eps);
  LinearLayer qkv = add_packed_linear(
      unit, {{attention + "q_proj", q}, {attention + "k_proj", kv}, {attention + "v_proj", kv}}, c.hidden, c.qkv_bias,
      c.init_std);
  LinearLayer output = add_linear(unit, attention + "o_proj", q, c.hidden, c.output_bias, c.init_std);
  const Norm norm2 = add_rms_norm(unit, name + "post_attention_layernorm", c.hidden, c.norm_eps);
  LinearLayer gate_up =
      add_packed_linear(unit, {mlp + "gate_proj", mlp + "up_proj"}, c.hidden, c.inner, c.mlp_bias, c.init_std);
  LinearLayer down = add_linear(unit, mlp + "down_proj", c.inner, c.hidden, c.mlp_bias, c.init_std);
  lora_.attach(unit, {{&qkv, {attention + "q_proj", attention + "k_proj", attention + "v_proj"}},
                      {&output, {attention + "o_proj"}}, {&gate_up, {mlp + "gate_proj", mlp + "up_proj"}},
                      {&down, {mlp + "down_proj"}}});
  return {&unit,
          {{.block = std::make_shared<Attention>(unit, heads, std::move(qkv), std::move(output)), .before = norm1},
           {.block = std::make_shared<GatedMlp>(unit, std::move(gate_up), std::move(down)), .before = norm2}}};
}

}  // namespace

std::unique_ptr<Model> make_llama(const std::string& config_file, const ModelSettings& settings) {
  LlamaConfig config = LlamaConfig::read(config_file);
  check_dropout(config_file, "attention_dropout", config.attention_dropout, settings.dropout);
  if (settings.untied_head) config.tied = false;
  return std::make_unique<Llama>(config, settings);
}

}  // namespace blipft
