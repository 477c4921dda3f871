// A run, from the config to the saved model: its steps and its end; see run.h, and run_start.cpp for what comes before.
#include "blipft/trainer.h"

#include <algorithm>
#include <cstdio>

#include "base/memory_text.h"
#include "checkpoint/saving.h"
#include "checkpoint/training_state.h"
#include "engine/placement.h"
#include "engine/settings.h"
#include "faults/rank_guard.h"
#include "io/saved_model.h"
#include "run/record_files.h"
#include "run/run.h"
#include "run/run_log.h"
#include "weights/adapter_files.h"

namespace blipft {

// From the end of the step before, on the device's clock: the host may see several steps finish at once.
double Run::step_seconds(const StepResult& result) {
  const int64_t from = last_end_ns_ > 0 ? last_end_ns_ : result.begin_ns;
  last_end_ns_ = result.end_ns;
  return step_seconds_ = static_cast<double>(std::max<int64_t>(1, result.end_ns - from)) * 1e-9;
}

void Run::finished_step(const StepResult& result) {
  const double seconds = step_seconds(result);
  const int64_t epoch = result.step / loader_->steps_per_epoch();
  progress_->step(result, epoch, seconds);
  trace_->step(result, epoch, seconds);
  if (record_) record_->step(result, epoch, seconds);
  faults_.finished(result, *progress_);
  const bool memory =
      result.step <= 1 || (config_.output.memory_every > 0 && result.step % config_.output.memory_every == 0);
  if (memory) {
    const std::string pass = StepProgram::pass_name(result.text);
    if (config_.output.memory_every > 0)
      progress_->memory(result.step, arena_->phases(pass), device_->memory().process);
    trace_->memory(result.step, pass);
    trace_->driver_memory(result.step);
  }
}

void Run::drain() {
  StepResult result;
  while (engine_->program->finished(true, result)) finished_step(result);
}

// After `steps` steps, the first epoch's or all there are. Some captions may be empty: their samples add nothing to the
// loss, and a step of nothing else has loss 0 and no gradient. When all are empty, the run would teach nothing.
void Run::check_targets(int64_t steps) {
  const int64_t samples = steps * samples_of_a_step(config_, world_.size());
  const auto empty = static_cast<int64_t>(world_.sum(static_cast<double>(texts_without_target_)));
  const auto cut = static_cast<int64_t>(world_.sum(static_cast<double>(texts_cut_)));
  if (cut > 0)
    progress_->warn(concat(cut, " of ", samples, " texts have more than ", config_.data.max_text_tokens,
                           " tokens (data.max_text_tokens) and are cut"));
  if (empty == 0) return;
  world_.together([&] {
    BLIPFT_USER_CHECK(empty < samples, place_of(config_, "data.path"), ": data.path: ", config_.data.path,
                      ": the captions of all ", samples, " samples of ", steps, " step(s) are empty, so there was",
                      " nothing to learn; look at the captions, and at data.num_train_samples where it takes only the",
                      " first ones");
  });
  progress_->warn(concat(empty, " of ", samples, " samples have an empty caption, and nothing to learn"));
}

// A step whose kernels are recorded has the device for itself: neither the step before it nor the one after it overlaps
// with it, and what recording costs outside of the step is not counted as its time.
void Run::start_kernels() {
  drain();
  device_->synchronize();
  kernels_->start();
  world_.barrier();                        // or the first rank's collectives would show the others' start
  last_end_ns_ = 0;
}

void Run::stop_kernels(int64_t step) {
  drain();
  device_->synchronize();
  trace_->kernels(step, kernels_->stop());
  if (kernels_->lost() > 0)
    std::fprintf(
        stderr, "warning: rank %lld: CUPTI gave %lld kernels of step %lld no times; they are missing in the trace\n",
        static_cast<long long>(world_.rank()), static_cast<long long>(kernels_->lost()), static_cast<long long>(step));
  last_end_ns_ = 0;
}

bool Run::validates_after(int64_t step) const {
  if (!validation_loader_) return false;
  const int64_t asked = config_.train.val_check_interval, every = asked > 0 ? asked : loader_->steps_per_epoch();
  return (step + 1) % every == 0 || step + 1 == loader_->total_steps();
}

// Each rank takes its part of the samples; the sums over ranks are made by the host, so that an evaluation has no
// collectives but those that gather units.
void Run::validate(int64_t step) {
  drain();
  faults_.activity().phase(Activity::Phase::validation);
  const auto start = StartTimes::Clock::now();
  const bool tokens_count = config_.train.loss_normalization == LossNormalization::tokens;
  double loss = 0, weight = 0, tokens = 0;
  StepProgram& program = *engine_->program;
  StepResult result;
  const auto add = [&] {
    const double own = tokens_count ? result.labels : static_cast<double>(result.labels > 0);
    if (own > 0) loss += own * result.loss;
    weight += own;
    tokens += result.labels;
  };
  for (int64_t i = 0; i < validation_loader_->steps_per_epoch(); ++i) {
    const HostBatch* batch = faults_.next_of_validation(*validation_loader_, step);
    if (program.in_flight() == StepProgram::kSlots && program.finished(true, result)) add();
    program.launch_evaluation(*batch);
    program.batch_taken(true);
    validation_loader_->give_back(batch);
  }
  while (program.finished(true, result)) add();
  loss = world_.sum(loss) / world_.sum(weight);  // NaN where nothing was to be learnt
  const auto learnt = static_cast<int64_t>(world_.sum(tokens));
  const double seconds = seconds_since(start);
  progress_->validation(step, loss, learnt, seconds);
  trace_->validation(step, loss, learnt, seconds);
  if (record_) record_->validation(step, loss, learnt, seconds);
  if (best_.of_loss()) note_validation(step + 1, loss);
  if (evaluates_after(step)) evaluate(step);
  last_end_ns_ = 0;                        // the next step is not to count this as its own time
  faults_.activity().phase(Activity::Phase::training);
}

// Counted from the run's start, so that a run that was stopped evaluates after the same steps.
bool Run::evaluates_after(int64_t step) const {
  if (!answers_) return false;
  const int64_t asked = config_.train.val_check_interval, every = asked > 0 ? asked : loader_->steps_per_epoch();
  return step + 1 == loader_->total_steps() || (step + 1) / every % config_.evaluate.every == 0;
}

// What the model says now, and its scores. Nothing of it stays on the device: the cache lies where a step's activations do.
void Run::evaluate(int64_t step) {
  const auto start = StartTimes::Clock::now();
  const bool first_time = answers_->left_out() == 0;
  const ValidationScores found = answers_->evaluate();
  const double seconds = seconds_since(start);
  progress_->evaluation(step, found, seconds);
  trace_->evaluation(step, found, seconds);
  if (record_) record_->evaluation(step, found, seconds);
  if (first_time && answers_->left_out() > 0)
    progress_->warn(concat(answers_->left_out(), " validation samples cannot be answered, and are left out of the scores"));
  for (const Score& score : found.scores)
    if (score.metric == best_.metric()) note_validation(step + 1, score.value);
}

// Every rank has the same value.
void Run::note_validation(int64_t steps, double value) {
  best_now_ = best_.note(steps, value);
  checkpoints_->add_to_run(best_.facts());
  if (best_.out_of_patience())
    ends_early_ = concat("train.early_stopping_patience: ", best_.of_loss() ? "the loss" : best_.metric(), " was ",
                         best_.highest() ? "highest (" : "least (", best_.value(), ") after step ", best_.steps());
}

void Run::start_checkpoints() {
  CheckpointParts parts{.config = &config_, .world = &world_, .times = &times_, .stop = &stop_request_,
                        .weights = weight_context(), .replica = 0, .run = facts(),
                        .resumed = resume_ ? resume_->folder : "", .gemm_table = ""};
  // Without shards every rank holds the same; else the ranks at the same place of each shard group do.
  parts.replica = engine_->store.shards() == 1 ? world_.rank() : groups_->shard_group();
  for (const Fact& fact : read_) parts.run[fact.name] = fact.value;
  parts.run[kRunId] = run_id_;
  if (!choice_.empty()) parts.run["choice"] = choice_;
  if (!timings_.empty()) parts.run[kChoiceTimings] = timings_;
  if (resume_) best_.restore(resume_->index.run);
  if (validation_loader_) parts.run.merge(best_.facts());
  if (device_->kind() == DeviceKind::cuda) parts.gemm_table = gemm_table_;
  checkpoints_ = std::make_unique<Checkpoints>(std::move(parts));
}

// Whether all ranks, and all parts of the run, have read the same.
void Run::check_contents(bool wait) {
  if (contents_->done() || (!wait && !contents_->ready())) return;
  drain();                                 // the run may end here
  contents_->finish();
  checkpoints_->add_to_run(contents_->recorded());
  if (!contents_->notes().empty()) progress_->warn("changed since the checkpoint: " + contents_->notes());
}

// After `done` steps. Whether the run is to end here.
bool Run::checkpoint_and_stop(int64_t done) {
  done_ = done;
  const bool last = done == loader_->total_steps() || !ends_early_.empty();
  const bool best = std::exchange(best_now_, false) && config_.checkpoint.keep_best != BestCriterion::none;
  const bool due = checkpoints_->due(done, step_seconds_) || best;
  check_contents(false);
  if (due || (last && writes_checkpoints(config_))) {
    drain();
    faults_.activity().phase(Activity::Phase::saving);
    check_contents(true);                  // before anything that others may go on from
    checkpoints_->write(done);
    last_end_ns_ = 0;
    faults_.activity().phase(Activity::Phase::training);
  }
  if (!last) stop_reason_ = checkpoints_->stop_reason();
  if (last || stopped()) {
    faults_.activity().phase(Activity::Phase::saving);
    try {
      checkpoints_->finish();
    } catch (const AgreedError& error) {
      if (stopped()) throw;
      lost_checkpoint_ = error.what();     // the run ends with it when the model is saved
      progress_->warn(lost_checkpoint_);
    }
  }
  tell_checkpoint();
  return stopped() || last;
}

void Run::tell_checkpoint() {
  Checkpoints::Outcome outcome;
  while (checkpoints_->outcome(outcome)) {
    if (!outcome.failure.empty()) progress_->warn(outcome.failure);
    else progress_->checkpoint(outcome);
  }
}

void Run::steps() {
  start_checkpoints();
  check_contents(false);
  world_.barrier();
  const auto start = StartTimes::Clock::now();
  StepProgram& program = *engine_->program;
  StepResult result;
  for (int64_t step = first_step_; step < loader_->total_steps() && !best_.out_of_patience(); ++step) {
    const int64_t wait_begin = unix_ns();
    const HostBatch* batch = faults_.next(*loader_, step);
    const int64_t wait_end = unix_ns();
    const std::vector<int64_t>& chosen = config_.trace.kernels;
    const bool recorded = kernels_ && std::find(chosen.begin(), chosen.end(), step) != chosen.end();
    if (recorded) start_kernels();
    if (program.in_flight() == StepProgram::kSlots && program.finished(true, result)) finished_step(result);
    program.launch(*batch, learning_rate(config_.train, step, loader_->total_steps()), wait_begin, wait_end);
    // On a GPU the copy takes a moment that the loop would otherwise spend waiting for the step itself.
    program.batch_taken(true);
    texts_without_target_ += batch->texts_without_target;
    texts_cut_ += batch->texts_cut;
    if (step == first_step_ && batch->texts_cut == batch->layout.samples() && !data_.surveyed())
      progress_->warn(concat("all ", batch->texts_cut, " texts of this rank's first step are cut to ",
                             config_.data.max_text_tokens, " tokens (data.max_text_tokens)"));
    loader_->give_back(batch);
    if (recorded) stop_kernels(step);
    while (program.finished(false, result)) finished_step(result);
    if (step + 1 == std::min(loader_->steps_per_epoch(), loader_->total_steps())) check_targets(step + 1 - first_step_);
    if (validates_after(step)) validate(step);
    if (checkpoint_and_stop(step + 1)) break;
  }
  drain();
  check_contents(true);
  world_.barrier();
  train_seconds_ = seconds_since(start);
}

// What was predicted for a rank's device, and the most that the driver has reported for any.
void Run::print_memory() const {
  const int64_t measured = world_.max(trace_->measured_bytes()), planned = trace_->planned_bytes();
  if (!first() || measured == 0) return;
  std::printf("memory: planned %s, measured %s (difference %+.1f %%)\n", memory_text(planned).c_str(),
              memory_text(measured).c_str(), 100 * (static_cast<double>(measured) / static_cast<double>(planned) - 1));
}

// The weights of the best checkpoint, in place of the last step's. Returns the steps that made them.
int64_t Run::take_best() {
  if (best_.steps() < 0 || best_.steps() == done_) return done_;
  const std::string folder = checkpoints_->folder_of(best_.steps());
  world_.together([&] { restore_state(weight_context(), io::read_index(folder), folder, 4); });
  if (first())
    std::printf("best       %s %.6g, after step %lld: this is what is saved\n", best_.metric().c_str(), best_.value(),
                static_cast<long long>(best_.steps()));
  return best_.steps();
}

void Run::finish() {
  progress_->done(world_.max(train_seconds_), arena_->total_bytes());
  trace_->driver_memory(loader_->total_steps() - 1);
  print_memory();
  faults_.before_saving(done_, *progress_);
  if (config_.output.save_model && !stopped()) {
    const int64_t steps = config_.output.save_best ? take_best() : done_;
    for (const SaveSettings& settings : SaveSettings::of(config_)) {
      const std::string wanted = config_.output.path + "/" + settings.folder();
      const std::string folder = world_.from_rank(0, first() ? io::free_saved_name(wanted) : "");
      saved_.push_back(save_weights(weight_context(), world_, {
          .directory = folder, .source = config_.model.path, .settings = settings, .checkpoint = checkpoint_.get(),
          .adapter_config = adapter_config(config_, model_->units()), .origin = {run_id_, steps}}));
      if (first() && saved_.back() != wanted)
        std::fprintf(stderr, "warning: %s: something that is not a saved model of this run has this name or needs it; it was "
                     "left alone, and the weights are in %s\n", wanted.c_str(), saved_.back().c_str());
    }
    trace_->scratch_memory(loader_->total_steps() - 1, "saving", plan_.saving_bytes);
  }
  if (first()) record_->end(done_, train_seconds_, how_it_ends());  // at once: a model without this row is one of a killed run
  trace_->close();
  const auto lost = static_cast<long long>(world_.sum(trace_->failure().empty() ? 0.0 : 1.0));
  faults_.stop_watching();
  groups_->withdraw();
  if (first()) {
    if (lost > 0 && config_.trace.on_error == TraceErrorAction::stop) record_->end(done_, train_seconds_, "traces that are not whole");
    record_->close();
    print_end(lost);
  }
  faults_.after_saving(saved_);
  if (!lost_checkpoint_.empty()) throw AgreedError(lost_checkpoint_);
  if (lost > 0 && config_.trace.on_error == TraceErrorAction::stop)
    throw AgreedError(concat("the traces of ", lost, " rank(s) are not whole (trace.on_error is stop)"));
}

// For the run's record. What had to come out whole and did not is no end that a later start may rest on.
std::string Run::how_it_ends() const {
  if (stopped()) return stop_reason_;
  return lost_checkpoint_.empty() ? kDone : lost_checkpoint_;
}

// The answer to "does it run here?".
void Run::print_smoke_end() const {
  std::printf("smoke      %s, %s; nothing was saved\n",
              stopped() ? concat("stopped by ", stop_reason_).c_str() : "it runs here",
              progress_->summary(std::max(trace_->measured_bytes(), arena_->total_bytes())).c_str());
  std::fflush(stdout);
}

void Run::print_end(long long lost) const {
  if (smoke_) return print_smoke_end();
  const std::string traces = trace_->path();
  if (config_.trace.enabled && lost == 0) std::printf("trace      %s (one file a rank)\n", traces.c_str());
  if (lost > 0) std::printf("trace      %s (one file a rank; not whole: those of %lld ranks)\n", traces.c_str(), lost);
  for (const std::string& saved : saved_) std::printf("model      %s\n", saved.c_str());
  if (!checkpoints_->newest().empty()) std::printf("checkpoint %s\n", checkpoints_->newest().c_str());
  if (!ends_early_.empty()) std::printf("early stop %s\n", ends_early_.c_str());
  if (!saved_.empty() && !config_.output.save_best && best_.steps() >= 0 && best_.steps() != done_)
    std::printf("note: the best %s, %.6g, was after step %lld; what is saved is of step %lld (output.save_best=true saves the best)\n",
                best_.metric().c_str(), best_.value(), static_cast<long long>(best_.steps()), static_cast<long long>(done_));
  if (stopped())
    std::printf("stopped    by %s; checkpoint.resume=auto goes on from that checkpoint\n", stop_reason_.c_str());
  const double total = times_.seconds();
  std::printf("total      %.1f s from start to end (start %.1f s, training %.1f s, end %.1f s)\n", total, ready_seconds_,
              train_seconds_, total - ready_seconds_ - train_seconds_);
  std::fflush(stdout);
}

void Run::end_early() {
  if (trace_) trace_->close();
  if (record_) record_->close();
  if (folder_) folder_->unlock()();
  if (smoke_) smoke_->remove();
}

int train(const Config& config, const World& world) {
  choose_gpu_queues(config, world);        // whatever asks for GPUs starts CUDA
  start_run_log(world.rank() == 0);
  RankGuard guard(config, world);
  Run run(config, world, guard.watchdog());
  guard.run([&] {
    if (!run.prepare()) return;
    run.steps();
    run.finish();
  }, [&] { run.end_early(); });
  return run.stopped() ? kStoppedCode : 0;
}

}  // namespace blipft
