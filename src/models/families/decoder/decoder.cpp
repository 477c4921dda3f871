// Builds decoders from blocks; see decoder.h.
#include "models/families/decoder/decoder.h"

#include <utility>

#include "models/blocks/linear_lora.h"
#include "models/blocks/mlp.h"
#include "models/config_checks.h"
#include "models/language/language_model.h"
#include "models/language/text_only_model.h"

namespace blipft {

namespace {

using HeadNorms = DecoderConfig::HeadNorms;

// Builds the blocks of a decoder.
class DecoderBuilder {
 public:
  DecoderBuilder(const DecoderConfig& config, const DecoderPlacement& placement, const ModelSettings& settings,
                 LoraBuilder& lora)
      : config_(config), placement_(placement), settings_(settings), lora_(lora) {}
  LanguageModel make(const std::function<Unit&(const std::string& name)>& add_unit);

 private:
  Layer make_layer(int64_t i, Unit& unit);
  Sublayer attention(int64_t i, const std::string& name, Unit& unit);
  Sublayer mlp(const std::string& name, Unit& unit);
  Attention::Shape heads(int64_t i) const;
  // Adds the norm `norm`, one of NormNames; returns nullopt if the name is empty.
  std::optional<Norm> norm(Unit& unit, const std::string& layer, const std::string& norm) const;
  // Adds layers with a common input as one packed layer: from one matrix each, or, unless `fused` is empty, from
  // that one matrix of the checkpoint.
  LinearLayer add_together(Unit& unit, const std::string& fused, const std::vector<PackedLinear>& layers, bool bias);

  const DecoderConfig& config_;
  const DecoderPlacement& placement_;
  const ModelSettings& settings_;
  LoraBuilder& lora_;
};

LanguageModel DecoderBuilder::make(const std::function<Unit&(const std::string& name)>& add_unit) {
  const DecoderConfig& c = config_;
  const std::string table = placement_.body + "embed_tokens.weight", output = placement_.head;
  LanguageModel language;
  Unit& embeddings = add_unit(placement_.units + "embeddings");
  language.embedding = {.unit = &embeddings, .vocabulary = c.vocabulary, .hidden = c.hidden,
                        .padding_id = c.padding_id, .token_scale = c.token_scale};
  language.embedding.tokens = embeddings.add(table, {c.vocabulary, c.hidden}, Init::normal(c.init_std), false,
                                             ParameterKind::embedding);
  for (int64_t i = 0; i < c.layers; ++i)
    language.layers.layers.push_back(make_layer(i, add_unit(concat(placement_.units, "layers.", i))));
  language.layers.checkpointed = settings_.checkpointing.layers_of(c.layers);
  LanguageHead& head = language.head;
  head.unit = &add_unit(placement_.units + "head");
  head.norm = add_rms_norm(*head.unit, placement_.body + "norm", c.hidden, c.norm_eps, c.norm_form);
  head.cap = c.logit_cap;
  head.scale = c.logit_scale;
  head.add_output(embeddings, c.tied ? table : "", output, c.hidden, c.vocabulary, c.init_std);
  lora_.attach(*head.unit, {{&head.output, {output}}});
  return language;
}

class Decoder : public TextOnlyModel<LanguageModel> {
 public:
  Decoder(DecoderConfig config, const DecoderPlacement& placement, const ModelSettings& settings)
      : TextOnlyModel(settings), config_(std::move(config)), embeddings_group_(add_group(settings, "embeddings")),
        layers_group_(add_group(settings, "layers")), head_group_(add_group(settings, "head")),
        adapter_group_(add_adapter_group(settings)),
        lora_(settings.adapter, {""},
              [this](const std::string& name) -> Unit& { return add_unit(name, *adapter_group_); }) {
    language_ = make_decoder_language(config_, placement, settings, [this](const std::string& name) -> Unit& {
      return add_unit(name, name == "embeddings" ? embeddings_group_ : name == "head" ? head_group_ : layers_group_);
    }, lora_);
    lora_.check();
    label_rows_ = language_.head.unit->adapter && settings.adapter.dropout > 0;
  }

  using Model::add_file_names;

  std::string description() const override {
    return concat(config_.model_type, " (", config_.layers, " x ", config_.hidden, ", ", config_.heads, " heads, ",
                  config_.kv_heads, " key/value heads)");
  }
  ModelInputs inputs() const override {
    return {.text = {.vocabulary = config_.vocabulary, .max_tokens = config_.max_text_tokens, .position_axes = 1,
                     .key_lengths = true, .label_rows = label_rows_}};
  }

