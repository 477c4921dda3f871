// Which samples come in which step of a run.
#pragma once

#include "blipft/config.h"
#include "blipft/data.h"

namespace blipft {

/// What Sampler is asked for by a run. `samples`: of the dataset; `epoch_samples`: see SampleSet.
Sampler::Settings sampler_settings(const Config& config, int64_t rank, int64_t world, int64_t samples,
                                   int64_t epoch_samples);
/// Steps of a run: train.max_epochs, train.max_steps. Throws UserError when neither says when to stop.
int64_t count_steps(const TrainSection& train, int64_t steps_per_epoch);

}  // namespace blipft
