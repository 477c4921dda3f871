// SGD with torch.optim.SGD's semantics (momentum without dampening, coupled weight decay).
#include "optimizers/optimizers.h"

namespace blipft {

namespace {

class Sgd : public Optimizer {
 public:
  explicit Sgd(const TrainSection& train) : train_(train) {}
  std::vector<std::string> state_names() const override {
    return train_.momentum != 0 ? std::vector<std::string>{"momentum_buffer"} : std::vector<std::string>{};
  }
  void scalars(int64_t, double lr, float* values) const override {
    values[kLearningRate] = static_cast<float>(lr);
    values[kBiasCorrection1] = values[kBiasCorrection2] = 1;
  }
  void update(Ops& ops, const Operands& of, const Tensor& scalars, Stream stream) const override {
    ops.sgd_update({.param = of.param, .master = of.master, .grad = of.grad,
                    .momentum_buffer = of.state.empty() ? Tensor{} : of.state[0], .scalars = scalars,
                    .squares = of.squares,
                    .momentum = static_cast<float>(train_.momentum),
                    .weight_decay = static_cast<float>(train_.weight_decay)},
                   stream);
  }
  double bytes_per_element(DType param, DType grad, DType state, bool master) const override {
    const double weights =
        master ? 8.0 + static_cast<double>(dtype_size(param)) : 2.0 * static_cast<double>(dtype_size(param));
    return weights + static_cast<double>(dtype_size(grad) + (train_.momentum != 0 ? 2 * dtype_size(state) : 0));
  }

 private:
  TrainSection train_;
};

}  // namespace

std::unique_ptr<Optimizer> make_sgd(const TrainSection& train) { return std::make_unique<Sgd>(train); }

}  // namespace blipft
