// The parts of a start: one table says which there are, what each needs, and which run beside the others.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/start_times.h"
#include "blipft/comm.h"

namespace blipft {

struct StartPart {
  enum class Where {
    local,                                 ///< on this rank; all ranks end with an error of one
    collective,                            ///< calls collectives, and agrees on errors by itself
    beside                                 ///< on a thread of its own, from its row on until a part that needs it
  };
  std::string name;
  Where where = Where::local;
  std::vector<std::string> needs;          ///< names of parts above it in the table
  std::function<void()> body;
  std::string timed_as = {};               ///< its name in StartTimes; empty: its time belongs to the next part
  std::function<bool()> applies = {};      ///< of parts that are not local: if it returns false, the part is skipped
};

/// Runs the parts of a table in its order. A part begins when those that it needs are done. Called by all ranks with the same
/// table; throws what a part throws, on all ranks if it is local.
void run_start_parts(const std::vector<StartPart>& parts, const World& world, StartTimes& times);

}  // namespace blipft
