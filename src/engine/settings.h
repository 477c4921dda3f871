// What the keys of a run file become for the parts below config/, which know no run file.
#pragma once

#include <memory>

#include "blipft/config.h"
#include "blipft/optimizer.h"
#include "blipft/store.h"

namespace blipft {

/// Dtypes of what a run trains: as train.precision says; adapters keep f32 weights beside bf16 products where
/// adapter.dtype asks for it.
PrecisionTypes precision_types(Precision precision);
PrecisionTypes precision_types(const Config& config);

/// The optimizer that train.optim names. Throws UserError naming the known ones.
std::unique_ptr<Optimizer> make_optimizer(const TrainSection& train);

/// Of train.lr, lr_schedule, warmup_steps and warmup_ratio; see LearningRateSchedule.
double learning_rate(const TrainSection& train, int64_t step, int64_t total);

}  // namespace blipft
