// RankWatch: rank 0's view of all ranks. It decides if a rank is lost or if no rank makes progress. It uses no clock
// and no network itself: see watchdog.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "blipft/activity.h"

namespace blipft {

/// The state that a rank reports about once a second.
struct Beat {
  uint64_t state = 0;                      ///< Activity::word()
  uint64_t progress = 0;                   ///< Activity::progress()
  uint64_t io_bytes = 0;                   ///< total bytes read and written by the process
};

/// All times are seconds of one clock, which stops while the watching process itself does not run.
class RankWatch {
 public:
  /// `timeout_seconds` without a heartbeat or without progress is a fault. The limit for progress is longer in three
  /// cases. It is `kFirstSteps` times as long until a rank has begun its third step, because products are timed and
  /// graphs captured. It is twice the longest earlier pause that ended by itself, because the host sees only the end of
  /// long GPU steps. It is `kOtherPhases` times as long while ranks start, save or end; in these phases bytes read or
  /// written count as progress.
  RankWatch(int64_t ranks, double timeout_seconds, const Activity& names);
  static constexpr double kFirstSteps = 10, kOtherPhases = 30;

  /// Adds a rank. Ranks that never join are not watched.
  void joined(int64_t rank, const std::string& host, double now);
  void beat(int64_t rank, const Beat& beat, double now);
  /// The rank has reported that it ends normally, or with an error of its own.
  void left(int64_t rank);
  /// The connection of the rank is closed. If the rank has not left before, it is lost.
  void closed(int64_t rank, double now);

  /// Returns a description of the first fault and of the missing ranks; none if there is no fault.
  std::optional<std::string> verdict(double now) const;
  /// Returns true if the rank is still connected and not silent.
  bool hears(int64_t rank, double now) const;
  /// Returns true if a rank's connection was closed although the rank had not left.
  bool has_gone() const;
  /// Returns the ranks that have not joined, as "3, 5, 6".
  std::string absent() const;

 private:
  struct Rank {
    bool joined = false, left = false, gone = false;
    std::string host;
    Beat beat;
    double heard = 0, changed = 0;         // heard: last message; changed: last beat with progress
  };
  std::string name(size_t rank) const;
  std::string list(const std::vector<size_t>& ranks, bool with_state) const;
  std::optional<std::string> lost(double now) const;
  std::optional<std::string> still(double now) const;
  double allowed_stillness() const;

  const double timeout_;
  const Activity& names_;
  std::vector<Rank> ranks_;
  double progress_ = -1, longest_still_ = 0;  // progress_: last time at which any rank made progress
};

}  // namespace blipft
