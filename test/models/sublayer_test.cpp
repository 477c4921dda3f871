// Sublayers in every placement of their norms, mixed in one stack, and cross attention to another stack's output: gradients
// against differences of the loss, and recomputation to the same bits. No family of src/ is made so.
#include <doctest/doctest.h>

#include "models/blocks/attention.h"
#include "models/blocks/mlp.h"
#include "models/gradient_check.h"
#include "models/language/language_model.h"

using namespace blipft;

namespace {

enum class Norms { before, after_sum, around, after_branch };
constexpr int64_t kHidden = 16, kVocabulary = 128;

struct Design {
  std::vector<std::vector<Norms>> layers;  // of each layer its two sublayers, attention and MLP; three: cross attention between
  bool rms = false, gated = false;
  float dropout = 0;
  bool encoder = false;                    // a stack whose output the cross attentions read
  bool ranges = false;                     // behind the first sublayer each works on some rows of a sample, in turn the
                                           // first and the last ones
};

Norm make_norm(const Design& design, Unit& unit, const std::string& name) {
  return design.rms ? add_rms_norm(unit, name, kHidden, 1e-5f) : add_norm(unit, name, kHidden, 1e-5f);
}

Sublayer place(const Design& design, Norms norms, std::shared_ptr<const Block> block, Unit& unit, const std::string& name,
               float p, uint32_t site) {
  Sublayer sublayer;
  sublayer.block = std::move(block);
  if (norms == Norms::before || norms == Norms::around) sublayer.before = make_norm(design, unit, name + ".before");
  if (norms != Norms::before) sublayer.after = make_norm(design, unit, name + ".after");
  sublayer.after_sum = norms == Norms::after_sum;
  sublayer.dropout = {p, site};
  return sublayer;
}

class PlacedModel : public Model {
 public:
  PlacedModel(const Design& design, const ModelSettings& settings) : design_(design), compute_(settings.compute) {
    const ParameterGroup& all = add_group(settings, "all");
    Unit& embeddings = add_unit("embeddings", all);
    language_.embedding = {.unit = &embeddings, .vocabulary = kVocabulary, .hidden = kHidden};
    language_.embedding.tokens =
        embeddings.add("tokens", {kVocabulary, kHidden}, Init::normal(0.5f), false, ParameterKind::embedding);
    if (design.encoder) {
      encoder_embedding_ = language_.embedding;
      encoder_embedding_.unit = &add_unit("encoder.embeddings", all);
      encoder_embedding_.tokens = encoder_embedding_.unit->add("encoder.tokens", {kVocabulary, kHidden}, Init::normal(0.5f));
      encoder_.layers.push_back(make_layer({Norms::before, Norms::around}, add_unit("encoder", all), false, settings, 900));
      encoder_.checkpointed = settings.checkpointing.layers_of(1);
    }
    for (size_t i = 0; i < design.layers.size(); ++i)
      language_.layers.layers.push_back(make_layer(design.layers[i], add_unit(concat("layers.", i), all), true, settings,
                                                   static_cast<uint32_t>(10 * i)));
    language_.layers.checkpointed = settings.checkpointing.layers_of(static_cast<int64_t>(design.layers.size()));
    language_.head.unit = &add_unit("head", all);
    language_.head.norm = add_norm(*language_.head.unit, "norm", kHidden, 1e-5f);
    language_.head.add_output(embeddings, "", "head", kHidden, kVocabulary, 0.2f);
  }
  std::string description() const override { return "norms in all places, for tests"; }
  ModelInputs inputs() const override { return {.text = {.vocabulary = kVocabulary, .max_tokens = 40}}; }
  double unit_flops(const Unit&, Phase, int64_t, const TextRows&) const override { return 0; }

  void forward_backward(const StepContext& context, const MicroBatch& batch) override {
    MemoryGradient gradient;
    Tensor memory = encode(context, batch, true);
    if (memory) gradient.sum = take(context, "gradients", compute_, memory.shape);
    const LayerCall decoder = call(batch, memory, &gradient);
    Tensor x = language_.layers.forward(context, decoder, language_.embedding.forward(context, batch.text, compute_, {}), true);
    Tensor dx = language_.head.forward_backward(context, x, batch);
    dx = language_.layers.backward(context, decoder, dx);
    language_.embedding.backward(context, batch.text, dx, false);
    give(context, memory);
    if (!gradient.sum) return;
    CHECK(gradient.started);
    encoder_embedding_.backward(context, batch.text, encoder_.backward(context, call(batch, {}, nullptr), gradient.sum), false);
  }
  void forward_loss(const StepContext& context, const MicroBatch& batch) override {
    StepContext evaluation = context;
    evaluation.training = false;
    Tensor memory = encode(evaluation, batch, false);
    Tensor x = language_.embedding.forward(evaluation, batch.text, compute_, {});
    x = language_.layers.forward(evaluation, call(batch, memory, nullptr), x, false);
    give(context, memory);
    language_.head.forward_loss(evaluation, x, batch);
  }

