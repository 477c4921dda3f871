// NonFiniteSteps: what becomes of a step whose loss or gradient norm is not finite (train.on_nonfinite).
#pragma once

#include <cstdint>
#include <string>

#include "agreement/rank_guard.h"
#include "blipft/config.h"
#include "engine/step_program.h"

namespace blipft {

/// Steps come in order; loss and norm, and so what is decided, are the same on every rank.
class NonFiniteSteps {
 public:
  explicit NonFiniteSteps(const Config& config) : config_(config) {}

  /// Empty for a finite step; else, with `skip`, what to warn of: its update has changed nothing. Throws SharedError
  /// with `stop`, where the loss alone is not finite, so that the step was not skipped, and when so many steps in a row
  /// are skipped that the weights themselves must be bad.
  std::string finished(const StepResult& result);
  /// After the last step. Throws UserError when half of the run's steps or more were skipped: no model to be saved.
  void check_run(int64_t steps) const;
  int64_t skipped() const { return skipped_; }
  /// "3 of 40 steps changed nothing, their gradient norm was not finite: 7, 8, 31"
  std::string summary(int64_t steps) const;

  static constexpr int64_t kMaxInARow = 20;

 private:
  const Config& config_;
  int64_t skipped_ = 0, in_a_row_ = 0;
  std::string first_;                      // the numbers of the first few
};

}  // namespace blipft
