// AdamW with torch.optim.AdamW's semantics.
#include <cmath>

#include "optimizers/optimizers.h"

namespace blipft {

namespace {

class AdamW : public DecayingOptimizer {
 public:
  explicit AdamW(const OptimizerSettings& settings, int64_t seed) : DecayingOptimizer(settings, seed) {}
  std::vector<StateSpec> states(const Parameter&, DType dtype) const override {
    return {{"exp_avg", &plain_format(dtype)}, {"exp_avg_sq", &plain_format(dtype)}};
  }
  void scalars(int64_t step, double lr, float* values) const override {
    values[kLearningRate] = static_cast<float>(lr);
    values[kBiasCorrection1] = static_cast<float>(1.0 - std::pow(settings_.beta1, static_cast<double>(step)));
    values[kBiasCorrection2] = static_cast<float>(1.0 - std::pow(settings_.beta2, static_cast<double>(step)));
  }
  void update(Ops& ops, const Operands& of, const Tensor& scalars, Stream stream) const override {
    ops.adamw_update({.param = of.param, .master = of.master, .grad = of.grad, .m = of.state[0].tensor(),
                      .v = of.state[1].tensor(), .scalars = scalars, .squares = of.squares,
                      .beta1 = static_cast<float>(settings_.beta1), .beta2 = static_cast<float>(settings_.beta2),
                      .eps = static_cast<float>(settings_.eps), .weight_decay = weight_decay(of),
                      .rounding = rounding(of), .link_bytes = of.link_bytes},
                     stream);
  }
};

}  // namespace

std::unique_ptr<Optimizer> make_adamw(const OptimizerSettings& settings, int64_t seed) { return std::make_unique<AdamW>(settings, seed); }

}  // namespace blipft
