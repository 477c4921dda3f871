// A decoder of texts that no file of src/ knows, as one file made of blocks: RMSNorms around each branch, grouped
// heads, every second layer within a window, a gated MLP, and a head that is tied to the embeddings and has soft-capped
// logits. It is an example of a family; test/models/sandwich_model_test.cpp computes it in f64.
//
// Dimension legend: V vocabulary, H hidden size, F inner size, N heads of queries and K of keys and values, of size D.
#pragma once

#include "models/blocks/attention.h"
#include "models/blocks/mlp.h"
#include "models/language/language_model.h"
#include "models/language/text_only_model.h"

namespace blipft::testing {

struct SandwichSizes {
  int64_t vocabulary = 128, hidden = 16, inner = 24, layers = 4, heads = 4, kv_heads = 2, head_size = 6;
  int64_t positions = 40, window = 3;      // window: of layers 1, 3, ...
  float eps = 1e-5f, cap = 3, init_std = 0.3f;
};

class SandwichModel : public TextOnlyModel<LanguageModel> {
 public:
  SandwichModel(const SandwichSizes& sizes, const ModelSettings& settings) : TextOnlyModel(settings), sizes_(sizes) {
    const SandwichSizes& s = sizes_;
    const ParameterGroup& all = add_group(settings, "all");
    Unit& embeddings = add_unit("embeddings", all);
    language_.embedding = {.unit = &embeddings, .vocabulary = s.vocabulary, .hidden = s.hidden};
    language_.embedding.tokens = embeddings.add("tokens.weight", {s.vocabulary, s.hidden}, Init::normal(s.init_std), false,
                                                ParameterKind::embedding);
    for (int64_t i = 0; i < s.layers; ++i)
      language_.layers.layers.push_back(make_layer(add_unit(concat("layers.", i), all), i % 2 ? s.window : 0));
    language_.layers.checkpointed = settings.checkpointing.layers_of(s.layers);
    LanguageHead& head = language_.head;
    head.unit = &add_unit("head", all);
    head.norm = add_rms_norm(*head.unit, "norm", s.hidden, s.eps);
    head.cap = s.cap;
    head.add_output(embeddings, "tokens.weight", "head", s.hidden, s.vocabulary, s.init_std);
  }

  std::string description() const override { return "sandwich norms, for tests"; }
  ModelInputs inputs() const override {
    return {.text = {.vocabulary = sizes_.vocabulary, .max_tokens = sizes_.positions, .key_lengths = true}};
  }

 private:
  Layer make_layer(Unit& unit, int64_t window) const {
    Layer layer{&unit, {}};
    add_sublayer(layer, "attention", make_attention(unit, window));
    add_sublayer(layer, "mlp", make_mlp(unit));
    return layer;
  }
  void add_sublayer(Layer& layer, const std::string& name, std::shared_ptr<const Block> block) const {
    const std::string norm = concat(layer.unit->name(), ".", name, "_norm_");
    layer.sublayers.push_back({.block = std::move(block),
                               .before = add_rms_norm(*layer.unit, norm + "before", sizes_.hidden, sizes_.eps),
                               .after = add_rms_norm(*layer.unit, norm + "after", sizes_.hidden, sizes_.eps)});
  }
  std::shared_ptr<const Block> make_attention(Unit& unit, int64_t window) const {
    const SandwichSizes& s = sizes_;
    const std::string name = unit.name() + ".";
    const Attention::Shape heads{.heads = s.heads, .kv_heads = s.kv_heads, .head_size = s.head_size, .causal = true,
                                 .window = window};
    LinearLayer qkv = add_packed_linear(
        unit, {{name + "q", heads.q_width()}, {name + "k", heads.kv_width()}, {name + "v", heads.kv_width()}}, s.hidden,
        false, s.init_std);
    LinearLayer output = add_linear(unit, name + "o", heads.q_width(), s.hidden, false, s.init_std);
    return std::make_shared<Attention>(unit, heads, std::move(qkv), std::move(output));
  }
  std::shared_ptr<const Block> make_mlp(Unit& unit) const {
    const std::string name = unit.name() + ".";
    LinearLayer gate_up =
        add_packed_linear(unit, {name + "gate", name + "up"}, sizes_.hidden, sizes_.inner, false, sizes_.init_std);
    LinearLayer down = add_linear(unit, name + "down", sizes_.inner, sizes_.hidden, false, sizes_.init_std);
    return std::make_shared<GatedMlp>(unit, std::move(gate_up), std::move(down));
  }

  SandwichSizes sizes_;
};

}  // namespace blipft::testing
