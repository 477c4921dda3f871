// FitSearch: settings under which a run fits a GPU of a given size, the fastest first, by dry runs and estimates.
//
// What is varied changes no number that a run computes but by rounding: which layers recompute their forward, what fsdp
// keeps gathered, the strategy, where optimizer states lie, and how a rank's samples of a step are cut into
// micro-batches. A run whose train.batch_size is auto takes the fastest of these. Other kinds of runs (quantised weights, adapters, more ranks) are searched when asked for.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/settings.h"
#include "plan/fit/step_time.h"
#include "plan/planned_texts.h"

namespace blipft {

struct FitRow {
  Config config;                           ///< resolved for its ranks
  GroupSizes ranks{1};
  std::string overrides;                   ///< what to add to the command line; empty: nothing
  StepTime time;
  int64_t device_bytes = 0, host_bytes = 0;  ///< of a rank: with what is outside of the arena; page-locked
  TextShape text;                          ///< of its micro-batches, on the average
};

struct FitResult {
  std::vector<FitRow> rows;                ///< that fit: the fastest first, each that follows takes less memory
  std::optional<FitRow> nearest;           ///< when none fits: what takes least
  int64_t candidates = 0;                  ///< settings whose time was estimated
};

/// How parameters are dealt to ranks: parallel.strategy and parallel.reshard.
struct FitDealing {
  StrategyKind strategy;
  ReshardPolicy reshard;
};

class FitSearch {
 public:
  /// `texts` and `model` must be those of `asked`. `node_ranks` as for --plan; 0: all ranks are on one machine.
  FitSearch(const Config& asked, int64_t node_ranks, int64_t gpu_bytes, const PlannedTexts& texts, RunModel model,
            const MachineRates& rates = h200_rates())
      : requested_(asked), node_ranks_(node_ranks), gpu_bytes_(gpu_bytes), texts_(texts), model_(std::move(model)), rates_(rates) {}

  /// Varies `base`, which is the config asked for with a few keys changed, on `ranks` ranks. `most`: rows at most.
  FitResult search(const Config& base, int64_t ranks, size_t most) const;

  /// What train.batch_size: auto stands for: the fastest that fits, the one next to it, and further ones up to `most` in all
  /// whose estimate lies within 10 % of the first's. Keys that the run file gives stay as given, the strategy always does.
  /// Anything lies in the host only where nothing fits otherwise, and then at most `host_bytes` of a rank (0: any). All
  /// within 99 % of the GPU's bytes.
  FitResult choose(int64_t ranks, size_t most, int64_t host_bytes = 0) const;
  /// What choose() would take were train.act_ckpt left open that the run file gives, where `chosen` needs the host and that is
  /// more than 10 % faster.
  std::optional<FitRow> with_open_act_ckpt(const FitRow& chosen, int64_t ranks, int64_t host_bytes) const;
  /// Whether an estimate says no more of `row` than that it may be as fast as `best`.
  static bool close(const FitRow& best, const FitRow& row);

  /// What such settings take; `config` is resolved for `ranks`.
  FitRow row_of(const Config& config, int64_t ranks) const;

  /// Seconds of a step of `row` that has so many micro-batches in place of its own.
  double seconds_of(const FitRow& row, int64_t micro_batches) const;

 private:
  struct Candidate;
  struct Freedom;
  class ShortPlan;
  Candidate candidate(const Config& resolved, int64_t ranks, int64_t micro_batches) const;
  std::vector<Candidate> candidates(const Config& base, int64_t ranks, const Freedom& freedom) const;
  bool estimate(Candidate& candidate) const;
  void find_shapes(Candidate& candidate) const;
  std::optional<FitRow> fitting(Candidate& candidate, int64_t limit) const;
  std::optional<FitRow> nearest(std::vector<Candidate>& all) const;
  FitResult choose_with_offload(std::vector<Candidate> all, int64_t limit, int64_t host_bytes, size_t most) const;
  bool enough(const FitResult& result, const StepTime& next, size_t most) const;
  FitRow planned(const Candidate& candidate) const;

  const Config& requested_;
  int64_t node_ranks_, gpu_bytes_;
  const PlannedTexts& texts_;
  const RunModel model_;
  const MachineRates& rates_;
};

/// The keys in which `config` differs from `asked`, of those that a search sets, as they stand on a command line.
std::string fit_overrides(const Config& asked, const Config& config);

}  // namespace blipft
