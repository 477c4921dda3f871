// A training run from its configuration to the saved model.
#include "blipft/trainer.h"

#include "agreement/rank_guard.h"
#include "config/config_facts.h"
#include "engine/placement.h"
#include "io/run_log.h"
#include "liveness/stop_request.h"
#include "train/start/run_header.h"
#include "train/start/training_start.h"
#include "train/trainer.h"

namespace blipft {

namespace {

/// A training run and its observers. Members are destroyed in reverse order: observers before the observed objects.
class TrainingRun {
 public:
  TrainingRun(const Config& config, const World& world, Watchdog& watchdog)
      : resources_(config, world), faults_(resources_.plan.config, world, watchdog) {}

  /// Returns true if a stop was requested before the last step.
  bool run();
  /// Closes trace and record and releases the folders. Called instead of the destructor if this rank failed.
  void close();

 private:
  void start_records();
  void announce();

  TrainingResources resources_;
  std::unique_ptr<TrainingStart> start_;   // null once the run has started
  std::unique_ptr<RunTrace> trace_;
  std::unique_ptr<Progress> progress_;
  std::unique_ptr<RunRecord> record_;      // null on other ranks than rank 0
  TrainingObservers observers_;
  double ready_seconds_ = 0;               // seconds from the start of the process to the first step
  StopRequest stop_request_;
  std::unique_ptr<Trainer> trainer_;       // a member: an error of this rank must not destroy it
  RunFaults faults_;                       // last: its watchdog checks the communicators
};

bool TrainingRun::run() {
  start_ = std::make_unique<TrainingStart>(resources_, faults_);
  if (!start_->run()) return false;
  start_.reset();
  start_records();
  announce();
  const RunObservers observers{*progress_, *trace_, record_.get(), observers_};
  trainer_ = std::make_unique<Trainer>(resources_, faults_, observers, stop_request_);
  trainer_->steps();
  finish_run(resources_, trainer_->results(), observers, faults_, ready_seconds_);
  return trainer_->results().end.stopped_by.has_value();
}

RunRecord::Part record_part(const TrainingResources& r, int64_t part) {
  const bool resumed = r.run.resume != nullptr;
  return {.run_id = r.run.id,
          .ranks = r.world.size(),
          .samples_per_step = samples_of_a_step(r.config(), r.world.size()),
          .number = resumed ? std::max<int64_t>(1, part) : 0,
          .first_step = r.run.first_step,
          .total_steps = r.total_steps(),
          .resumed = resumed,
          .strategy = groups_text(r.plan.memory)};
}

// Called last: after it only the trace and the record can refuse the run.
void TrainingRun::start_records() {
  const TrainingResources& r = resources_;
  int64_t start_ns = unix_ns();            // start of the trace's time, equal on every rank
  r.world.broadcast(&start_ns, sizeof start_ns, 0);
  r.run.folder->remove_earlier();
  const int64_t part = r.run.resume && r.config().trace.enabled ? RunTrace::next_part(r.config(), r.world) : 0;
  r.world.run_agreeing_on_errors([&] {
    faults_.folder_made();
    trace_ = std::make_unique<RunTrace>(r, start_ns, part);
    if (r.plan.memory.loading_bytes > 0) trace_->scratch_memory(-1, "loading", r.plan.memory.loading_bytes);
  });
  r.world.run_agreeing_on_errors([&] {                   // no rank's trace can refuse the run any more
    if (r.first_rank()) record_ = std::make_unique<RunRecord>(r.config(), record_part(r, part));
  });
}

void TrainingRun::announce() {
  const Progress::Run run = progress_facts(resources_);
  progress_ = std::make_unique<Progress>(resources_.config(), run, !resources_.first_rank());
  observers_.add(*progress_);
  observers_.add(*trace_);
  if (record_) observers_.add(*record_);
  resources_.times.part("trace");
  ready_seconds_ = resources_.times.seconds();
  if (resources_.first_rank()) print_run_header(resources_, run, observers_);
}

void TrainingRun::close() {
  if (trace_) trace_->close();
  if (record_) record_->close();
  if (resources_.run.folder) resources_.run.folder->release()();
}

}  // namespace

int train(const Config& config, const World& world) {
  choose_gpu_queues(config, world);        // must run before CUDA starts
  start_run_log(world.rank() == 0);
  RankGuard guard(config, world);
  check_same_config(config, world);
  TrainingRun run(config, world, guard.watchdog());
  bool stopped = false;
  guard.run([&] { stopped = run.run(); }, [&] { run.close(); });
  return stopped ? kStoppedCode : 0;
}

}  // namespace blipft