 private:
  DecoderConfig config_;
  const ParameterGroup &embeddings_group_, &layers_group_, &head_group_;
  const ParameterGroup* adapter_group_;
  LoraBuilder lora_;
  bool label_rows_ = false;
};

std::optional<Norm> DecoderBuilder::norm(Unit& unit, const std::string& layer, const std::string& norm) const {
  if (norm.empty()) return std::nullopt;
  return add_rms_norm(unit, layer + norm, config_.hidden, config_.norm_eps, config_.norm_form);
}

Attention::Shape DecoderBuilder::heads(int64_t i) const {
  using RopeKind = DecoderConfig::LayerKind::RopeKind;
  const DecoderConfig& c = config_;
  const DecoderConfig::LayerKind& kind = c.kinds.at(static_cast<size_t>(i));
  Attention::Shape heads{.heads = c.heads, .kv_heads = c.kv_heads, .head_size = c.head_size, .causal = true,
                         .scale = c.score_scale, .window = kind.window, .cap = c.score_cap};
  if (kind.turns != RopeKind::none) heads.rotary = kind.turns == RopeKind::local ? c.local_rotary : c.rotary;
  return heads;
}

LinearLayer DecoderBuilder::add_together(Unit& unit, const std::string& fused, const std::vector<PackedLinear>& layers,
                                         bool bias) {
  if (fused.empty()) return add_packed_linear(unit, layers, config_.hidden, bias, config_.init_std);
  int64_t out = 0;
  for (const PackedLinear& layer : layers) out += layer.out;
  return add_linear(unit, fused, config_.hidden, out, bias, config_.init_std);
}

std::vector<std::string> modules(const std::string& fused, const std::vector<PackedLinear>& layers) {
  if (!fused.empty()) return {fused};
  std::vector<std::string> names;
  for (const PackedLinear& layer : layers) names.push_back(layer.name);
  return names;
}

// `name` must end in a dot.
Sublayer DecoderBuilder::attention(int64_t i, const std::string& name, Unit& unit) {
  const DecoderConfig& c = config_;
  const std::string self = name + "self_attn.", fused = c.fused_qkv ? self + "qkv_proj" : "";
  Attention::Shape shape = heads(i);
  const int64_t q = shape.q_width(), kv = shape.kv_width();
  const auto before = norm(unit, name, c.norms.before_attention);
  RowOrder turned;
  if (c.rotary_neighbours && shape.rotary) turned = {c.head_size, shape.rotary->rotated > 0 ? shape.rotary->rotated : c.head_size};
  const std::vector<PackedLinear> parts = {
      {self + "q_proj", q, 0, turned}, {self + "k_proj", kv, 0, turned}, {self + "v_proj", kv}};
  LinearLayer qkv = add_together(unit, fused, parts, c.qkv_bias);
  LinearLayer output = add_linear(unit, self + "o_proj", q, c.hidden, c.output_bias, c.init_std);
  if (c.head_norms != HeadNorms::none) {
    const bool each = c.head_norms == HeadNorms::each;
    shape.q_norm = add_rms_norm(unit, self + "q_norm", each ? c.head_size : q, c.norm_eps, c.norm_form);
    shape.k_norm = add_rms_norm(unit, self + "k_norm", each ? c.head_size : kv, c.norm_eps, c.norm_form);
  }
  const auto after = norm(unit, name, c.norms.after_attention);
  lora_.attach(unit, {{&qkv, modules(fused, parts)}, {&output, {self + "o_proj"}}});
  return {.block = std::make_shared<Attention>(unit, shape, std::move(qkv), std::move(output)), .before = before,
          .after = after};
}

Sublayer DecoderBuilder::mlp(const std::string& name, Unit& unit) {
  const DecoderConfig& c = config_;
  const std::string mlp = name + "mlp.", fused = c.fused_gate_up ? mlp + "gate_up_proj" : "";
  const auto before = norm(unit, name, c.norms.before_mlp);
  const std::vector<PackedLinear> parts = {{mlp + "gate_proj", c.inner}, {mlp + "up_proj", c.inner}};
  LinearLayer gate_up = add_together(unit, fused, parts, c.mlp_bias);
  LinearLayer down = add_linear(unit, mlp + "down_proj", c.inner, c.hidden, c.mlp_bias, c.init_std);
  const auto after = norm(unit, name, c.norms.after_mlp);
  lora_.attach(unit, {{&gate_up, modules(fused, parts)}, {&down, {mlp + "down_proj"}}});
  return {.block = std::make_shared<GatedMlp>(unit, std::move(gate_up), std::move(down), c.activation),
          .before = before, .after = after};
}

Layer DecoderBuilder::make_layer(int64_t i, Unit& unit) {
  const std::string name = concat(placement_.body, "layers.", i, ".");
  Layer layer{&unit, {}};
  layer.sublayers.push_back(attention(i, name, unit));
  layer.sublayers.push_back(mlp(name, unit));
  for (uint32_t site = 0; site < 2; ++site)
    layer.sublayers[site].dropout = {settings_.dropout ? config_.branch_dropout : 0,
                                     placement_.dropout_site + 2 * static_cast<uint32_t>(i) + site, config_.branch_scale};
  return layer;
}

}  // namespace

LanguageModel make_decoder_language(const DecoderConfig& config, const DecoderPlacement& placement,
                                    const ModelSettings& settings,
                                    const std::function<Unit&(const std::string& name)>& add_unit, LoraBuilder& lora) {
  return DecoderBuilder(config, placement, settings, lora).make(add_unit);
}

std::unique_ptr<Model> make_decoder(DecoderConfig config, const std::string& file, const ModelSettings& settings,
                                    const DecoderPlacement& placement, const DecoderPlacement* in_files) {
  check_dropout(file, "attention_dropout", config.attention_dropout, settings.dropout);
  if (settings.untied_head) config.tied = false;
  auto model = std::make_unique<Decoder>(std::move(config), placement, settings);
  if (in_files) model->add_file_names({{placement.body, in_files->body}, {placement.head, in_files->head}});
  return model;
}

}  // namespace blipft
