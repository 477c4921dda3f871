// The plan of a training run; see training_plan.h.
#include "plan/training_plan.h"

#include "engine/placement.h"

namespace blipft {

namespace {

void choose(TrainingPlan& plan, const Config& requested, const TrainingFacts& facts) {
  const FitSearch search(requested, facts.node_ranks, facts.left.device, *facts.texts, *facts.model, rates_of(facts.device));
  plan.choice = choose_batch(search, requested, facts.ranks, facts.left.device, facts.left.host, facts.kept,
                             facts.times_steps ? ChoiceTiming::kMax : 2);
  if (!facts.times_steps) plan.choice.reason = choice_text_of_cpus(plan.choice, facts.left.device);
  else
    for (size_t i = 0; i < plan.choice.open(); ++i) plan.candidates.push_back(timed_step(search, plan.choice.rows[i]));
}

}  // namespace

TrainingPlan plan_training(const Config& requested, const TrainingFacts& facts, const TimedChoice* timed) {
  TrainingPlan plan{.config = requested};
  std::vector<TextShape> shapes = facts.shapes;
  if (chooses_batch_size(requested)) {
    if (timed) plan.choice = decided(timed->choice, timed->times, facts.left.device);
    else choose(plan, requested, facts);
    if (!plan.decided()) return plan;
    plan.config = before_choice(requested, facts.ranks);
    ChosenSettings::of(plan.choice.config).apply(plan.config);
    shapes = facts.texts->shapes(plan.config, facts.ranks);
  }
  plan.outputs = output_names(plan.config);
  plan.groups = group_sizes(plan.config, facts.ranks, facts.node_ranks);
  plan.model = facts.model->make(plan.config);
  plan.memory = plan_memory(plan.config, *plan.model, plan.groups, facts.free_bytes, std::move(shapes), nullptr,
                            facts.texts->evaluation());
  return plan;
}

}  // namespace blipft
