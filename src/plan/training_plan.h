// TrainingPlan: all decisions before the first step of a training run.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "agreement/output_folder.h"
#include "engine/settings.h"
#include "plan/batch_choice.h"
#include "plan/memory_plan.h"
#include "plan/planned_texts.h"

namespace blipft {

/// Bytes left to a rank: the minimum over all ranks.
struct MemoryLeft {
  int64_t device = 0, host = 0;
};

/// The inputs of a plan besides the config. They are equal on all ranks, so that every rank makes the same plan.
struct TrainingFacts {
  int64_t ranks = 1;
  int64_t node_ranks = 0;                  ///< ranks of each machine; 0: machines have different numbers of ranks
  std::string device;                      ///< name of the device
  bool on_gpu = false;
  bool times_steps = false;                ///< true if candidates with close estimates can be timed here
  int64_t free_bytes = 0;                  ///< minimum free memory of a GPU over all ranks; 0 on CPUs
  MemoryLeft left;                         ///< for a run with train.batch_size: auto
  std::shared_ptr<const RunModel> model;
  std::shared_ptr<const PlannedTexts> texts;
  std::vector<TextShape> shapes;           ///< of steps, unless train.batch_size is auto
  KeptChoice kept;                         ///< the choice of an earlier part of the run
};

struct TrainingPlan {
  Config config;                           ///< resolved: no setting is open
  GroupSizes groups{1};
  OutputNames outputs;
  BatchChoice choice;                      ///< of train.batch_size: auto
  std::vector<TimedStep> candidates;       ///< must be timed before the plan is complete; empty: it is complete
  std::unique_ptr<Model> model;
  MemoryPlan memory;                       ///< includes the text shapes

  bool decided() const { return candidates.empty(); }
};

/// The choice of a plan, and the times of its candidates.
struct TimedChoice {
  BatchChoice choice;
  std::vector<CandidateTime> times;
};

/// Plans a run of `requested`, which is resolved for the ranks; train.batch_size may be auto. Reads no clock, file or
/// device. If candidates must be timed, returns only them; the caller calls again with `timed`. Throws UserError if
/// nothing fits.
TrainingPlan plan_training(const Config& requested, const TrainingFacts& facts, const TimedChoice* timed = nullptr);

}  // namespace blipft
