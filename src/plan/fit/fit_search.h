// FitSearch: finds settings under which a run fits a GPU of a given size, the fastest first, by dry runs and estimates.
//
// The search varies only settings that change results by no more than rounding: which layers recompute their forward,
// which units fsdp keeps gathered, the strategy, whether optimizer states are in host memory, and how many
// micro-batches a step of a rank has. A run with train.batch_size=auto uses the fastest. Callers request other runs
// (quantized, adapters, more ranks).
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
  std::string overrides;                   ///< keys to add to the command line; may be empty
  StepTime time;
  int64_t device_bytes = 0, host_bytes = 0;  ///< per rank: including bytes outside the arena; page-locked
  TextShape text;                          ///< average of its micro-batches
};

struct FitResult {
  std::vector<FitRow> rows;                ///< settings that fit, the fastest first; search(): with falling memory
  std::optional<FitRow> nearest;           ///< if none fits: the settings that need the least memory
  int64_t candidates = 0;                  ///< number of settings: estimated by search(), tried by choose()
};

/// How parameters are distributed over ranks: parallel.strategy and parallel.reshard.
struct FitDealing {
  StrategyKind strategy;
  ReshardPolicy reshard;
};

class FitSearch {
 public:
  /// `texts` and `model` must belong to `requested`. `node_ranks`: ranks per machine; 0: all ranks are on one machine.
  FitSearch(const Config& requested, int64_t node_ranks, int64_t gpu_bytes, const PlannedTexts& texts, RunModel model,
            const MachineRates& rates = h200_rates())
      : requested_(requested), node_ranks_(node_ranks), gpu_bytes_(gpu_bytes), texts_(texts), model_(std::move(model)), rates_(rates) {}

  /// Varies `base` on `ranks` ranks. `base` is `requested` with a few changed keys. `maximum`: maximum number of rows.
  FitResult search(const Config& base, int64_t ranks, size_t maximum) const;

  /// Resolves train.batch_size=auto: returns the fastest settings that fit in 99 % of the GPU's bytes, the second
  /// fastest, and more up to `maximum` in all whose estimates are within 10 % of the first. Keys of the run file stay as
  /// they are, and so does the strategy. Host memory is used only if nothing fits without it, and then at most
  /// `host_bytes` per rank (0: no limit).
  FitResult choose(int64_t ranks, size_t maximum, int64_t host_bytes = 0) const;
  /// Returns the settings that choose() would find if the run file did not set train.act_ckpt. Returns nullopt if it
  /// does not set the key, if `chosen` uses no host memory, or if these settings are not more than 10 % faster than
  /// `chosen`.
  std::optional<FitRow> with_open_act_ckpt(const FitRow& chosen, int64_t ranks, int64_t host_bytes) const;
  /// Returns true if the estimate of `row` is within 10 % of that of `best`, so that either may be faster.
  static bool close(const FitRow& best, const FitRow& row);

  /// Returns the time and memory of `config`, which is resolved for `ranks` ranks.
  FitRow row_of(const Config& config, int64_t ranks) const;

  /// Returns the estimated seconds of a step of `row` if it had `micro_batches` micro-batches.
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
  FitResult choose_with_offload(std::vector<Candidate> all, int64_t limit, int64_t host_bytes, size_t maximum) const;
  bool enough(const FitResult& result, const StepTime& next, size_t maximum) const;
  FitRow planned(const Candidate& candidate) const;

  const Config& requested_;
  int64_t node_ranks_, gpu_bytes_;
  const PlannedTexts& texts_;
  const RunModel model_;
  const MachineRates& rates_;
};

/// Returns the keys that a search sets and in which `config` differs from `requested`, in the form of a command line.
std::string fit_overrides(const Config& requested, const Config& config);

}  // namespace blipft
