// Rows of pictures among the tokens of a language model, with positions on three axes: gradients against differences of the
// loss, packing against padding, and pictures that come first against a range of first rows.
#include "models/blocks/attention.h"
#include "models/blocks/mlp.h"
#include "models/gradient_check.h"
#include "models/language/language_model.h"

using namespace blipft;

namespace {

constexpr int64_t kHidden = 16, kHeadSize = 8, kVocabulary = 64, kPictureRows = 15, kFirstRows = 3;

/// A model whose pictures are a table of parameters.
class PictureModel : public Model {
 public:
  struct Design {
    bool anywhere = true;                  // else the first kFirstRows rows of each sample
    int64_t axes = 3;
  };
  PictureModel(const Design& design, const ModelSettings& settings) : design_(design), compute_(settings.compute) {
    const ParameterGroup& all = add_group(settings, "all");
    pictures_ = &add_unit("pictures", all);
    table_ = pictures_->add("pictures", {kPictureRows, kHidden}, Init::normal(0.5f));
    Unit& embeddings = add_unit("embeddings", all);
    language_.embedding = {.unit = &embeddings, .vocabulary = kVocabulary, .hidden = kHidden, .token_scale = 1.5f};
    language_.embedding.tokens =
        embeddings.add("tokens", {kVocabulary, kHidden}, Init::normal(0.5f), false, ParameterKind::embedding);
    RotaryPositions rotary;
    for (int i = 0; i < 4; ++i) rotary.frequencies[static_cast<size_t>(i)] = 1.0f / static_cast<float>(1 + 3 * i);
    rotary.axes = rotary_axes(std::vector<int64_t>{2, 1, 1}, true);
    const Attention::Shape heads{.heads = 2, .kv_heads = 1, .head_size = kHeadSize, .causal = true, .rotary = rotary};
    for (int i = 0; i < 2; ++i) {
      Unit& unit = add_unit(concat("layers.", i), all);
      const auto linear = [&](const char* name, int64_t in, int64_t out) {
        return add_linear(unit, unit.name() + name, in, out, true, 0.3f);
      };
      LinearLayer qkv = linear(".qkv", kHidden, heads.q_width() + 2 * heads.kv_width());
      LinearLayer output = linear(".output", heads.q_width(), kHidden);
      const Norm norm = add_rms_norm(unit, unit.name() + ".norm", kHidden, 1e-5f);
      language_.layers.layers.push_back(
          {&unit, {{.block = std::make_shared<Attention>(unit, heads, std::move(qkv), std::move(output)), .before = norm}}});
    }
    language_.layers.checkpointed = settings.checkpointing.layers_of(2);
    language_.head.unit = &add_unit("head", all);
    language_.head.norm = add_norm(*language_.head.unit, "norm", kHidden, 1e-5f);
    language_.head.add_output(embeddings, "", "head", kHidden, kVocabulary, 0.3f);
  }

  std::string description() const override { return "pictures from a table, for tests"; }
  ModelInputs inputs() const override {
    return {.text = {.vocabulary = kVocabulary, .max_tokens = 40, .first_rows = design_.anywhere ? 0 : kFirstRows,
                     .pictures = design_.anywhere, .position_axes = design_.axes, .key_lengths = true}};
  }
  void forward_backward(const StepContext& context, const MicroBatch& batch) override {
    const Tensor x = language_.forward(context, batch, compute_, pictures(context, batch), true, true);
    Tensor dpictures = language_.loss_and_backward(context, batch, x, true);
    const UnitGradient gradient = context.units.gradient(*pictures_);
    context.device.zero(gradient.flat.data, gradient.flat.bytes(), context.stream);
    context.ops.sum_tiles(dpictures, gradient.flat.part(table_, dpictures.shape), false, context.stream);
    give(context, dpictures);
    context.units.publish(*pictures_);
  }
  void forward_loss(const StepContext& context, const MicroBatch& batch) override {
    language_.loss(context, batch, language_.forward(context, batch, compute_, pictures(context, batch), false));
  }
  double unit_flops(const Unit&, Phase, int64_t, const TextRows&) const override { return 0; }

