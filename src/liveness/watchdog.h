// Watchdog: a thread on every rank that observes the activity of all ranks, and ends them if one is lost or none makes
// progress.
//
// Each rank reports its activity to rank 0 about once a second. The reports use TCP instead of MPI, because MPI belongs
// to the training thread. Rank 0 sends the others its own heartbeats and its verdict. A connection that closes without
// a goodbye means a killed rank, and is detected at once. Silence means a stopped rank or a dead machine. After a
// verdict every rank prints one line (rank, host, its activity, missing ranks), and its process exits with
// kLostRankExit, whatever its training thread is doing. A rank that cannot reach rank 0 warns once and continues
// without it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "blipft/comm.h"

namespace blipft {

/// Exit code of ranks that end because another rank is lost or because no rank makes progress.
constexpr int kLostRankExit = 3;

class Watchdog {
 public:
  /// Called by all ranks of `world`; reads world.activity(). Handles SIGTERM unless another handler is installed: the
  /// watchdog first waits a moment for a verdict, because mpirun sends SIGTERM to the other ranks when one is killed.
  /// Then SIGTERM ends the process as usual.
  Watchdog(const World& world, double timeout_seconds);
  /// Sends a goodbye: the run of this rank has ended normally.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Sets a function that the watchdog's thread calls about once a second, until it is replaced. If it returns a
  /// non-empty text, this text describes a failure of this rank, and all ranks end.
  void set_check(std::function<std::string()> failure);
  /// Sets a function that is called just before the process ends because another rank is lost; the function must return
  /// within 0.2 s. Set it before the first step.
  void set_end(std::function<void()> end);
  /// Call this before this rank ends all ranks with an error that it prints itself: the others wait for that.
  void failing();

 private:
  class Thread;
  std::unique_ptr<Thread> thread_;
};

}  // namespace blipft