 private:
  Layer make_layer(const std::vector<Norms>& norms, Unit& unit, bool causal, const ModelSettings& settings, uint32_t site) {
    const float p = settings.dropout ? design_.dropout : 0, std = 0.3f;
    const Attention::Shape heads{.heads = 4, .kv_heads = 2, .head_size = 6, .causal = causal};
    const auto linear = [&](const char* name, int64_t in, int64_t out) {
      return add_linear(unit, unit.name() + name, in, out, true, std);
    };
    Layer layer{&unit, {}};
    const auto add = [&](Norms where, std::shared_ptr<const Block> block, const char* name) {
      layer.sublayers.push_back(place(design_, where, std::move(block), unit, unit.name() + name, p, site++));
    };
    LinearLayer qkv = linear(".qkv", kHidden, heads.q_width() + 2 * heads.kv_width());
    LinearLayer output = linear(".output", heads.q_width(), kHidden);
    add(norms[0], std::make_shared<Attention>(unit, heads, std::move(qkv), std::move(output)), ".attention");
    if (norms.size() == 3) {
      Attention::Shape cross = heads;
      cross.causal = false;
      LinearLayer query = linear(".query", kHidden, cross.q_width());
      LinearLayer key_value = linear(".key_value", kHidden, 2 * cross.kv_width());
      LinearLayer out = linear(".cross_output", cross.q_width(), kHidden);
      add(norms[1],
          std::make_shared<Attention>(unit, cross, std::move(query), std::move(key_value), std::move(out)), ".cross");
    }
    LinearLayer first = linear(".first", kHidden, design_.gated ? 40 : 20), last = linear(".last", 20, kHidden);
    if (design_.gated) add(norms.back(), std::make_shared<GatedMlp>(unit, std::move(first), std::move(last)), ".mlp");
    else add(norms.back(), std::make_shared<Mlp>(unit, Activation::gelu, std::move(first), std::move(last)), ".mlp");
    for (size_t i = 1; i < layer.sublayers.size() && design_.ranges; ++i)
      layer.sublayers[i].range = RowRange{3, (i + layer.sublayers.size()) % 2 == 1};
    return layer;
  }
  LayerCall call(const MicroBatch& batch, const Tensor& memory, MemoryGradient* gradient) const {
    return {.batch = batch.samples, .tokens = batch.text.max_rows, .sample_keys = batch.sample_keys, .memory = memory,
            .memory_tokens = batch.text.max_rows, .memory_gradient = gradient};
  }
  Tensor encode(const StepContext& context, const MicroBatch& batch, bool save) {
    if (!design_.encoder) return {};
    const Tensor x = encoder_embedding_.forward(context, batch.text, compute_, {});
    return encoder_.forward(context, call(batch, {}, nullptr), x, save);
  }

  Design design_;
  DType compute_;
  TextEmbedding encoder_embedding_;
  Stack encoder_;
  LanguageModel language_;
};

testing::MakeModel made(const Design& design) {
  return [design](const ModelSettings& settings) { return std::make_unique<PlacedModel>(design, settings); };
}
void check_gradients(const Design& design) {
  testing::check_gradients(made(design), design.dropout > 0, {12});
}
void check_recomputation(const Design& design) {
  testing::check_recomputation(made(design), design.dropout > 0, {12});
}

constexpr Norms kAll[] = {Norms::before, Norms::after_sum, Norms::around, Norms::after_branch};

}  // namespace

TEST_SUITE("sublayers") {
  TEST_CASE("norms in every place: gradients agree with differences of the loss") {
    for (const Norms norms : kAll)
      for (const bool rms : {false, true})
        for (const float dropout : {0.0f, 0.2f}) {
          CAPTURE(static_cast<int>(norms));
          CAPTURE(rms);
          CAPTURE(dropout);
          check_gradients({{{norms, norms}, {norms, norms}}, rms, rms, dropout});
        }
  }
  TEST_CASE("every place beside every other, in one layer and from layer to layer") {
    for (const Norms a : kAll)
      for (const Norms b : kAll) {
        CAPTURE(static_cast<int>(a));
        CAPTURE(static_cast<int>(b));
        const Design design{{{a, b}, {b, a}, {a, b}}, false, true, 0.1f};
        check_gradients(design);
        check_recomputation(design);
      }
  }
  TEST_CASE("sublayers on a range of each sample's rows [slow]") {
    for (const Norms a : kAll)
      for (const Norms b : kAll) {
        CAPTURE(static_cast<int>(a));
        CAPTURE(static_cast<int>(b));
        for (const Design& design : {Design{{{a, b}, {b, a}}, false, true, 0.1f, false, true},
                                     Design{{{a, b, a}, {b, a, b}}, false, false, 0.1f, true, true}}) {
          check_gradients(design);
          check_recomputation(design);
        }
      }
  }
  TEST_CASE("cross attention: the memory's gradient goes into the stack that made it [slow]") {
    for (const Norms a : kAll)
      for (const Norms b : kAll) {
        const Design design{{{a, b, a}, {b, a, b}}, false, false, 0, true};
        check_gradients(design);
        check_recomputation(design);
      }
  }
}
