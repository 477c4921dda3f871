// Which candidates are timed; see choice_timing.h.
#include "plan/choice_timing.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace blipft {

namespace {
// Steps in one timing: one warm-up step and the measured ones.
constexpr double kStepsOfTiming = 5;
}  // namespace

std::vector<CandidateTime> ChoiceTiming::run(size_t count, const Clock& clock, const TimeOne& time_one) {
  std::vector<CandidateTime> times(count);
  double longest = 0;
  for (size_t i = 0; i < count; ++i) {
    const double began = clock(), left = kSeconds - began;
    if (left <= longest) {
      times[i].why_not = "no time was left";
      continue;
    }
    times[i] = time_one(i, {left, left / static_cast<double>(count - i)});
    longest = std::max(longest, clock() - began);
  }
  return times;
}

std::vector<size_t> ChoiceTiming::order(const std::vector<CandidateTime>& times) {
  std::vector<size_t> order(times.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto rank_of = [&](size_t i) {
    return std::pair(times[i].fails ? 2 : times[i].timed() ? 0 : 1, times[i].seconds);
  };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return rank_of(a) < rank_of(b); });
  return order;
}

int64_t ChoiceTiming::micro_batches(int64_t of_step, double seconds) {
  const double maximum = kSeconds / static_cast<double>(kMax) / kStepsOfTiming;
  if (seconds <= maximum) return of_step;
  const double few = std::floor(static_cast<double>(of_step) * maximum / seconds);
  return std::min(of_step, std::max<int64_t>(2, std::llround(few)));
}

}  // namespace blipft
