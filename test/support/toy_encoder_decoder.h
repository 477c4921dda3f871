// A toy encoder-decoder for tests, which is no family of src/: post-norm layer norms in the encoder, RMSNorms around
// the branches in the decoder, grouped heads, relative positions with few buckets on both sides, one shared embedding.
#pragma once

#include "models/blocks/attention.h"
#include "models/blocks/mlp.h"
#include "models/language/encoder_decoder.h"
#include "models/language/text_only_model.h"

namespace blipft::testing {

class ToyEncoderDecoder : public TextOnlyModel<EncoderDecoder> {
 public:
  struct Design {
    float dropout = 0;
    bool tied = false;                     // true: the head is the embedding, and its input is scaled
  };
  ToyEncoderDecoder(const Design& design, const ModelSettings& settings)
      : TextOnlyModel(settings), p_(settings.dropout ? design.dropout : 0), all_(add_group(settings, "all")) {
    Unit& embeddings = add_unit("embeddings", all_);
    language_.source = {.unit = &embeddings, .vocabulary = kVocabulary, .hidden = kHidden, .dropout = {p_, 90}};
    language_.source.tokens =
        embeddings.add("tokens", {kVocabulary, kHidden}, Init::normal(0.5f), false, ParameterKind::embedding);
    language_.text = language_.source;
    language_.text.dropout = {p_, 91};
    add_layers(language_.encoder, "encoder", false, settings);
    language_.memory_unit = &add_unit("encoder.norm", all_);
    language_.memory_norm = add_rms_norm(*language_.memory_unit, "memory", kHidden, 1e-5f);
    language_.memory_dropout = {p_, 92};
    add_layers(language_.decoder, "decoder", true, settings);
    language_.head.unit = &add_unit("head", all_);
    language_.head.norm = add_norm(*language_.head.unit, "norm", kHidden, 1e-5f);
    language_.head.dropout = {p_, 93};
    if (design.tied) language_.head.scale = 0.4f;
    language_.head.add_output(embeddings, design.tied ? "tokens" : "", "head", kHidden, kVocabulary, 0.3f);
  }

  std::string description() const override { return "a toy encoder-decoder, for tests"; }
  ModelInputs inputs() const override {
    const StreamInputs source{.vocabulary = kVocabulary, .max_tokens = 40, .key_lengths = true};
    ModelInputs inputs{.text = source, .source = source, .decoder_start = 1};
    inputs.text.label_rows = p_ > 0;
    return inputs;
  }

 private:
  static constexpr int64_t kHidden = 16, kVocabulary = 64, kLayers = 2;

  void add_layers(Stack& stack, const std::string& side, bool decodes, const ModelSettings& settings) {
    for (int64_t i = 0; i < kLayers; ++i) {
      Unit& unit = add_unit(concat(side, ".layers.", i), all_);
      if (i == 0) {
        stack.relative = RelativePositions{unit.add(side + ".relative", {decodes ? 4 : 6, 4}, Init::normal(0.5f)), 4, {}};
        RelativeBias& rule = stack.relative->rule;
        rule.distances = decodes ? 4 : 3, rule.directed = decodes ? 0 : 3;
        for (int32_t k = 0; k < 4; ++k) rule.first[k] = k * (k + 1) / 2;
        rule.scores.behind = rule.first[rule.distances - 1], rule.scores.ahead = decodes ? 0 : rule.scores.behind;
      }
      Layer layer{&unit, {}};
      add_attention(layer, unit, decodes, false);
      if (decodes) add_attention(layer, unit, decodes, true);
      LinearLayer first = linear(unit, ".first", kHidden, decodes ? 40 : 20), last = linear(unit, ".last", 20, kHidden);
      const DropoutSite inner{p_, site_++};
      if (decodes)
        add(layer, unit, ".mlp", decodes,
            std::make_shared<GatedMlp>(unit, std::move(first), std::move(last), GateActivation::gelu_tanh, inner));
      else
        add(layer, unit, ".mlp", decodes,
            std::make_shared<Mlp>(unit, Activation::gelu, std::move(first), std::move(last), inner));
      stack.layers.push_back(std::move(layer));
    }
    stack.checkpointed = settings.checkpointing.layers_of(kLayers);
  }
  static LinearLayer linear(Unit& unit, const std::string& name, int64_t in, int64_t out) {
    return add_linear(unit, unit.name() + name, in, out, true, 0.3f);
  }
  void add_attention(Layer& layer, Unit& unit, bool decodes, bool cross) {
    const Attention::Shape heads{.heads = 4, .kv_heads = 2, .head_size = 6, .causal = decodes && !cross,
                                 .dropout = {p_, site_++}, .texts = true};
    const std::string name = cross ? ".cross" : ".self";
    LinearLayer output = linear(unit, name + ".output", heads.q_width(), kHidden);
    if (cross) {
      LinearLayer query = linear(unit, name + ".query", kHidden, heads.q_width());
      LinearLayer key_value = linear(unit, name + ".key_value", kHidden, 2 * heads.kv_width());
      add(layer, unit, name, decodes,
          std::make_shared<Attention>(unit, heads, std::move(query), std::move(key_value), std::move(output)));
    } else {
      LinearLayer qkv = linear(unit, name + ".qkv", kHidden, heads.q_width() + 2 * heads.kv_width());
      add(layer, unit, name, decodes, std::make_shared<Attention>(unit, heads, std::move(qkv), std::move(output)));
    }
  }
  void add(Layer& layer, Unit& unit, const std::string& name, bool decodes, std::shared_ptr<const Block> block) {
    Sublayer sublayer;
    sublayer.block = std::move(block);
    sublayer.dropout = {p_, site_++};
    if (decodes) {
      sublayer.before = add_rms_norm(unit, unit.name() + name + ".before", kHidden, 1e-5f);
      sublayer.after = add_rms_norm(unit, unit.name() + name + ".after", kHidden, 1e-5f);
    } else {
      sublayer.after = add_norm(unit, unit.name() + name + ".after", kHidden, 1e-5f);
      sublayer.after_sum = true;
    }
    layer.sublayers.push_back(std::move(sublayer));
  }

  float p_;
  const ParameterGroup& all_;
  uint32_t site_ = 0;
};

}  // namespace blipft::testing
