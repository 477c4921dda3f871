// Builds T5 from blocks; see t5.h.
#include "models/families/text/t5.h"

#include <cmath>

#include "models/blocks/attention.h"
#include "models/blocks/mlp.h"
#include "models/families/families.h"
#include "models/language/text_only_model.h"

namespace blipft {

namespace {

// Dropout sites: those of the whole model, then those of the layers.
enum Site : uint32_t { kSourceRows, kTextRows, kMemory, kHead, kLayers };

class Builder {
 public:
  Builder(const T5Config& config, const T5Placement& placement, const ModelSettings& settings, LoraBuilder& lora)
      : c_(config), placement_(placement), p_(settings.dropout ? config.dropout : 0), lora_(lora),
        next_site_(placement.dropout_site + kLayers) {}

  DropoutSite dropout(Site site) const { return {p_, placement_.dropout_site + site}; }
  Norm norm(Unit& unit, const std::string& name) const {
    return add_rms_norm(unit, name + ".layer_norm", c_.hidden, c_.norm_eps);
  }
  Stack stack(const char* side, int64_t layers, bool decodes, const ActivationCheckpointing& checkpointing,
              const std::function<Unit&(const std::string& name)>& add_unit);

 private:
  DropoutSite next_dropout() { return {p_, next_site_++}; }
  float std_of(int64_t in) const { return c_.init_factor / std::sqrt(static_cast<float>(in)); }
  float query_std() const { return std_of(c_.hidden * c_.head_size); }
  // `layer` is "encoder.block.0.layer.0".
  Sublayer self_attention(Unit& unit, const std::string& layer, bool causal);
  Sublayer cross_attention(Unit& unit, const std::string& layer);
  Sublayer mlp(Unit& unit, const std::string& layer);
  Attention::Shape shape(bool causal) {
    return {.heads = c_.heads, .kv_heads = c_.heads, .head_size = c_.head_size, .causal = causal,
            .dropout = next_dropout(), .texts = true, .scale = 1};
  }
  int64_t width() const { return c_.heads * c_.head_size; }

  const T5Config& c_;
  const T5Placement& placement_;
  float p_;
  LoraBuilder& lora_;
  uint32_t next_site_;
};

Sublayer Builder::self_attention(Unit& unit, const std::string& layer, bool causal) {
  const std::string self = layer + ".SelfAttention.";
  const Norm before = norm(unit, layer);
  LinearLayer qkv = add_packed_linear(
      unit, {{self + "q", width(), query_std()}, {self + "k", width()}, {self + "v", width()}}, c_.hidden, false,
      std_of(c_.hidden));
  LinearLayer output = add_linear(unit, self + "o", width(), c_.hidden, false, std_of(width()));
  lora_.attach(unit, {{&qkv, {self + "q", self + "k", self + "v"}}, {&output, {self + "o"}}});
  const Attention::Shape heads = shape(causal);
  return {.block = std::make_shared<Attention>(unit, heads, std::move(qkv), std::move(output)), .before = before,
          .dropout = next_dropout()};
}

Sublayer Builder::cross_attention(Unit& unit, const std::string& layer) {
  const std::string cross = layer + ".EncDecAttention.";
  const Norm before = norm(unit, layer);
  LinearLayer query = add_linear(unit, cross + "q", c_.hidden, width(), false, query_std());
  LinearLayer key_value =
      add_packed_linear(unit, {cross + "k", cross + "v"}, c_.hidden, width(), false, std_of(c_.hidden));
  LinearLayer output = add_linear(unit, cross + "o", width(), c_.hidden, false, std_of(width()));
  lora_.attach(unit, {{&query, {cross + "q"}}, {&key_value, {cross + "k", cross + "v"}}, {&output, {cross + "o"}}});
  const Attention::Shape heads = shape(false);
  return {.block = std::make_shared<Attention>(unit, heads, std::move(query), std::move(key_value), std::move(output)),
          .before = before, .dropout = next_dropout()};
}

Sublayer Builder::mlp(Unit& unit, const std::string& layer) {
  const std::string name = layer + ".DenseReluDense.";
  const Norm before = norm(unit, layer);
  const DropoutSite inner = next_dropout(), branch = next_dropout();
  const std::vector<std::string> first =
      c_.gated ? std::vector<std::string>{name + "wi_0", name + "wi_1"} : std::vector<std::string>{name + "wi"};
  LinearLayer wi = add_packed_linear(unit, first, c_.hidden, c_.inner, false, std_of(c_.hidden));
  LinearLayer wo = add_linear(unit, name + "wo", c_.inner, c_.hidden, false, std_of(c_.inner));
  lora_.attach(unit, {{&wi, first}, {&wo, {name + "wo"}}});
  std::shared_ptr<const Block> block;
  if (c_.gated) block = std::make_shared<GatedMlp>(unit, std::move(wi), std::move(wo), c_.gate, inner);
  else block = std::make_shared<Mlp>(unit, c_.activation, std::move(wi), std::move(wo), inner);
  return {.block = std::move(block), .before = before, .dropout = branch};
}

Stack Builder::stack(const char* side, int64_t layers, bool decodes, const ActivationCheckpointing& checkpointing,
                     const std::function<Unit&(const std::string& name)>& add_unit) {
  Stack stack;
  stack.checkpointed = checkpointing.layers_of(layers);
  for (int64_t i = 0; i < layers; ++i) {
    const std::string block = concat(placement_.root, side, ".block.", i, ".layer.");
    Unit& unit = add_unit(concat(placement_.units, side, ".layers.", i));
    if (i == 0) {
      stack.relative = RelativePositions{-1, c_.heads, relative_rule(c_, !decodes)};
      stack.relative->table = unit.add(block + "0.SelfAttention.relative_attention_bias.weight", {c_.buckets, c_.heads},
                                       Init::normal(std_of(c_.hidden)), false, ParameterKind::norm_or_bias);
    }
    Layer layer{&unit, {}};
    layer.sublayers.push_back(self_attention(unit, block + "0", decodes));
    if (decodes) layer.sublayers.push_back(cross_attention(unit, block + "1"));
    layer.sublayers.push_back(mlp(unit, block + (decodes ? "2" : "1")));
    stack.layers.push_back(std::move(layer));
  }
  return stack;
}

class T5 : public TextOnlyModel<EncoderDecoder> {
 public:
  T5(const T5Config& config, const ModelSettings& settings)
      : TextOnlyModel(settings), config_(config), embeddings_group_(add_group(settings, "embeddings")),
        encoder_group_(add_group(settings, "encoder")), decoder_group_(add_group(settings, "decoder")),
        head_group_(add_group(settings, "head")), adapter_group_(add_adapter_group(settings)),
        lora_(settings.adapter, {""},
              [this](const std::string& name) -> Unit& { return add_unit(name, *adapter_group_); }) {
    language_ = make_t5(config_, {}, settings,
                        [this](T5Part part, const std::string& name) -> Unit& { return add_unit(name, group_of(part)); }, lora_);
    lora_.check();
    const LanguageHead& head = language_.head;
    label_rows_ = head.dropout || (head.unit->adapter && settings.adapter.dropout > 0);
  }

