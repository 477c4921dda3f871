// RankWatch: rank 0's picture of all ranks, and the judgement that one of them is gone or that none gets any further.
// No clock and no network of its own: see watchdog.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "blipft/activity.h"

namespace blipft {

/// What a rank says of itself, about once a second.
struct Beat {
  uint64_t state = 0;                      ///< Activity::word()
  uint64_t progress = 0;                   ///< Activity::progress()
  uint64_t io_bytes = 0;                   ///< read and written by the process so far
};

/// All times are seconds of one clock, which stands still while the watching process itself does not run.
class RankWatch {
 public:
  /// Silence or stillness for so long is a fault. Stillness is allowed `kFirstSteps` times as long until a rank has
  /// begun its third step (products are timed, graphs captured), twice as long as the longest that ended by itself
  /// (long steps of a GPU, of which the host sees the end alone), and `kOtherPhases` times as long while ranks start,
  /// save or end, where moving bytes count as progress.
  RankWatch(int64_t ranks, double timeout_seconds, const Activity& names);
  static constexpr double kFirstSteps = 10, kOtherPhases = 30;

  /// Ranks that never join are not watched.
  void joined(int64_t rank, const std::string& host, double now);
  void beat(int64_t rank, const Beat& beat, double now);
  /// It has said that it ends in good order, or with an error of its own.
  void left(int64_t rank);
  /// Its connection is closed. A rank that has not left before is gone.
  void closed(int64_t rank, double now);

  /// What is wrong, and who is missing; the first fault there is.
  std::optional<std::string> verdict(double now) const;
  /// Whether it is still to be heard: neither gone nor silent.
  bool hears(int64_t rank, double now) const;
  /// Whether the connection of one is closed that has not left before.
  bool has_gone() const;
  /// Ranks that have not joined; "3, 5, 6".
  std::string absent() const;

 private:
  struct Rank {
    bool joined = false, left = false, gone = false;
    std::string host;
    Beat beat;
    double heard = 0, changed = 0;         // changed: its beat, when it last told of something new
  };
  std::string name(size_t rank) const;
  std::string list(const std::vector<size_t>& ranks, bool with_state) const;
  std::optional<std::string> lost(double now) const;
  std::optional<std::string> still(double now) const;
  double allowed_stillness() const;

  const double timeout_;
  const Activity& names_;
  std::vector<Rank> ranks_;
  double progress_ = -1, longest_still_ = 0;  // when any rank last got further
};

}  // namespace blipft
