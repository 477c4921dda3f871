// Watchdog: a thread of every rank that sees what the ranks are in, and ends them when one is gone or all stand still.
//
// Each rank tells rank 0 about once a second what it is in, over TCP and not MPI, which belongs to the training thread;
// rank 0 tells the others that it is there, and its verdict. A connection that closes without a goodbye is a killed
// rank, found at once; silence is a stopped rank or a dead machine. After a verdict every rank prints one line (rank,
// host, what it was in, who is missing) and its process ends with kLostRankExit, whatever its training thread is in.
// Where a rank cannot reach rank 0 it says so once, and goes on without.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "blipft/comm.h"

namespace blipft {

/// Exit code of ranks that end because another is gone, or because none gets any further.
constexpr int kLostRankExit = 3;

class Watchdog {
 public:
  /// Called by all ranks of `world`, whose activity() it reads. Handles SIGTERM, where nobody else does: it waits a
  /// moment for a verdict, since mpirun sends it to the others when a rank is killed, and then ends the process as the
  /// signal does.
  Watchdog(const World& world, double timeout_seconds);
  /// Says goodbye: a rank whose run ends in good order.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Asked about once a second on the watchdog's thread, until it is replaced; not empty: what has gone wrong on this
  /// rank, which ends all.
  void set_check(std::function<std::string()> failure);
  /// Called in the last moment of a process that ends because another rank is gone; it must be done in 0.2 s. To be set
  /// before the first step.
  void set_end(std::function<void()> end);
  /// This rank is about to end all with an error of its own, which it prints itself: the others wait for that.
  void failing();

 private:
  class Thread;
  std::unique_ptr<Thread> thread_;
};

}  // namespace blipft
