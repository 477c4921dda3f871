// Validation; see validation.h.
#include "train/validation.h"

#include "generate/run_metrics.h"

namespace blipft {

namespace {

std::string metric_of_best(const Config& config) {
  const bool none = config.checkpoint.keep_best == BestCriterion::none;
  return none ? "loss" : std::string(config.checkpoint.keep_best.text);
}

}  // namespace

Validation::Validation(TrainingResources& resources, RunFaults& faults, TrainingObserver& observers)
    : r_(resources), faults_(faults), observers_(observers),
      best_(resources.config().train.early_stopping_patience, metric_of_best(resources.config()),
            best_is_highest(resources.config())) {
  if (r_.run.resume) best_.restore(r_.run.resume->index.run);
}

int64_t Validation::interval() const {
  const int64_t requested = r_.config().train.val_check_interval;
  return requested > 0 ? requested : r_.loaders.training->steps_per_epoch();
}

bool Validation::due(int64_t step) const {
  return r_.loaders.validation && ((step + 1) % interval() == 0 || step + 1 == r_.total_steps());
}

// Validations are counted from the run's start, so that a resumed run generates after the same steps.
bool Validation::generates_after(int64_t step) const {
  return r_.answers && (step + 1 == r_.total_steps() || (step + 1) / interval() % r_.config().evaluate.every == 0);
}

void Validation::run(int64_t step) {
  faults_.activity().phase(Activity::Phase::validation);
  const ValidationEvent measured = measure_loss(step);
  observers_.validation(measured);
  if (best_.of_loss()) best_now_ = best_.note(step + 1, measured.loss);
  if (generates_after(step)) evaluate(step);
  faults_.activity().phase(Activity::Phase::training);
}

// Each rank evaluates its part of the samples, and the host sums over ranks. So the only collectives of a validation
// are gathers of units.
ValidationEvent Validation::measure_loss(int64_t step) {
  const auto start = StartTimes::Clock::now();
  const bool by_tokens = r_.config().steps.loss_normalization == LossNormalization::tokens;
  double loss = 0, weight = 0, tokens = 0;
  StepProgram& program = *r_.engine->program;
  DataLoader& loader = *r_.loaders.validation;
  StepResult result;
  const auto add = [&] {
    const double own = by_tokens ? result.labels : static_cast<double>(result.labels > 0);
    if (own > 0) loss += own * result.loss;
    weight += own;
    tokens += result.labels;
  };
  for (int64_t i = 0; i < loader.steps_per_epoch(); ++i) {
    const HostBatch* batch = faults_.next_of_validation(loader, step);
    if (program.in_flight() == StepProgram::kSlots && program.finished(true, result)) add();
    program.launch_evaluation(*batch);
    program.batch_copied(true);
    loader.give_back(batch);
  }
  while (program.finished(true, result)) add();
  loss = r_.world.sum(loss) / r_.world.sum(weight);  // NaN if there were no labels
  const auto predicted = static_cast<int64_t>(r_.world.sum(tokens));
  return {step, loss, predicted, seconds_since(start)};
}

// Generation leaves nothing on the device: its cache uses the memory of a step's activations.
void Validation::evaluate(int64_t step) {
  const auto start = StartTimes::Clock::now();
  const bool first_time = r_.answers->left_out() == 0;
  const ValidationScores found = r_.answers->evaluate();
  observers_.evaluation({step, found, seconds_since(start)});
  if (first_time && r_.answers->left_out() > 0)
    observers_.warning(concat(r_.answers->left_out(), " validation samples cannot be answered, and are left out of the scores"));
  for (const Score& score : found.scores)
    if (score.metric == best_.metric()) best_now_ = best_.note(step + 1, score.value);
}

std::string Validation::early_stop_text() const {
  return concat("train.early_stopping_patience: ", best_.of_loss() ? "the loss" : best_.metric(), " was ",
                best_.highest() ? "highest (" : "least (", best_.value(), ") after step ", best_.steps());
}

}  // namespace blipft
