// The loop of a training run; see trainer.h.
#include "train/trainer.h"

#include <algorithm>
#include <cstdio>

#include "engine/settings.h"
#include "plan/batch_choice.h"

namespace blipft {

namespace {

CheckpointParts checkpoint_parts(const TrainingResources& r, const BestValidation& best, const StopRequest& stop) {
  CheckpointParts parts{.config = &r.config(), .keys = config_values(r.config()), .world = &r.world, .times = &r.times, .stop = &stop,
                        .weights = r.weight_context(), .run = r.facts(), .resumed = r.run.resume ? r.run.resume->folder : ""};
  // Replicas are ranks with equal state: without shards all ranks, else those with the same index in their shard
  // groups.
  parts.replica = r.engine->store.shards() == 1 ? r.world.rank() : r.backend.groups->shard_group();
  for (const Fact& fact : r.run.inputs) parts.run[fact.name] = fact.value;
  parts.run[kRunId] = r.run.id;
  if (!r.plan.choice.reason.empty()) parts.run["choice"] = r.plan.choice.reason;
  if (!r.plan.choice.timings.empty()) parts.run[kChoiceTimings] = r.plan.choice.timings;
  if (r.loaders.validation) parts.run.merge(best.facts());
  if (r.backend.on_gpu()) parts.gemm_table = r.backend.gemm_table;
  return parts;
}

}  // namespace

Trainer::Trainer(TrainingResources& resources, RunFaults& faults, const RunObservers& observers, const StopRequest& stop)
    : r_(resources), faults_(faults), observers_(observers), validation_(resources, faults, observers.all),
      checkpoints_(checkpoint_parts(resources, validation_.best(), stop)) {
  end_.steps = resources.run.first_step;
}

void Trainer::steps() {
  check_contents(false);
  r_.world.barrier();
  const auto start = StartTimes::Clock::now();
  for (int64_t step = r_.run.first_step; step < r_.total_steps() && !validation_.best().out_of_patience(); ++step) {
    train_step(step);
    if (step + 1 == std::min(r_.loaders.training->steps_per_epoch(), r_.total_steps()))
      check_targets(step + 1 - r_.run.first_step);
    if (validation_.due(step)) validate(step);
    if (checkpoint_and_stop(step + 1)) break;
  }
  if (validation_.best().out_of_patience()) end_.early_stop = validation_.early_stop_text();
  drain();
  check_contents(true);
  r_.world.barrier();
  end_.train_seconds = seconds_since(start);
}

void Trainer::train_step(int64_t step) {
  StepProgram& program = *r_.engine->program;
  DataLoader& loader = *r_.loaders.training;
  StepResult result;
  const int64_t wait_begin = unix_ns();
  const HostBatch* batch = faults_.next(loader, step);
  const int64_t wait_end = unix_ns();
  const bool recorded = records_kernels_of(step);
  if (recorded) start_kernels();
  if (program.in_flight() == StepProgram::kSlots && program.finished(true, result)) finished_step(result);
  program.launch(*batch, learning_rate(r_.config().train, step, r_.total_steps()), wait_begin, wait_end);
  // Waits until the device has copied the batch, because give_back() lets the loader overwrite it. On a GPU the step
  // itself still runs then.
  program.batch_copied(true);
  count_texts(*batch, step);
  loader.give_back(batch);
  if (recorded) stop_kernels(step);
  while (program.finished(false, result)) finished_step(result);
}

// Returns the duration since the end of the previous step, on the device's clock. The host clock cannot be used
// because several steps may be reported as finished at the same time.
double Trainer::seconds_of(const StepResult& result) {
  const int64_t from = last_end_ns_.value_or(result.begin_ns);
  last_end_ns_ = result.end_ns;
  return step_seconds_ = static_cast<double>(std::max<int64_t>(1, result.end_ns - from)) * 1e-9;
}

void Trainer::finished_step(const StepResult& result) {
  observers_.all.step({result, result.step / r_.loaders.training->steps_per_epoch(), seconds_of(result)});
  faults_.finished(result, observers_.all);
  const int64_t every = r_.config().output.memory_every;
  if (result.step <= 1 || (every > 0 && result.step % every == 0)) {
    const std::string pass = StepProgram::pass_name(result.text);
    observers_.all.memory({result.step, pass, *r_.arena, *r_.backend.device});
  }
}

void Trainer::drain() {
  StepResult result;
  while (r_.engine->program->finished(true, result)) finished_step(result);
}

bool Trainer::records_kernels_of(int64_t step) const {
  const std::vector<int64_t>& chosen = r_.config().trace.kernels;
  return r_.backend.kernels && std::find(chosen.begin(), chosen.end(), step) != chosen.end();
}

// A step with recorded kernels has the device alone: it overlaps with neither the previous nor the next step, and the
// cost of recording outside of the step does not count as its time.
void Trainer::start_kernels() {
  drain();
  r_.backend.device->synchronize();
  r_.backend.kernels->start();
  r_.world.barrier();                      // otherwise collectives of the first rank would include the others' start
  last_end_ns_.reset();
}

void Trainer::stop_kernels(int64_t step) {
  drain();
  r_.backend.device->synchronize();
  observers_.trace.kernels(step, r_.backend.kernels->stop());
  if (const int64_t lost = r_.backend.kernels->lost(); lost > 0)
    std::fprintf(stderr, "warning: rank %lld: CUPTI gave %lld kernels of step %lld no times; they are missing in the trace\n",
                 static_cast<long long>(r_.world.rank()), static_cast<long long>(lost), static_cast<long long>(step));
  last_end_ns_.reset();
}

void Trainer::count_texts(const HostBatch& batch, int64_t step) {
  texts_without_target_ += batch.texts_without_target;
  texts_cut_ += batch.texts_cut;
  if (step == r_.run.first_step && batch.texts_cut == batch.layout.samples() && !r_.data.surveyed())
    observers_.all.warning(concat("all ", batch.texts_cut, " texts of this rank's first step are cut to ",
                                  r_.config().data.max_text_tokens, " tokens (data.max_text_tokens)"));
}

// Called after the `steps` steps of the first epoch, or after all if there are fewer. Samples with empty captions add
// nothing to the loss; a step with only such samples has loss 0 and no gradient. If all are empty, nothing is trained.
void Trainer::check_targets(int64_t steps) {
  const Config& config = r_.config();
  const int64_t samples = steps * samples_of_a_step(config, r_.world.size());
  const auto empty = static_cast<int64_t>(r_.world.sum(static_cast<double>(texts_without_target_)));
  const auto cut = static_cast<int64_t>(r_.world.sum(static_cast<double>(texts_cut_)));
  if (cut > 0)
    observers_.all.warning(concat(cut, " of ", samples, " texts have more than ", config.data.max_text_tokens,
                                  " tokens (data.max_text_tokens) and are cut"));
  if (empty == 0) return;
  r_.world.run_agreeing_on_errors([&] {
    BLIPFT_USER_CHECK(empty < samples, location_of(config, "data.path"), ": data.path: ", config.data.path,
                      ": all ", samples, " captions of the first ", counted(steps, "step"),
                      " are empty, so there is nothing to train on. Check the captions, and data.num_train_samples if it takes ",
                      "only the first ones.");
  });
  observers_.all.warning(concat(empty, " of ", samples, " samples have an empty caption and do not contribute to the loss"));
}

void Trainer::validate(int64_t step) {
  drain();
  validation_.run(step);
  checkpoints_.add_to_run(validation_.best().facts());
  last_end_ns_.reset();                    // this time does not count for the next step
}

// Compares the contents of the inputs between ranks, and with those of the run before a resume (ContentCheck). Without
// `wait`, returns at once if a rank has not finished reading its inputs.
void Trainer::check_contents(bool wait) {
  ContentCheck& contents = *r_.sources.contents;
  if (contents.done() || (!wait && !contents.ready())) return;
  drain();                                 // finish() may end the run: first report the finished steps
  contents.finish();
  checkpoints_.add_to_run(contents.recorded());
  if (!contents.notes().empty()) observers_.all.warning("changed since the checkpoint: " + contents.notes());
}

// Called after `done` steps. Writes a checkpoint if one is due: by schedule, for a new best validation, at a stop
// request, or after the last step. Returns true if the run ends here. A stop request in the last step does not count as
// one.
bool Trainer::checkpoint_and_stop(int64_t done) {
  end_.steps = done;
  const bool last = done == r_.total_steps() || validation_.best().out_of_patience();
  const bool best = validation_.consume_new_best() && r_.config().checkpoint.keep_best != BestCriterion::none;
  const bool due = checkpoints_.due(done, step_seconds_) || best;
  check_contents(false);
  if (due || (last && writes_checkpoints(r_.config()))) {
    drain();
    faults_.activity().phase(Activity::Phase::saving);
    check_contents(true);                  // before writing a checkpoint that may be resumed
    checkpoints_.write(done);
    last_end_ns_.reset();
    faults_.activity().phase(Activity::Phase::training);
  }
  if (!last && !checkpoints_.stop_reason().empty()) end_.stopped_by = checkpoints_.stop_reason();
  if (last || end_.stopped_by) finish_checkpoints();
  report_checkpoints();
  return last || end_.stopped_by;
}

void Trainer::finish_checkpoints() {
  faults_.activity().phase(Activity::Phase::saving);
  try {
    checkpoints_.finish();
  } catch (const AgreedError& error) {
    if (end_.stopped_by) throw;
    end_.lost_checkpoint = error.what();   // the run fails with this error after the model is saved
    observers_.all.warning(error.what());
  }
}

void Trainer::report_checkpoints() {
  Checkpoints::Outcome outcome;
  while (checkpoints_.outcome(outcome)) {
    if (outcome.failure.empty()) observers_.all.checkpoint(outcome);
    else observers_.all.warning(outcome.failure);
  }
}

}  // namespace blipft
