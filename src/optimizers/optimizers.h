// The optimizers that the factory table lists.
#pragma once

#include "blipft/optimizer.h"

namespace blipft {

std::unique_ptr<Optimizer> make_adamw(const OptimizerSettings& settings);
std::unique_ptr<Optimizer> make_adamw8bit(const OptimizerSettings& settings);
std::unique_ptr<Optimizer> make_lion(const OptimizerSettings& settings);
std::unique_ptr<Optimizer> make_sgd(const OptimizerSettings& settings);

/// How these operands' parameters are rounded: those in bf16 as settings.stochastic_rounding says.
inline Rounding rounding(const OptimizerSettings& settings, const Optimizer::Operands& of) {
  return {settings.stochastic_rounding && of.param.dtype == DType::bf16 && !of.master, settings.seed,
          static_cast<uint32_t>(of.unit), of.first};
}

}  // namespace blipft
