// Launcher: the process that has started this one as one rank of several: mpirun, its daemon on another machine, Slurm's.
#pragma once

#include <cstdint>
#include <string>

namespace blipft {

/// Who this process is among those that were started together, as the launcher's variables say; found once.
struct LaunchedRank {
  std::string rank;                        ///< "" for a process that was started alone
  std::string variable;                    ///< that says so
  std::string job;                         ///< PMIx' name of what was started with it; "": not said
  int64_t ranks = 0, local_ranks = 0;      ///< in all, and of this machine; 0: not said
  static const LaunchedRank& own();
};

struct Launcher {
  int64_t pid = 0;                         ///< 0: none, or none that can be seen
  int64_t parent = 0;                      ///< the process that started this one: the launcher, or one between them
  std::string start, name;
  /// Of this process, as it was when this was first called.
  static const Launcher& own();
  /// Whether that process has ended. False where there is none.
  bool gone() const;
};

/// Whether this process has lost its launcher, or what stood between them.
bool launcher_is_gone();

/// What is known of this machine's other ranks of the same start, for one that waits for them.
struct OtherRanks {
  /// "rank 1 (process 4711) is stopped; rank 2 (process 4712, sleep) has not begun blipft"; "": nothing is known.
  std::string missing;
  /// Whether no rank of a smaller number waits here as this one does.
  bool first_that_waits = true;
  static OtherRanks find();
};

}  // namespace blipft
