// Launcher: the process that has started this one as one of several ranks: mpirun, its daemon on another machine, or
// Slurm's daemon.
#pragma once

#include <cstdint>
#include <string>

namespace blipft {

/// The identity of this process among those started together, from the launcher's environment variables. Read once.
struct LaunchedRank {
  std::string rank;                        ///< "" for a process that was started alone
  std::string variable;                    ///< environment variable that contains the rank
  std::string job;                         ///< PMIx' name of the job; "": unknown
  int64_t ranks = 0, local_ranks = 0;      ///< number of ranks in total and on this machine; 0: unknown
  static const LaunchedRank& own();
};

struct Launcher {
  int64_t pid = 0;                         ///< 0: no launcher, or none that is visible
  int64_t parent = 0;                      ///< parent of this process: the launcher, or a process between them
  std::string start, name;
  /// Returns the launcher of this process at the time of the first call.
  static const Launcher& own();
  /// Returns true if the launcher has ended; false if there is none.
  bool gone() const;
};

/// Returns true if the launcher, or the parent process between launcher and this process, has ended.
bool launcher_is_gone();

/// Returns true if standard output goes to a terminal. Some launchers give rank 0 a pseudo-terminal; then the output of
/// the launcher decides, if it is visible.
bool stdout_is_terminal();

/// State of the other ranks of this job on this machine, for a rank that waits for them.
struct OtherRanks {
  /// "rank 1 (process 4711) is stopped; rank 2 (process 4712, sleep) has not begun blipft"; "": nothing is known.
  std::string missing;
  /// True if no rank with a smaller number waits on this machine as this rank does.
  bool first_that_waits = true;
  static OtherRanks find();
};

}  // namespace blipft
