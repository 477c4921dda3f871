// The output of a run before its first step.
#pragma once

#include "train/observers/progress.h"
#include "train/training_resources.h"

namespace blipft {

/// Returns the facts about the run that Progress needs.
Progress::Run progress_facts(const TrainingResources& resources);

/// Prints model, data, memory and how the run resumes, and warns about settings that are probably mistakes. Called on
/// rank 0, once everything is ready.
void print_run_header(const TrainingResources& resources, const Progress::Run& run, TrainingObserver& observer);

}  // namespace blipft
