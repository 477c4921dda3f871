// The end of a run: saves the model, ends the records and prints the last lines.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoints.h"
#include "train/best_validation.h"
#include "train/observers/progress.h"
#include "train/observers/run_record.h"
#include "train/observers/run_trace.h"
#include "train/run_faults.h"
#include "train/training_resources.h"

namespace blipft {

/// How the loop of steps ended.
struct RunEnd {
  int64_t steps = 0;                       ///< steps of the whole run, including those before a resume
  double train_seconds = 0;                ///< training time of this part of the run
  std::optional<std::string> stopped_by;   ///< the signal or limit that stopped the run, after a checkpoint
  std::optional<std::string> early_stop;   ///< the reason why the run ended before its last step
  std::optional<std::string> lost_checkpoint;  ///< the reason why the last checkpoint was not written
  /// Returns the reason for the last row of metrics.jsonl. If the last checkpoint was not written, the reason is not
  /// kDone, so that checkpoint.resume=auto does not treat the run as ended.
  std::string reason() const { return stopped_by ? *stopped_by : lost_checkpoint.value_or(kDone); }
};

/// The observers of a run's events. The record is null on all ranks but rank 0.
struct RunObservers {
  Progress& progress;
  RunTrace& trace;
  RunRecord* record;
  TrainingObserver& all;
};

/// The results of the steps that the end of a run needs.
struct RunResults {
  const RunEnd& end;
  const BestValidation& best;
  const Checkpoints& checkpoints;
};

/// Saves the model unless the run was stopped, ends the records and prints the last lines. Called by all ranks. Throws
/// AgreedError if too many steps were skipped (then no model is saved), and, after saving, if the output folder was
/// removed during the run, the last checkpoint was not written, or a trace is incomplete with trace.on_error=stop.
void finish_run(const TrainingResources& resources, const RunResults& results, const RunObservers& observers, RunFaults& faults,
                double ready_seconds);

}  // namespace blipft
