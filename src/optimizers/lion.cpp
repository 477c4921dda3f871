// Lion (Chen et al. 2023): keeps one state; every element moves by the same step size.
#include "optimizers/optimizers.h"

namespace blipft {

namespace {

class Lion : public DecayingOptimizer {
 public:
  explicit Lion(const OptimizerSettings& settings, int64_t seed) : DecayingOptimizer(settings, seed) {}
  std::vector<StateSpec> states(const Parameter&, DType dtype) const override {
    return {{"exp_avg", &plain_format(dtype)}};
  }
  void scalars(int64_t, double lr, float* values) const override {
    values[kLearningRate] = static_cast<float>(lr);
    values[kBiasCorrection1] = values[kBiasCorrection2] = 1;
  }
  void update(Ops& ops, const Operands& of, const Tensor& scalars, Stream stream) const override {
    ops.lion_update({.param = of.param, .master = of.master, .grad = of.grad, .m = of.state[0].tensor(),
                     .scalars = scalars, .squares = of.squares,
                     .beta1 = static_cast<float>(settings_.beta1), .beta2 = static_cast<float>(settings_.beta2),
                     .weight_decay = weight_decay(of),
                     .rounding = rounding(of), .link_bytes = of.link_bytes},
                    stream);
  }
};

}  // namespace

std::unique_ptr<Optimizer> make_lion(const OptimizerSettings& settings, int64_t seed) { return std::make_unique<Lion>(settings, seed); }

}  // namespace blipft
