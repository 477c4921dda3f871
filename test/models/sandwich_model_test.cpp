// A family that is one file of blocks (support/sandwich_model.h) against the same mathematics written by hand in f64: its
// loss, and each parameter's gradient against central differences of that loss. The operations themselves compute in f32.
//
// Dimension legend: as in sandwich_model.h; T rows of one text.
#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <random>

#include "models/model_rig.h"
#include "support/choice_of.h"
#include "support/sandwich_model.h"

using namespace blipft;
using testing::Rig;
using testing::SandwichModel;
using testing::SandwichSizes;

namespace {

using Values = std::vector<double>;
using Weights = std::map<std::string, Values>;

/// The loss in f64, from the equations of the sandwich's parts.
class Reference {
 public:
  Reference(const SandwichSizes& sizes, const Weights& weights) : s_(sizes), w_(weights) {}

  /// The sum over the labels of -log softmax(cap tanh(logits / cap)).
  double loss(const std::vector<BatchSample>& samples) const {
    double sum = 0;
    for (const BatchSample& sample : samples) sum += loss_of(sample.text.ids, sample.text.is_label);
    return sum;
  }

 private:
  using Rows = std::vector<Values>;

  const Values& w(const std::string& name) const { return w_.at(name); }
  /// y = W x, W [out, in]
  Values product(const std::string& name, const Values& x) const {
    const Values& weight = w(name + ".weight");
    Values y(weight.size() / x.size(), 0.0);
    for (size_t o = 0; o < y.size(); ++o)
      for (size_t i = 0; i < x.size(); ++i) y[o] += weight[o * x.size() + i] * x[i];
    return y;
  }
  Values norm(const std::string& name, const Values& x) const {
    double squares = 0;
    for (const double value : x) squares += value * value;
    const double rstd = 1 / std::sqrt(squares / static_cast<double>(x.size()) + static_cast<double>(s_.eps));
    Values y(x);
    for (size_t i = 0; i < y.size(); ++i) y[i] *= rstd * w(name + ".weight")[i];
    return y;
  }
  /// Softmax of the scores of the row's last `window` keys; each group of N / K query heads reads one head of keys.
  Rows attention(const std::string& layer, const Rows& x, size_t window) const {
    const auto d = static_cast<size_t>(s_.head_size), group = static_cast<size_t>(s_.heads / s_.kv_heads);
    Rows q, k, v, y;
    for (const Values& row : x) {
      q.push_back(product(layer + "q", row)), k.push_back(product(layer + "k", row)), v.push_back(product(layer + "v", row));
      const size_t t = q.size() - 1, first = window && t + 1 > window ? t + 1 - window : 0;
      Values mixed(q[t].size(), 0.0);
      for (size_t h = 0; h < static_cast<size_t>(s_.heads); ++h) {
        Values p;
        double sum = 0;
        for (size_t j = first; j <= t; ++j) {
          double score = 0;
          for (size_t i = 0; i < d; ++i) score += q[t][h * d + i] * k[j][h / group * d + i];
          sum += p.emplace_back(std::exp(score / std::sqrt(static_cast<double>(d))));
        }
        for (size_t j = first; j <= t; ++j)
          for (size_t i = 0; i < d; ++i) mixed[h * d + i] += p[j - first] / sum * v[j][h / group * d + i];
      }
      y.push_back(product(layer + "o", mixed));
    }
    return y;
  }
  Values mlp(const std::string& layer, const Values& x) const {
    Values gate = product(layer + "gate", x);
    const Values up = product(layer + "up", x);
    for (size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1 + std::exp(-gate[i]));
    return product(layer + "down", gate);
  }
  /// x + norm'(branch), by row
  void add(Rows& x, const Rows& branch, const std::string& name) const {
    for (size_t t = 0; t < x.size(); ++t) {
      const Values normed = norm(name, branch[t]);
      for (size_t i = 0; i < normed.size(); ++i) x[t][i] += normed[i];
    }
  }
  Rows normed(const std::string& name, const Rows& x) const {
    Rows y;
    for (const Values& row : x) y.push_back(norm(name, row));
    return y;
  }
  double loss_of(const std::vector<int32_t>& ids, const std::vector<uint8_t>& is_label) const {
    const auto hidden = static_cast<size_t>(s_.hidden);
    Rows x;
    for (const int32_t id : ids) {
      const double* row = w("tokens.weight").data() + static_cast<size_t>(id) * hidden;
      x.emplace_back(row, row + hidden);
    }
    for (int64_t i = 0; i < s_.layers; ++i) {
      const std::string layer = concat("layers.", i, ".");
      add(x, attention(layer, normed(layer + "attention_norm_before", x), static_cast<size_t>(i % 2 ? s_.window : 0)),
          layer + "attention_norm_after");
      Rows branch;
      for (const Values& row : normed(layer + "mlp_norm_before", x)) branch.push_back(mlp(layer, row));
      add(x, branch, layer + "mlp_norm_after");
    }
    double loss = 0;
    for (size_t t = 0; t + 1 < ids.size(); ++t)
      if (is_label[t + 1]) loss += cross_entropy(product("tokens", norm("norm", x[t])), ids[t + 1]);
    return loss;
  }
  double cross_entropy(const Values& logits, int32_t label) const {
    const auto cap = static_cast<double>(s_.cap);
    double sum = 0;
    for (const double logit : logits) sum += std::exp(cap * std::tanh(logit / cap));
    return std::log(sum) - cap * std::tanh(logits[static_cast<size_t>(label)] / cap);
  }

