// SGD with torch.optim.SGD's semantics (momentum without dampening, coupled weight decay).
#include "optimizers/optimizers.h"

namespace blipft {

namespace {

class Sgd : public DecayingOptimizer {
 public:
  explicit Sgd(const OptimizerSettings& settings, int64_t seed) : DecayingOptimizer(settings, seed) {}
  std::vector<StateSpec> states(const Parameter&, DType dtype) const override {
    if (settings_.momentum == 0) return {};
    return {{"momentum_buffer", &plain_format(dtype)}};
  }
  void scalars(int64_t, double lr, float* values) const override {
    values[kLearningRate] = static_cast<float>(lr);
    values[kBiasCorrection1] = values[kBiasCorrection2] = 1;
  }
  void update(Ops& ops, const Operands& of, const Tensor& scalars, Stream stream) const override {
    ops.sgd_update({.param = of.param, .master = of.master, .grad = of.grad,
                    .momentum_buffer = of.state.empty() ? Tensor{} : of.state[0].tensor(), .scalars = scalars,
                    .squares = of.squares,
                    .momentum = static_cast<float>(settings_.momentum),
                    .weight_decay = weight_decay(of),
                    .rounding = rounding(of), .link_bytes = of.link_bytes},
                   stream);
  }
};

}  // namespace

std::unique_ptr<Optimizer> make_sgd(const OptimizerSettings& settings, int64_t seed) { return std::make_unique<Sgd>(settings, seed); }

}  // namespace blipft