 private:
  Tensor pictures(const StepContext& context, const MicroBatch& batch) const {
    const int64_t rows = design_.anywhere ? kPictureRows : batch.samples * kFirstRows;
    const Tensor flat = context.units.acquire(*pictures_);
    const Tensor x = take(context, "pictures", compute_, {rows, kHidden});
    context.device.copy(x.data, flat.part(table_, x.shape).data, x.bytes(), context.stream);
    context.units.release(*pictures_);
    return x;
  }

  Design design_;
  DType compute_;
  Unit* pictures_;
  int64_t table_;
  LanguageModel language_;
};

testing::MakeModel made(const PictureModel::Design& design) {
  return [design](const ModelSettings& settings) { return std::make_unique<PictureModel>(design, settings); };
}

constexpr TextShape kPadded{12, 0, 0, 0, {kPictureRows}}, kPacked{12, 28, 0, 0, {kPictureRows}},
    kLonger{17, 30, 0, 0, {kPictureRows}};

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double square = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    square += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    norm += std::pow(static_cast<double>(a[i]), 2);
  }
  CHECK(norm > 0);
  return std::sqrt(square / norm);
}

}  // namespace

TEST_SUITE("picture rows") {
  TEST_CASE("gradients agree with differences of the loss, recomputation is the same to the bit") {
    for (const TextShape& text : {kPadded, kPacked})
      for (const int64_t axes : {1, 3}) {
        testing::check_gradients(made({true, axes}), false, text);
        testing::check_recomputation(made({true, axes}), false, text);
      }
  }

  TEST_CASE("packing changes neither loss nor gradients; rows that no picture has get none") {
    testing::Run padded(made({}), false, kPadded, "none");
    const float loss = padded.rig.loss_of(true);
    for (const TextShape& text : {kPacked, kLonger}) {
      testing::Run packed(made({}), false, text, "none");
      CHECK(packed.rig.loss_of(true) == doctest::Approx(loss).epsilon(1e-6));  // f32 sums of 24 labels in another order
      for (const Unit* unit : padded.rig.model->units())
        CHECK(distance(padded.gradients(*unit), packed.gradients(*unit)) < 1e-5);
    }
    const std::vector<float> pictures = padded.gradients(*padded.rig.model->units().front());
    const auto row_is_zero = [&](int64_t row) {
      return std::all_of(pictures.begin() + row * kHidden, pictures.begin() + (row + 1) * kHidden,
                         [](float x) { return x == 0; });
    };
    for (int64_t row = 0; row < kPictureRows; ++row) CHECK(row_is_zero(row) == (row >= 13));
  }

  TEST_CASE("the first segment of each sample is the same as pictures that stand there") {
    // The samples of the second run begin with kFirstRows tokens, which the rows of a picture replace.
    testing::Run first(made({false, 1}), false, {12, 0, 0, 0, 0}, "none");
    testing::Run anywhere(made({true, 1}), false, {15, 0, 0, 0, {kPictureRows}}, "none");
    const auto write = [](testing::Run& run, int64_t before) {
      std::vector<BatchSample> samples(4);
      for (int64_t b = 0; b < 4; ++b) {
        TokenizedText& text = samples[static_cast<size_t>(b)].text;
        for (int64_t t = -before; t < 2 + 2 * b; ++t) {
          text.ids.push_back(static_cast<int32_t>(5 + (11 * b + 7 * (t + 3)) % 40));
          text.is_label.push_back(t > 0);
        }
        if (before > 0) text.pictures = {{0, 1, before}};
      }
      BatchWriter(1, false).write(run.layout, samples, run.rig.block.data);
      return run.rig.loss_of(true);
    };
    CHECK(write(anywhere, kFirstRows) == doctest::Approx(write(first, 0)).epsilon(1e-6));  // f32 sums with zeros among them
    for (const Unit* unit : first.rig.model->units())
      CHECK(distance(first.gradients(*unit), anywhere.gradients(*unit)) < 1e-5);
  }
}
