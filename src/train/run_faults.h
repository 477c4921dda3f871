// RunFaults: handles unreadable samples, non-finite steps and a removed output folder, and reports progress to the
// watchdog.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "blipft/activity.h"
#include "blipft/comm.h"
#include "blipft/config.h"
#include "blipft/loading.h"
#include "io/known_file.h"
#include "liveness/watchdog.h"
#include "train/bad_samples.h"
#include "train/nonfinite_steps.h"
#include "train/observers/training_observer.h"

namespace blipft {

class RunFaults {
 public:
  RunFaults(const Config& config, const World& world, Watchdog& watchdog)
      : config_(config), world_(world), activity_(world.activity()), watchdog_(watchdog) {}
  ~RunFaults();
  RunFaults(const RunFaults&) = delete;
  RunFaults& operator=(const RunFaults&) = delete;

  Activity& activity() const { return activity_; }
  Watchdog& watchdog() const { return watchdog_; }
  /// Watches communicators, which may fail asynchronously. They must outlive this object, or stop_watching() is called.
  void watch(const CommGroups& groups) const;
  /// Sets what releases the folders if this process ends because another rank or the launcher is gone.
  void unlock_at_end(const std::function<void()>& unlock) const;
  void stop_watching() const { watchdog_.set_check(nullptr); }
  /// Returns the next batch of step `step`. From here on verdicts and warnings name that step.
  const HostBatch* next(DataLoader& loader, int64_t step);
  /// Returns the next batch of the validation after `step`.
  const HostBatch* next_of_validation(DataLoader& loader, int64_t step);
  /// Called after each step, in order; see NonFiniteSteps::finished().
  void finished(const StepResult& result, TrainingObserver& observer);
  /// Records that the output folder exists from now on.
  void folder_made() { folder_ = io::KnownFile(config_.output.path); }
  /// Reports the samples and steps that were skipped since `first_step`, with which this part of the run began. Called by
  /// all ranks after the last of `steps` steps. Throws AgreedError if too many were skipped: then no model is saved.
  void before_saving(int64_t first_step, int64_t steps, TrainingObserver& observer);
  /// Called by all ranks after saving into `saved`. Throws AgreedError if the output folder vanished during the run.
  void after_saving(const std::vector<std::string>& saved) const;

 private:
  const HostBatch* next_batch(DataLoader& loader, const std::string& when, bool trains);

  const Config& config_;
  const World& world_;
  Activity& activity_;
  Watchdog& watchdog_;
  NonFiniteSteps nonfinite_{config_};
  BadSamples bad_samples_{config_, world_};
  io::KnownFile folder_;
  bool vanished_ = false;                  // the output folder vanished before saving, which makes a new one
};

}  // namespace blipft
