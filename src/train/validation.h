// Validation: the loss of the held-out samples, and the scores of texts that are generated for them. A new best result
// is only recorded here; Trainer::checkpoint_and_stop() then writes its checkpoint, after the same step.
#pragma once

#include <string>

#include "train/best_validation.h"
#include "train/observers/training_observer.h"
#include "train/run_faults.h"
#include "train/training_resources.h"

namespace blipft {

class Validation {
 public:
  /// Keeps references to all arguments.
  Validation(TrainingResources& resources, RunFaults& faults, TrainingObserver& observers);
  /// Returns true if the run validates after `step`.
  bool due(int64_t step) const;
  /// Validates, and generates if that is due. No step may be in flight. Called by all ranks.
  void run(int64_t step);
  const BestValidation& best() const { return best_; }
  /// Returns true if the latest validation is the best so far, then resets that flag.
  bool consume_new_best() { return std::exchange(best_now_, false); }
  /// Returns the message for the end by train.early_stopping_patience. Call it if best().out_of_patience().
  std::string early_stop_text() const;

 private:
  ValidationEvent measure_loss(int64_t step);
  bool generates_after(int64_t step) const;
  void evaluate(int64_t step);
  int64_t interval() const;                // steps between validations

  TrainingResources& r_;
  RunFaults& faults_;
  TrainingObserver& observers_;
  BestValidation best_;                    // the best validation so far
  bool best_now_ = false;
};

}  // namespace blipft
