// Adagrad (Duchi et al. 2011) in f32 on CPUs, an optimizer that no file of src/ knows:
//
//   s += g^2,  w -= lr g / (sqrt(s) + eps)
#pragma once

#include <cmath>

#include "blipft/optimizer.h"

namespace blipft::testing {

class ToyOptimizer : public Optimizer {
 public:
  /// Larger than the gradients of the tests' models. With a small eps a step is lr times a sign, and the rounding of
  /// sums near zero would change the sign.
  static constexpr float kEps = 0.1f;

  std::vector<StateSpec> states(const Parameter&, DType) const override {
    return {{"sum_of_squares", &plain_format(DType::f32)}};
  }
  bool decays(const Parameter&) const override { return false; }
  void scalars(int64_t, double lr, float* values) const override {
    values[kLearningRate] = static_cast<float>(lr);
    values[kBiasCorrection1] = values[kBiasCorrection2] = 1;
  }
  void update(Ops&, const Operands& of, const Tensor& scalars, Stream) const override {
    const float *gradient = of.grad.as<float>(), lr = scalars.as<float>()[kLearningRate];
    float *weight = of.param.as<float>(), *sum = of.state.at(0).tensor().as<float>();
    for (int64_t i = 0; i < of.param.numel(); ++i) {
      sum[i] += gradient[i] * gradient[i];
      weight[i] -= lr * gradient[i] / (std::sqrt(sum[i]) + kEps);
    }
    if (!of.squares) return;
    for (int64_t i = 0; i < of.squares.numel(); ++i) {
      float total = 0;
      for (int64_t e = i * kSquaresSpan; e < std::min((i + 1) * kSquaresSpan, of.grad.numel()); ++e)
        total += gradient[e] * gradient[e];
      of.squares.as<float>()[i] = total;
    }
  }
};

}  // namespace blipft::testing
