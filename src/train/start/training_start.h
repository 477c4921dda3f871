// The start of a training run, up to its first step.
#pragma once

#include <memory>

#include "train/run_faults.h"
#include "train/training_resources.h"

namespace blipft {

class TrainingStart {
 public:
  /// Keeps references to both. After an error of one rank this object must live until all ranks have ended: see
  /// StartParts.
  TrainingStart(TrainingResources& resources, RunFaults& faults);
  ~TrainingStart();
  /// Fills the resources. Returns false if the run has ended before and there is nothing to do. Called by all ranks.
  bool run();

 private:
  class Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace blipft
