// What train.batch_size: auto becomes: the settings of a step that the program chooses.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "plan/choice_timing.h"
#include "plan/fit/fit_search.h"

namespace blipft {

/// The settings that a choice makes.
struct ChosenSettings {
  int64_t batch_size = 0, micro_batches = 0;
  LayerCheckpointing act_ckpt = LayerCheckpointing::none;
  ReshardPolicy reshard = ReshardPolicy::automatic;
  std::vector<OffloadedData> offload;

  static ChosenSettings of(const Config& config);
  /// Of `values`, as config_values() gives them; without batch_size where one is missing.
  static ChosenSettings of(const std::vector<std::pair<std::string, std::string>>& values);
  void apply(Config& config) const;
  /// "16 samples x 1 micro-batch, act_ckpt full, reshard step"
  std::string description() const;
  bool operator==(const ChosenSettings&) const = default;
};

/// `asked`, whose train.batch_size is auto, with something in its place under which data can be looked at: as many micro-batches
/// as it says, else of one sample each.
Config before_choice(const Config& asked, int64_t ranks);

/// Whether `config` may have these: keys that are given are the same, and they take a step's samples.
bool may_have(const Config& asked, int64_t ranks, const ChosenSettings& settings);

struct BatchChoice {
  Config config;                           ///< resolved
  std::string reason;                      ///< of one line
  std::vector<FitRow> rows = {};           ///< what was chosen among, best estimate first; empty: it was kept
  std::string anew = {};                   ///< the end of the reason: why nothing was kept; "": there was nothing
  std::string timings = {};                ///< what was timed when it was made: "16 x 2 0.118 s, 32 x 1 0.121 s"; "": nothing
  std::string kept = {};                   ///< where it was kept, the reason without the memory that it takes
  /// How many of the rows are to be timed, where this is done: those that estimates do not tell apart from the best; 0: the
  /// estimate decides. Nor where anything lies in the host: to lock its pages alone may take longer.
  size_t open() const;
};

/// Of what a checkpoint tells of its run (io::StateIndex): BatchChoice::timings.
constexpr const char* kChoiceTimings = "choice_timings";

/// An earlier part of a run's choice.
struct KeptChoice {
  ChosenSettings settings;
  std::string timings;                     ///< BatchChoice's
};

/// Chooses for ranks with so many bytes left, of the GPU and of the host for each, by estimates. `kept`: what an earlier part
/// of the run chose, if any: it stays where it fits. `most`: rows at most. Throws UserError when nothing fits.
BatchChoice choose_batch(const FitSearch& search, const Config& asked, int64_t ranks, int64_t gpu_bytes,
                         int64_t host_bytes, const KeptChoice& kept, size_t most = 2);

/// Its reason on CPUs, without seconds and bytes: these, by which rows are chosen and stay in order, are a GPU's. `bytes`: that
/// a rank has left.
std::string choice_text_of_cpus(const BatchChoice& choice, int64_t bytes);

/// The choice that follows from the times of its first rows.
BatchChoice decided(const BatchChoice& choice, const std::vector<CandidateTime>& times, int64_t gpu_bytes);

/// "32 samples x 1 micro-batch: an estimated 0.131 s a step, 45.2 of 138.2 GiB; next 16 x 2: 0.147 s, 31.0 GiB"; where times
/// are known "16 samples x 2 micro-batches: timed 0.118 s a step, an estimated 0.121 s, 31.0 of 138.2 GiB; next 32 x 1: timed
/// ...". `rows`: those that FitSearch::choose() found; `times`: of the first of them.
std::string choice_text(const std::vector<FitRow>& rows, int64_t gpu_bytes, const std::vector<CandidateTime>& times = {});

/// "; without train.act_ckpt in run.yaml:12: 64 x 1, act_ckpt full, offload [activations], 0.342 s": what the run file's key
/// costs a choice that needs the host; "" where that is little.
std::string faster_text(const FitSearch& search, const Config& asked, const FitRow& chosen, int64_t ranks, int64_t host_bytes);

/// What is timed: steps of a candidate.
struct TimedStep {
  ChosenSettings settings;
  int64_t micro_batches = 1;               ///< of a step's that are run
  TextShape text;                          ///< of each
  double estimate = 0;                     ///< seconds of so many
  double scale = 1;                        ///< times their seconds are those of a whole step
};
TimedStep timed_step(const FitSearch& search, const FitRow& row);

}  // namespace blipft
