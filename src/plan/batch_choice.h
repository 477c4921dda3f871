// BatchChoice: the settings of a step that the program chooses if train.batch_size is auto.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "plan/choice_timing.h"
#include "plan/fit/fit_search.h"

namespace blipft {

/// The settings that are chosen together.
struct ChosenSettings {
  int64_t batch_size = 0, micro_batches = 0;
  LayerCheckpointing act_ckpt = LayerCheckpointing::none;
  ReshardPolicy reshard = ReshardPolicy::automatic;
  std::vector<OffloadedData> offload;

  static ChosenSettings of(const Config& config);
  /// Reads the settings from `values`, a result of config_values(). If one is missing, batch_size is 0.
  static ChosenSettings of(const std::vector<std::pair<std::string, std::string>>& values);
  void apply(Config& config) const;
  /// "16 samples x 1 micro-batch, act_ckpt full, reshard step"
  std::string description() const;
  bool operator==(const ChosenSettings&) const = default;
};

/// Returns `requested`, whose train.batch_size is auto, with a preliminary batch size, so that the data can be opened
/// before the choice. It has the micro-batches that `requested` sets, or micro-batches of one sample each if `requested` sets
/// none.
Config before_choice(const Config& requested, int64_t ranks);

/// Returns true if `settings` agree with all keys that `requested` sets and have slots for all samples of a step.
bool may_have(const Config& requested, int64_t ranks, const ChosenSettings& settings);

struct BatchChoice {
  Config config;                           ///< resolved
  std::string reason;                      ///< one line
  std::vector<FitRow> rows = {};           ///< candidates, best estimate first; empty: an earlier choice was kept
  std::string anew = {};                   ///< end of the reason: why an earlier choice was not kept; may be ""
  std::string timings = {};                ///< timed candidates: "16 x 2 0.118 s, 32 x 1 0.121 s"; "": none
  std::string kept = {};                   ///< if an earlier choice was kept: the reason without its memory
  /// Returns the number of leading rows to time, because their estimates are too close to the best one. 0: the estimate
  /// decides. It also decides if any row uses host memory: locking the pages alone may take longer than the timing.
  size_t open() const;
};

/// The name under which a checkpoint (io::StateIndex) records BatchChoice::timings.
constexpr const char* kChoiceTimings = "choice_timings";

/// The choice that an earlier part of the run made.
struct KeptChoice {
  ChosenSettings settings;
  std::string timings;                     ///< as BatchChoice::timings
};

/// Chooses settings by estimates for ranks that each have `gpu_bytes` and `host_bytes` left. `kept`: the choice of an
/// earlier part of the run, if any; it stays if it fits. `maximum`: maximum number of rows. Throws UserError if nothing
/// fits.
BatchChoice choose_batch(const FitSearch& search, const Config& requested, int64_t ranks, int64_t gpu_bytes,
                         int64_t host_bytes, const KeptChoice& kept, size_t maximum = 2);

/// Returns the reason of a choice on CPUs. The text omits the estimated seconds and bytes, which choose and order the
/// rows, because they are a GPU's. `bytes`: memory that a rank has left.
std::string choice_text_of_cpus(const BatchChoice& choice, int64_t bytes);

/// Returns the final choice, given the measured times of the first rows of `choice`.
BatchChoice decided(const BatchChoice& choice, const std::vector<CandidateTime>& times, int64_t gpu_bytes);

/// "32 samples x 1 micro-batch: an estimated 0.131 s a step, 45.2 of 138.2 GiB; next 16 x 2: 0.147 s, 31.0 GiB", or
/// with times "16 samples x 2 micro-batches: timed 0.118 s a step, an estimated 0.121 s, 31.0 of 138.2 GiB; next 32 x
/// 1: timed ...". `rows`: the result of FitSearch::choose(); `times`: the measured times of the first rows.
std::string choice_text(const std::vector<FitRow>& rows, int64_t gpu_bytes, const std::vector<CandidateTime>& times = {});

/// "; without train.act_ckpt in run.yaml:12: 64 x 1, act_ckpt full, offload [activations], 0.342 s": the faster choice
/// that train.act_ckpt in the run file prevents. "" if `chosen` uses no host memory or the difference is small.
std::string faster_text(const FitSearch& search, const Config& requested, const FitRow& chosen, int64_t ranks, int64_t host_bytes);

/// The shortened step that is timed for a candidate.
struct TimedStep {
  ChosenSettings settings;
  int64_t micro_batches = 1;               ///< number that is run; at most those of a step
  TextShape text;                          ///< shape of each micro-batch
  double estimate = 0;                     ///< estimated seconds of these micro-batches
  double scale = 1;                        ///< factor from their seconds to those of a whole step
};
TimedStep timed_step(const FitSearch& search, const FitRow& row);

}  // namespace blipft
