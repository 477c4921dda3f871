// Planning of the decode program: alone, for --generate and --evaluate, and beside the step of a run whose validations
// generate.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "plan/memory_plan.h"

namespace blipft {

/// Returns the largest transient memory of these passes in bytes.
int64_t peak_of_passes(const Arena& arena, const std::vector<std::string>& passes);

/// Plans a rank that only generates. `settings` give the shape of its decode program.
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
/// Chooses the largest number of texts at once that is useful and fits. Each rank holds all weights; if these do not fit, or
/// fsdp is requested, the ranks share them. Sets `found` to false if no plan fits, and returns the smallest one then.
MemoryPlan choose_generation(const Config& config, Model& model, const GenerationChoice& choice, bool& found);

/// Adds to the plan of a step what validations generate, in the memory of the step's activations if possible: as many texts
/// at once as fit there, and units gathered once an evaluation rather than for each token. If not one text fits there, the
/// plan becomes larger.
void plan_validation_texts(const EvaluationWork& work, bool gpu, MemoryPlan& plan);

}  // namespace blipft
