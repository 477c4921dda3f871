// Memory planning of the decode program: alone for --generate and --evaluate, and together with the training step if
// validations generate texts.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "plan/memory_plan.h"

namespace blipft {

/// Returns the largest peak of transient memory over `passes` in bytes.
int64_t peak_of_passes(const Arena& arena, const std::vector<std::string>& passes);

/// Plans a rank that only generates. `settings`: the shape of its decode program.
MemoryPlan plan_generation(const Config& config, Model& model, const GroupSizes& ranks, StrategyKind strategy,
                           const DecodeProgramSettings& settings);

/// The texts that a plan of generation is chosen for.
struct GenerationChoice {
  GenerateSettings settings;
  TextsToGenerate work;
  int64_t ranks = 1;
  bool gpu = false;
  /// Returns true if a rank has the memory for a plan.
  std::function<bool(const MemoryPlan& plan)> fits;
};
/// Chooses the largest number of texts at once that is useful and fits. Each rank holds all weights; if these do not
/// fit, or fsdp is requested, the ranks share them. Sets `found` to false if no plan fits, and returns the smallest one
/// then.
MemoryPlan choose_generation(const Config& config, Model& model, const GenerationChoice& choice, bool& found);

/// Adds the generation at validations to the plan of a step. It uses the memory of the step's activations: as many
/// texts at once as fit there, with units gathered once per evaluation if possible, otherwise for each token. If not
/// even one text fits there, the plan becomes larger.
void plan_validation_texts(const EvaluationWork& work, bool gpu, MemoryPlan& plan);

}  // namespace blipft
