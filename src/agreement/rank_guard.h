// RankGuard: protects every action that runs on ranks. It ends all ranks after an error on one of them.
#pragma once

#include <exception>
#include <functional>
#include <string>

#include "blipft/comm.h"
#include "blipft/engine_settings.h"
#include "liveness/watchdog.h"

namespace blipft {

/// An error that occurs on every rank at the same step. Rank 0 prints it and ends all ranks.
class SharedError : public UserError {
 public:
  explicit SharedError(const std::string& message, std::source_location location = std::source_location::current())
      : UserError(message, location) {}
};

/// Prints `error` with rank, host and the activity of this rank, and ends all ranks with code 1. No destructor runs
/// before, because destructors may wait for other ranks. `close` finishes the files that must be readable afterwards;
/// it has a few seconds for this.
[[noreturn]] void end_all_ranks(const std::exception& error, const World& world, Watchdog& watchdog,
                                const std::function<void()>& close);

class RankGuard {
 public:
  /// Starts the watchdog and ends the launch watch. Called by all ranks. Throws AgreedError if this process was started
  /// as one of several processes but MPI has only this one, so that each would run alone.
  RankGuard(const EngineSettings& config, const World& world);
  /// Compares the actions of all ranks (training, --generate, ...) before the configuration is read, because each
  /// action calls other collectives. Throws AgreedError if a rank was started for another action than rank 0.
  static void compare_actions(const std::string& action, const World& world);
  RankGuard(const RankGuard&) = delete;
  RankGuard& operator=(const RankGuard&) = delete;

  Watchdog& watchdog() { return watchdog_; }
  /// Runs the action. AgreedError passes through; any other error ends all ranks with code 1 after `close`,
  /// which finishes this rank's files.
  void run(const std::function<void()>& action, const std::function<void()>& close);

 private:
  const World& world_;
  Watchdog watchdog_;
};

/// Reports errors of communicators to a watchdog for as long as it lives. `groups` may be null.
class GroupsWatch {
 public:
  GroupsWatch(Watchdog& watchdog, const CommGroups* groups);
  ~GroupsWatch() { watchdog_.set_check(nullptr); }
  GroupsWatch(const GroupsWatch&) = delete;
  GroupsWatch& operator=(const GroupsWatch&) = delete;

 private:
  Watchdog& watchdog_;
};

}  // namespace blipft
