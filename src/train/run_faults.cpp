// Faults of a run; see run_faults.h.
#include "train/run_faults.h"

#include "liveness/launch_watch.h"

namespace blipft {

RunFaults::~RunFaults() {
  watchdog_.set_check(nullptr);
  LaunchWatch::set_end(nullptr);
}

void RunFaults::unlock_at_end(const std::function<void()>& unlock) const {
  watchdog_.set_end(unlock);
  // Ranks that lose their launcher end one by one. Rank 0 renames and removes files in the folders, so only rank 0
  // releases the locks. If rank 0 is gone, its locks belong to a dead process, and the next run removes them.
  if (world_.rank() == 0) LaunchWatch::set_end(unlock);
}

void RunFaults::watch(const CommGroups& groups) const {
  watchdog_.set_check([&groups] { return groups.failure(); });
}

const HostBatch* RunFaults::next(DataLoader& loader, int64_t step) {
  activity_.step(step);
  return next_batch(loader, concat("step ", step), true);
}

const HostBatch* RunFaults::next_of_validation(DataLoader& loader, int64_t step) {
  activity_.set({Activity::Phase::validation, Activity::RankOperation::host, step, -1});
  return next_batch(loader, concat("validation after step ", step), false);
}

const HostBatch* RunFaults::next_batch(DataLoader& loader, const std::string& when, bool trains) {
  const Activity::Scope scope(activity_, Activity::RankOperation::data);
  const HostBatch* batch = loader.next();
  bad_samples_.warn(*batch, when);
  if (trains) bad_samples_.count(*batch);
  return batch;
}

void RunFaults::finished(const StepResult& result, TrainingObserver& observer) {
  if (const std::string warning = nonfinite_.finished(result); !warning.empty()) observer.warning(warning);
}

void RunFaults::before_saving(int64_t first_step, int64_t steps, TrainingObserver& observer) {
  const std::string bad = bad_samples_.summary((steps - first_step) * samples_of_a_step(config_, world_.size()));
  if (!bad.empty()) observer.warning(bad);
  if (nonfinite_.skipped() > 0) observer.warning(nonfinite_.summary(steps));
  world_.run_agreeing_on_errors([&] { nonfinite_.check_run(steps); });
  activity_.phase(Activity::Phase::saving);
  vanished_ = folder_.vanished();
}

void RunFaults::after_saving(const std::vector<std::string>& saved) const {
  world_.run_agreeing_on_errors([&] {
    BLIPFT_USER_CHECK(!vanished_, location_of(config_, "output.path"), ": output.path: ", config_.output.path, ": the ",
                      "folder that the run began with was removed or replaced; what was in it is lost",
                      saved.empty() ? "" : concat("; the model was saved all the same, as ", saved.front()));
  });
  activity_.phase(Activity::Phase::end);
}

}  // namespace blipft
