// The protection of an action on ranks; see rank_guard.h.
#include "agreement/rank_guard.h"

#include <chrono>
#include <future>
#include <thread>

#include "agreement/same_run.h"
#include "engine/placement.h"
#include "liveness/launch_watch.h"
#include "ops/quietly.h"

namespace blipft {

namespace {

constexpr std::chrono::seconds kCloseTime{3}, kFirstRankTime{4};

const World& started_together(const EngineSettings& config, const World& world) {
  check_started_together(config, world);
  return world;
}

}  // namespace

void end_all_ranks(const std::exception& error, const World& world, Watchdog& watchdog,
                   const std::function<void()>& close) {
  const bool shared = dynamic_cast<const SharedError*>(&error) != nullptr;
  // The message of a shared error has its step; the activity of this rank may be of an earlier or a later step.
  const std::string text = shared ? describe(error)
                                  : concat(world.activity().text(world.activity().state()), ": ", describe(error));
  watchdog.failing();
  std::promise<void> closed;
  std::thread closing([&] {
    quietly(close);
    closed.set_value();
  });
  closing.detach();                        // a file system that hangs must not delay the end of all ranks
  closed.get_future().wait_for(kCloseTime);
  if (shared && world.rank() > 0) std::this_thread::sleep_for(kFirstRankTime);
  world.abort(text, 1);
}

void RankGuard::compare_actions(const std::string& action, const World& world) {
  if (world.size() > 1)
    compare_facts(world, {{"the action", action}}, "start all ranks with the same program, run file and options");
}

RankGuard::RankGuard(const EngineSettings& config, const World& world)
    : world_(started_together(config, world)), watchdog_(world, config.parallel.timeout_seconds) {
  LaunchWatch::together();
}

void RankGuard::run(const std::function<void()>& action, const std::function<void()>& close) {
  try {
    action();
  } catch (const AgreedError&) {
    throw;
  } catch (const std::exception& error) {
    end_all_ranks(error, world_, watchdog_, close);
  }
}

GroupsWatch::GroupsWatch(Watchdog& watchdog, const CommGroups* groups) : watchdog_(watchdog) {
  if (groups) watchdog_.set_check([groups] { return groups->failure(); });
}

}  // namespace blipft
