// A text-only model for tests: embeddings, pre-norm layers, head. It reads no pictures and has no rows before a text.
#pragma once

#include "models/blocks/attention.h"
#include "models/blocks/mlp.h"
#include "models/language/language_model.h"
#include "models/language/text_only_model.h"

namespace blipft::testing {

class TextModel : public TextOnlyModel<LanguageModel> {
 public:
  struct Sizes {
    int64_t vocabulary = 128, hidden = 16, heads = 2, inner = 24, layers = 2, positions = 40;
    float dropout = 0;
  };
  TextModel(const Sizes& sizes, const ModelSettings& settings) : TextOnlyModel(settings), sizes_(sizes) {
    const int64_t v = sizes.vocabulary, h = sizes.hidden;
    const ParameterGroup& text = add_group(settings, "text");
    Unit& embeddings = add_unit("embeddings", text);
    language_.embedding = {.unit = &embeddings, .vocabulary = v, .hidden = h, .position_rows = sizes.positions + kOffset};
    language_.embedding.tokens =
        embeddings.add("tokens.weight", {v, h}, Init::normal(0.5f), false, ParameterKind::embedding);
    language_.embedding.positions =
        embeddings.add("positions.weight", {sizes.positions + kOffset, h}, Init::normal(0.5f));
    const float p = settings.dropout ? sizes.dropout : 0;
    for (int64_t i = 0; i < sizes.layers; ++i)
      language_.layers.layers.push_back(
          make_layer(concat("layers.", i, "."), add_unit(concat("layers.", i), text), p, 2 * static_cast<uint32_t>(i)));
    language_.layers.checkpointed = settings.checkpointing.layers_of(sizes.layers);
    language_.head.unit = &add_unit("head", text);
    language_.head.norm = add_norm(*language_.head.unit, "norm", h, 1e-5f);
    language_.head.add_output(embeddings, "", "head", h, v, 0.2f);
  }

  std::string description() const override { return "a text-only model for tests"; }
  ModelInputs inputs() const override {
    return {.text = {.vocabulary = sizes_.vocabulary, .max_tokens = sizes_.positions}};
  }
  double unit_flops(const Unit&, Phase, int64_t, const TextRows&) const override { return 0; }

 private:
  static constexpr int64_t kOffset = 2;    // offset of the positions for text_embed

  Layer make_layer(const std::string& name, Unit& unit, float p, uint32_t site) const {
    const int64_t h = sizes_.hidden;
    const Norm norm1 = add_norm(unit, name + "norm1", h, 1e-5f);
    LinearLayer qkv = add_packed_linear(unit, {name + "q", name + "k", name + "v"}, h, h, true, 0.2f);
    LinearLayer projection = add_linear(unit, name + "projection", h, h, true, 0.2f);
    const Norm norm2 = add_norm(unit, name + "norm2", h, 1e-5f);
    LinearLayer fc1 = add_linear(unit, name + "fc1", h, sizes_.inner, true, 0.2f);
    LinearLayer fc2 = add_linear(unit, name + "fc2", sizes_.inner, h, true, 0.2f);
    const Attention::Shape heads{
        .heads = sizes_.heads, .kv_heads = sizes_.heads, .head_size = h / sizes_.heads, .causal = true};
    return {&unit,
            {{.block = std::make_shared<Attention>(unit, heads, std::move(qkv), std::move(projection)), .before = norm1,
              .dropout = {p, site}},
             {.block = std::make_shared<Mlp>(unit, Activation::gelu, std::move(fc1), std::move(fc2)), .before = norm2,
              .dropout = {p, site + 1}}}};
  }

  Sizes sizes_;
};

}  // namespace blipft::testing
