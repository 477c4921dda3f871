// LaunchWatch: a thread from before MPI starts to the end of the process, which ends it when the launcher is gone, and when
// the ranks do not come together. From then on the ranks watch each other; see watchdog.h.
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

  /// Whether this process was started as one of several ranks.
  static bool one_of_several();
  /// Where the ranks have not come together after so many times parallel.timeout_seconds, in which this process ran, it
  /// says who is missing, as far as that can be seen, and ends with kLostRankExit; it warns after the first of these times.
  static constexpr double kStart = 5;
  /// MPI has started: from now on it is the ranks' first agreements that are waited for.
  static void mpi_started();
  /// All ranks are there and watch each other.
  static void together();
  /// Called in the last moment of a process whose launcher is gone, which ends as soon as it returns, after 1 s at the
  /// latest. Empty: nothing is.
  static void set_end(std::function<void()> end);
};

}  // namespace blipft
