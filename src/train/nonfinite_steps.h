// NonFiniteSteps: handles steps with a non-finite loss or gradient norm (train.on_nonfinite).
#pragma once

#include <cstdint>
#include <string>

#include "agreement/rank_guard.h"
#include "blipft/config.h"
#include "engine/step_program.h"

namespace blipft {

/// Steps are reported in order. Loss and norm are equal on all ranks, and so are the decisions.
class NonFiniteSteps {
 public:
  explicit NonFiniteSteps(const Config& config) : config_(config) {}

  /// Returns an empty text for a finite step. For a step with a non-finite gradient norm and train.on_nonfinite=skip,
  /// it returns a warning: the device has skipped the update. Throws SharedError, which ends all ranks, with `stop`, if
  /// only the loss is not finite (then the update was not skipped), and after kMaxInARow skipped steps in a row.
  std::string finished(const StepResult& result);
  /// Called after the last step. Throws UserError if half of the steps or more were skipped: the model is not saved.
  void check_run(int64_t steps) const;
  int64_t skipped() const { return skipped_; }
  /// "3 of 40 steps changed nothing, their gradient norm was not finite: 7, 8, 31"
  std::string summary(int64_t steps) const;

  static constexpr int64_t kMaxInARow = 20;

 private:
  const Config& config_;
  int64_t skipped_ = 0, in_a_row_ = 0;
  std::string first_;                      // step numbers of the first few skipped steps
};

}  // namespace blipft
