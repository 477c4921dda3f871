// ChoiceTiming: times settings whose estimates are too close to decide, before a run's first step.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace blipft {

/// The result of timing one candidate, equal on all ranks.
struct CandidateTime {
  double seconds = 0;                      ///< step time of the slowest rank; 0: not timed
  std::string why_not = {};                ///< reason if it was not timed
  bool fails = false;                      ///< true if it does not run here and must not be chosen
  bool timed() const { return seconds > 0; }
};

/// Seconds that the timing of a candidate may take: all seconds left, and its equal share of them.
struct TimingAllowance {
  double left = 0, share = 0;
};

/// The candidates are sorted by estimate, the best first; all are close to the best (FitSearch::close()).
class ChoiceTiming {
 public:
  static constexpr size_t kMax = 3;       ///< candidates
  static constexpr double kSeconds = 5;    ///< for all candidates, including the setup before their steps

  /// Returns the seconds since the timing began. If ranks choose together, all ranks get the same value.
  using Clock = std::function<double()>;
  /// Builds candidate number i, times it and releases all its memory.
  using TimeOne = std::function<CandidateTime(size_t i, const TimingAllowance& allowance)>;

  /// Times `count` candidates in turn. Skips a candidate if no more time is left than the slowest earlier one took.
  static std::vector<CandidateTime> run(size_t count, const Clock& clock, const TimeOne& time_one);

  /// Returns the indices of the candidates, the chosen one first: timed candidates by time, then candidates without a
  /// time by estimate, then those that do not run. (A candidate without a time has a worse estimate than the timed
  /// ones.)
  static std::vector<size_t> order(const std::vector<CandidateTime>& times);

  /// Returns how many of the `of_step` micro-batches of a step are timed if the whole step is estimated to take
  /// `seconds`: few enough to time all candidates, but at least two, because the first and the last one handle
  /// gradients differently.
  static int64_t micro_batches(int64_t of_step, double seconds);
};

}  // namespace blipft
