// LaunchWatch: a thread that runs from before the start of MPI until the process ends. It ends the process if the
// launcher has ended, or if not all ranks start. After the start the ranks watch each other; see watchdog.h.
#pragma once

#include <functional>


namespace blipft {

class LaunchWatch {
 public:
  /// One in a process, made before MPI starts. A process that was started alone is not watched: it may outlive the shell
  /// that it came from. `read_timeout` returns parallel.timeout_seconds of the run file; if it
  /// throws, the default holds.
  explicit LaunchWatch(const std::function<double()>& read_timeout);
  ~LaunchWatch();
  LaunchWatch(const LaunchWatch&) = delete;
  LaunchWatch& operator=(const LaunchWatch&) = delete;

  /// Returns true if this process was started as one of several ranks.
  static bool one_of_several();
  /// If the ranks have not all started after kStart * parallel.timeout_seconds, the process reports the missing ranks,
  /// as far as it can see them, and exits with kLostRankExit. It warns after parallel.timeout_seconds. Only time in
  /// which this process ran counts.
  static constexpr double kStart = 5;
  /// Call this when MPI has started: from now on the watch waits for the first agreement of the ranks.
  static void mpi_started();
  /// Call this when all ranks have started and watch each other.
  static void together();
  /// Sets a function that is called just before this watch ends the process. The process ends as soon as the function
  /// returns, and after 1 s at the latest. An empty function is not called.
  static void set_end(std::function<void()> end);
};

}  // namespace blipft
