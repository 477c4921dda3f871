// The optimizers that the factory table lists.
#pragma once

#include "blipft/optimizer.h"

namespace blipft {

std::unique_ptr<Optimizer> make_adamw(const TrainSection& train);
std::unique_ptr<Optimizer> make_sgd(const TrainSection& train);

}  // namespace blipft
