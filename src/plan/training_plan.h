// TrainingPlan: everything that is decided before a training run's first step.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/settings.h"
#include "plan/batch_choice.h"
#include "plan/memory_plan.h"
#include "plan/planned_texts.h"

namespace blipft {

/// Bytes of a rank, the least of all ranks.
struct MemoryLeft {
  int64_t device = 0, host = 0;
};

/// What a plan depends on besides the config. All ranks have the same, so that each makes the same plan.
struct TrainingFacts {
  int64_t ranks = 1;
  int64_t node_ranks = 0;                  ///< ranks of each machine; 0: machines have different numbers of ranks
  std::string device;                      ///< its name
  bool on_gpu = false;
  bool times_steps = false;                ///< candidates that estimates do not tell apart can be timed here
  int64_t free_bytes = 0;                  ///< of the GPU with the least free memory; 0 on CPUs
  MemoryLeft left;                         ///< for a run whose settings are chosen
  std::shared_ptr<const RunModel> model;
  std::shared_ptr<const PlannedTexts> texts;
  std::vector<TextShape> shapes;           ///< of steps, unless train.batch_size is auto
  KeptChoice kept;                         ///< what an earlier part of the run chose
};

struct TrainingPlan {
  Config config;                           ///< resolved: no setting is open
  GroupSizes groups{1};
  BatchChoice choice;                      ///< of train.batch_size: auto
  std::vector<TimedStep> candidates;       ///< to be timed before the rest can be decided; empty: everything is decided
  std::unique_ptr<Model> model;
  MemoryPlan memory;                       ///< with the text shapes

  bool decided() const { return candidates.empty(); }
};

/// The choice of a plan, and the times of its candidates.
struct TimedChoice {
  BatchChoice choice;
  std::vector<CandidateTime> times;
};

/// Plans a run of `asked`, which is resolved for the ranks; train.batch_size may be auto. Reads no clock, file or device. If
/// candidates have to be timed, returns them alone; called again with `timed`, it decides. Throws UserError if nothing fits.
TrainingPlan plan_training(const Config& asked, const TrainingFacts& facts, const TimedChoice* timed = nullptr);

}  // namespace blipft
