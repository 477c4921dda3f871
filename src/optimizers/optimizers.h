// The optimizers that the factory table lists.
#pragma once

#include "blipft/optimizer.h"

namespace blipft {

std::unique_ptr<Optimizer> make_adamw(const TrainSection& train);
std::unique_ptr<Optimizer> make_adamw8bit(const TrainSection& train);
std::unique_ptr<Optimizer> make_lion(const TrainSection& train);
std::unique_ptr<Optimizer> make_sgd(const TrainSection& train);

/// How these operands' parameters are rounded: those in bf16 as train.stochastic_rounding says.
inline Rounding rounding(const TrainSection& train, const Optimizer::Operands& of) {
  return {train.stochastic_rounding && of.param.dtype == DType::bf16 && !of.master, static_cast<uint64_t>(train.seed),
          static_cast<uint32_t>(of.unit), of.first};
}

}  // namespace blipft
