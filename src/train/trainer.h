// Trainer: the loop of a training run: next batch, launch, finished steps, validation, checkpoint, stop.
//
// Errors: an exception of one rank (an unreadable sample, a full disk for its trace) leaves steps() without a
// collective. RankGuard::run() (agreement/rank_guard.h), which calls the whole run, then prints it and ends all ranks
// with code 1. A checkpoint that is being written at that moment stays as step-N.partial; the next run removes it.
#pragma once

#include <memory>

#include "blipft/monitor.h"
#include "checkpoint/checkpoints.h"
#include "train/run_end.h"
#include "train/validation.h"

namespace blipft {

class Trainer {
 public:
  /// Keeps references to all arguments. `stop`: stop requests (signals, time limit).
  Trainer(TrainingResources& resources, RunFaults& faults, const RunObservers& observers, const StopRequest& stop);
  /// Trains to the last step, or until a stop is requested or train.early_stopping_patience ends the run. A stop
  /// request (signal, time limit) takes effect after the current step and its validation, with a checkpoint. Called by
  /// all ranks.
  void steps();
  RunResults results() const { return {end_, validation_.best(), checkpoints_}; }

 private:
  void train_step(int64_t step);
  void finished_step(const StepResult& result);
  void drain();
  double seconds_of(const StepResult& result);
  bool records_kernels_of(int64_t step) const;
  void start_kernels();
  void stop_kernels(int64_t step);
  void count_texts(const HostBatch& batch, int64_t step);
  void check_targets(int64_t steps);
  void validate(int64_t step);
  void check_contents(bool wait);
  bool checkpoint_and_stop(int64_t done);
  void finish_checkpoints();
  void report_checkpoints();

  TrainingResources& r_;
  RunFaults& faults_;
  RunObservers observers_;
  Validation validation_;
  Checkpoints checkpoints_;
  RunEnd end_;
  double step_seconds_ = 0;                // duration of the last finished step
  std::optional<int64_t> last_end_ns_;     // end of the previous step on the device's clock, if nothing ran in between
  int64_t texts_without_target_ = 0, texts_cut_ = 0;  // counts over this rank's samples so far
};

}  // namespace blipft