  const SandwichSizes& s_;
  const Weights& w_;
};

/// One micro-batch of the family on the CPU in f32, with weights that no norm leaves as they were made.
struct Run {
  explicit Run(const SandwichSizes& sizes, const char* recomputation = "none")
      : settings{.checkpointing = {choice_of<LayerCheckpointing>(recomputation)}},
        make([sizes](const ModelSettings& s) { return std::make_unique<SandwichModel>(sizes, s); }),
        layout(make(settings)->inputs(), 1, 4, {12}), plan(make, settings, layout, nullptr),
        rig(make, settings, layout, &plan) {
    std::mt19937 random(3);
    std::normal_distribution<float> normal(0, 0.2f);
    for (const Unit* unit : rig.model->units())
      for (const Parameter& parameter : unit->parameters())
        for (int64_t i = 0; i < parameter.numel(); ++i) values(*unit, parameter)[i] += normal(random);
  }
  float* values(const Unit& unit, const Parameter& parameter) const {
    return rig.store->weights(unit).as<float>() + parameter.offset;
  }
  float* gradient(const Unit& unit, const Parameter& parameter) const {
    return rig.store->gradient(unit).as<float>() + parameter.offset;
  }
  ModelSettings settings;
  testing::MakeModel make;
  BatchLayout layout;
  Rig plan, rig;
};

}  // namespace

TEST_SUITE("sandwich model") {
  TEST_CASE("a family of one file: loss and gradients agree with the equations and their differences in f64 [slow]") {
    const SandwichSizes sizes{.vocabulary = 48};
    Run run(sizes);
    const double loss = static_cast<double>(run.rig.loss_of(true));
    Weights weights;
    for (const Unit* unit : run.rig.model->units())
      for (const Parameter& parameter : unit->parameters())
        weights[parameter.name].assign(run.values(*unit, parameter),
                                       run.values(*unit, parameter) + parameter.numel());
    CHECK(weights.size() == 1 + 4 * 11 + 1);
    const Reference reference(sizes, weights);
    const std::vector<BatchSample> samples = testing::rig_samples();
    const double weight = testing::kRigLossWeight;
    // f32: 24 rows, each through some 40 operations that round by 2^-24 of what they add.
    CHECK(loss == doctest::Approx(weight * reference.loss(samples)).epsilon(40 * 0x1p-24));

    std::mt19937 random(5);
    std::normal_distribution<double> normal;
    constexpr double kStep = 1e-5;         // of weights of size 0.4: the differences are off by 1e-9
    for (const Unit* unit : run.rig.model->units())
      for (const Parameter& parameter : unit->parameters()) {
        CAPTURE(parameter.name);
        Values& w = weights[parameter.name];
        const Values before = w;
        const float* const gradient = run.gradient(*unit, parameter);
        double norm = 0;
        for (size_t i = 0; i < w.size(); ++i) norm += static_cast<double>(gradient[i]) * static_cast<double>(gradient[i]);
        CHECK(norm > 0);
        for (int repeat = 0; repeat < 3; ++repeat) {
          Values direction(w.size());
          double expected = 0;
          for (size_t i = 0; i < w.size(); ++i) {
            direction[i] = normal(random);
            expected += direction[i] * static_cast<double>(gradient[i]);
          }
          double side[2];
          for (const int i : {0, 1}) {
            for (size_t e = 0; e < w.size(); ++e) w[e] = before[e] + (i ? -kStep : kStep) * direction[e];
            side[i] = weight * reference.loss(samples);
          }
          w = before;
          // Each of four layers rounds as above in forward and twice as often in backward.
          const double found = (side[0] - side[1]) / (2 * kStep);
          CHECK(std::fabs(found - expected) <= 4 * 3 * 40 * 0x1p-24 * std::sqrt(norm));
        }
      }
  }

  TEST_CASE("a family of one file: recomputation gives the same bits") {
    Run kept({});
    const float loss = kept.rig.loss_of(true);
    for (const char* recomputation : {"half", "full"}) {
      CAPTURE(recomputation);
      Run again({}, recomputation);
      CHECK(again.rig.loss_of(true) == loss);
      for (const Unit* unit : kept.rig.model->units()) {
        const Tensor a = again.rig.store->gradient(*unit), b = kept.rig.store->gradient(*unit);
        CHECK(std::memcmp(a.data, b.data, static_cast<size_t>(b.bytes())) == 0);
      }
    }
  }
}
