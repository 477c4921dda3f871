// Builds OPT from blocks; see opt.h.
#include "models/families/text/opt.h"

#include "models/blocks/attention.h"
#include "models/blocks/mlp.h"

namespace blipft {

namespace {

constexpr int64_t kPositionOffset = 2;     // learned positions start at row 2

Layer make_layer(const OptShape& t, const std::string& name, float p, uint32_t site, Unit& unit, LoraBuilder& lora) {
  const std::string attention = name + "self_attn.";
  const Norm norm1 = add_norm(unit, name + "self_attn_layer_norm", t.hidden, t.norm_eps);
  LinearLayer qkv = add_packed_linear(unit, {attention + "q_proj", attention + "k_proj", attention + "v_proj"},
                                      t.hidden, t.hidden, t.bias, t.init_std);
  LinearLayer output = add_linear(unit, attention + "out_proj", t.hidden, t.hidden, t.bias, t.init_std);
  const Norm norm2 = add_norm(unit, name + "final_layer_norm", t.hidden, t.norm_eps);
  LinearLayer fc1 = add_linear(unit, name + "fc1", t.hidden, t.inner, t.bias, t.init_std);
  LinearLayer fc2 = add_linear(unit, name + "fc2", t.inner, t.hidden, t.bias, t.init_std);
  lora.attach(unit, {{&qkv, {attention + "q_proj", attention + "k_proj", attention + "v_proj"}},
                     {&output, {attention + "out_proj"}}, {&fc1, {name + "fc1"}}, {&fc2, {name + "fc2"}}});
  const Attention::Shape heads{
      .heads = t.heads, .kv_heads = t.heads, .head_size = t.hidden / t.heads, .causal = true};
  return {&unit,
          {{.block = std::make_shared<Attention>(unit, heads, std::move(qkv), std::move(output)), .before = norm1,
            .dropout = {p, site}},
           {.block = std::make_shared<Mlp>(unit, t.activation, std::move(fc1), std::move(fc2)), .before = norm2,
            .dropout = {p, site + 1}}}};
}

}  // namespace

LanguageModel make_opt(const OptShape& t, const OptPlacement& placement, const ModelSettings& settings,
                       const std::function<Unit&(const std::string& name)>& add_unit, LoraBuilder& lora) {
  const std::string decoder = placement.root + "model.decoder.", head = placement.root + "lm_head";
  LanguageModel model;
  Unit& embeddings = add_unit(placement.units + "embeddings");
  const auto add_table = [&](const char* name, int64_t rows) {
    return embeddings.add(decoder + name, {rows, t.hidden}, Init::normal(t.init_std), false, ParameterKind::embedding);
  };
  model.embedding = {.unit = &embeddings, .vocabulary = t.vocabulary, .hidden = t.hidden,
                     .padding_id = t.padding_id};
  model.embedding.tokens = add_table("embed_tokens.weight", t.vocabulary);
  model.embedding.position_rows = t.positions + kPositionOffset;
  model.embedding.positions = add_table("embed_positions.weight", model.embedding.position_rows);
  for (int64_t i = 0; i < t.layers; ++i)
    model.layers.layers.push_back(make_layer(t, concat(decoder, "layers.", i, "."), settings.dropout ? t.dropout : 0,
                                             placement.dropout_site + 2 * static_cast<uint32_t>(i),
                                             add_unit(concat(placement.units, "layers.", i)), lora));
  model.layers.checkpointed = settings.checkpointing.layers_of(t.layers);
  model.head.unit = &add_unit(placement.units + "head");
  model.head.norm = add_norm(*model.head.unit, decoder + "final_layer_norm", t.hidden, t.norm_eps);
  model.head.add_output(embeddings, t.tied ? decoder + "embed_tokens.weight" : "", head, t.hidden, t.vocabulary,
                        t.init_std);
  lora.attach(*model.head.unit, {{&model.head.output, {head}}});
  return model;
}

}  // namespace blipft