  std::string description() const override {
    return concat("t5 (", config_.layers, " + ", config_.decoder_layers, " x ", config_.hidden, ", ", config_.heads,
                  " heads of ", config_.head_size, ")");
  }
  ModelInputs inputs() const override {
    ModelInputs inputs = t5_inputs(config_);
    inputs.text.label_rows = label_rows_;
    return inputs;
  }

 private:
  const ParameterGroup& group_of(T5Part part) const {
    switch (part) {
      case T5Part::embeddings: return embeddings_group_;
      case T5Part::encoder: return encoder_group_;
      case T5Part::decoder: return decoder_group_;
      case T5Part::head: break;
    }
    return head_group_;
  }

  T5Config config_;
  const ParameterGroup &embeddings_group_, &encoder_group_, &decoder_group_, &head_group_;
  const ParameterGroup* adapter_group_;
  LoraBuilder lora_;
  bool label_rows_ = false;
};

}  // namespace

ModelInputs t5_inputs(const T5Config& config) {
  const StreamInputs tokens{.vocabulary = config.vocabulary, .max_tokens = kMaxWidth, .key_lengths = true};
  return {.text = tokens, .source = tokens, .decoder_start = config.decoder_start};
}

EncoderDecoder make_t5(const T5Config& config, const T5Placement& placement, const ModelSettings& settings,
                       const std::function<Unit&(T5Part part, const std::string& name)>& add_unit, LoraBuilder& lora) {
  Builder build(config, placement, settings, lora);
  const auto of = [&](T5Part part) {
    return [&add_unit, part](const std::string& name) -> Unit& { return add_unit(part, name); };
  };
  const std::string table = placement.root + "shared.weight", final = "final_layer_norm";
  EncoderDecoder model;
  Unit& embeddings = add_unit(T5Part::embeddings, placement.units + "embeddings");
  model.source = {.unit = &embeddings, .vocabulary = config.vocabulary, .hidden = config.hidden,
                  .dropout = build.dropout(kSourceRows)};
  model.source.tokens = embeddings.add(table, {config.vocabulary, config.hidden}, Init::normal(config.init_factor), false,
                                       ParameterKind::embedding);
  for (const char* side : {"encoder", "decoder"})
    embeddings.add_alias(table, concat(placement.root, side, ".embed_tokens.weight"));
  model.text = model.source;
  model.text.dropout = build.dropout(kTextRows);
  model.encoder = build.stack("encoder", config.layers, false, settings.checkpointing, of(T5Part::encoder));
  model.memory_unit = &add_unit(T5Part::encoder, placement.units + "encoder.norm");
  model.memory_norm = add_rms_norm(*model.memory_unit, placement.root + "encoder." + final, config.hidden, config.norm_eps);
  model.memory_dropout = build.dropout(kMemory);
  model.decoder = build.stack("decoder", config.decoder_layers, true, settings.checkpointing, of(T5Part::decoder));
  LanguageHead& head = model.head;
  head.unit = &add_unit(T5Part::head, placement.units + "head");
  head.norm = add_rms_norm(*head.unit, placement.root + "decoder." + final, config.hidden, config.norm_eps);
  head.dropout = build.dropout(kHead);
  if (config.scaled) head.scale = 1 / std::sqrt(static_cast<float>(config.hidden));
  head.add_output(embeddings, config.tied && !settings.untied_head ? table : "", placement.root + "lm_head", config.hidden,
                  config.vocabulary, config.init_factor);
  lora.attach(*head.unit, {{&head.output, {placement.root + "lm_head"}}});
  return model;
}

Family families::t5() {
  const auto make = [](const JsonFields& fields, const ModelSettings& settings) -> std::unique_ptr<Model> {
    return std::make_unique<T5>(T5Config::read(fields), settings);
  };
  return {.spec = {.model_type = "t5",
                   .saved_as = {"T5ForConditionalGeneration", "transformers.models.t5.modeling_t5", false, true},
                   .tokenizer = {"T5Tokenizer"},
                   .tie = {.weights = {{"lm_head.weight", "shared.weight"}}, .by_default = true, .flag_has_other_meaning = true}},
          .make = make};
}

}  // namespace blipft
