// Functions that create the optimizers, and their common base class.
#pragma once

#include "blipft/optimizer.h"

namespace blipft {

std::unique_ptr<Optimizer> make_adamw(const OptimizerSettings& settings, int64_t seed);
std::unique_ptr<Optimizer> make_adamw8bit(const OptimizerSettings& settings, int64_t seed);
std::unique_ptr<Optimizer> make_lion(const OptimizerSettings& settings, int64_t seed);
std::unique_ptr<Optimizer> make_sgd(const OptimizerSettings& settings, int64_t seed);

/// Base class of all optimizers: applies the settings for weight decay and rounding.
class DecayingOptimizer : public Optimizer {
 public:
  explicit DecayingOptimizer(const OptimizerSettings& settings, int64_t seed) : settings_(settings), seed_(seed) {}
  bool decays(const Parameter& parameter) const override {
    return settings_.decay_norms_and_biases || settings_.weight_decay == 0 ||
           parameter.kind != ParameterKind::norm_or_bias;
  }

 protected:
  float weight_decay(const Operands& of) const {
    return of.decays ? static_cast<float>(settings_.weight_decay) : 0.0f;
  }
  /// Returns the rounding of the operands' parameters: stochastic if the settings say so and they are bf16 without
  /// masters.
  Rounding rounding(const Operands& of) const {
    return {settings_.stochastic_rounding && of.param.dtype == DType::bf16 && !of.master, static_cast<uint64_t>(seed_),
            static_cast<uint32_t>(of.unit), of.first};
  }

  OptimizerSettings settings_;
  int64_t seed_;
};

}  // namespace blipft
