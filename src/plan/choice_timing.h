// Settings between which estimates do not decide are timed before a run's first step: which, for how long, and what follows.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace blipft {

/// What became of the timing of one candidate; the same on all ranks.
struct CandidateTime {
  double seconds = 0;                      ///< of a step, of the slowest rank; 0: it was not timed
  std::string why_not = {};                ///< where it was not
  bool fails = false;                      ///< it does not run here: not to be chosen
  bool timed() const { return seconds > 0; }
};

/// Seconds that the timing of a candidate may take: all that are left, and what comes to it when others are to follow.
struct TimingAllowance {
  double left = 0, share = 0;
};

/// The candidates come best estimate first, all of them close to the best: see FitSearch::close().
class ChoiceTiming {
 public:
  static constexpr size_t kMax = 3;       ///< candidates
  static constexpr double kSeconds = 5;    ///< for all of them, what comes before their steps included

  /// Seconds since the timing began. Where ranks choose together, it says the same on each.
  using Clock = std::function<double()>;
  /// Builds candidate number i, times it and gives everything back.
  using TimeOne = std::function<CandidateTime(size_t i, const TimingAllowance& allowance)>;

  /// Times `count` candidates one after the other, but none for which less time is left than the longest before it took.
  static std::vector<CandidateTime> run(size_t count, const Clock& clock, const TimeOne& time_one);

  /// The candidates, the chosen one first: those that were timed from the fastest on, then those that keep their estimate, then
  /// those that do not run. (A candidate that was not timed has a worse estimate than one that was.)
  static std::vector<size_t> order(const std::vector<CandidateTime>& times);

  /// How many of a step's micro-batches are run for the timing, where the whole step is estimated to take `seconds`: few
  /// enough that all candidates have their turn, and two at least, the first of which begins gradients and the last ends them.
  static int64_t micro_batches(int64_t of_step, double seconds);
};

}  // namespace blipft
