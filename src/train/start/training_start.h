// The start of a training run, up to its first step.
#pragma once

#include "train/run_faults.h"
#include "train/training_resources.h"

namespace blipft {

/// Fills `resources`. Returns false if the run has ended before and there is nothing to do. Called by all ranks.
bool start_training(TrainingResources& resources, RunFaults& faults);

/// What the run will write, with the space that it takes.
std::vector<FileToWrite> files_to_write(const TrainingResources& resources);

}  // namespace blipft
