// The parts of a start, as a table: what each part needs, and which parts run on background threads.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/start_times.h"
#include "blipft/comm.h"

namespace blipft {

struct StartPart {
  enum class Where {
    local,                                 ///< runs without collectives; an error of one rank ends all ranks
    collective,                            ///< calls collectives, and uses run_agreeing_on_errors() itself
    beside                                 ///< runs on its own thread, from its row until a part needs it
  };
  std::string name;
  Where where = Where::local;
  std::vector<std::string> needs;          ///< names of parts that are above it in the table
  std::function<void()> body;              ///< empty: the part only waits for the parts that it needs
  std::string timed_as = {};               ///< its name in StartTimes; empty: its time belongs to the next part
  std::function<bool()> applies = {};      ///< if it returns false on all ranks, the part is skipped
};

/// Runs the parts of a start. After an error of one rank this object must live on until all ranks have ended: its
/// destructor waits for the threads.
class StartParts {
 public:
  StartParts(const World& world, StartTimes& times) : world_(world), times_(times) {}
  /// Runs the parts of a table in its order. A part begins when those that it needs are done. Called by all ranks with
  /// the same table; throws what a part throws, on all ranks if it is local. Throws Error if a part needs one that is
  /// not above it, or if no part needs a background part.
  void run(const std::vector<StartPart>& parts);

 private:
  void run(const StartPart& part);
  void wait_for(const std::vector<std::string>& needs);

  const World& world_;
  StartTimes& times_;
  std::map<std::string, std::unique_ptr<BackgroundTask>> running_;  // background parts that no part has waited for yet
};

}  // namespace blipft
