// The end of all ranks by one's error; see end_all.h.
#include "faults/end_all.h"

#include <chrono>
#include <future>
#include <thread>

#include "ops/quietly.h"

namespace blipft {

namespace {
constexpr std::chrono::seconds kCloseTime{3}, kFirstRankTime{4};
}

void end_all_ranks(const std::exception& error, const World& world, Watchdog& watchdog,
                   const std::function<void()>& close) {
  const bool shared = dynamic_cast<const SharedError*>(&error) != nullptr;
  // A shared error tells its step itself; this rank may be steps behind the GPU, or ahead.
  const std::string text = shared ? describe(error)
                                  : concat(world.activity().text(world.activity().state()), ": ", describe(error));
  watchdog.failing();
  std::promise<void> closed;
  std::thread closing([&] {
    quietly(close);
    closed.set_value();
  });
  closing.detach();                        // a file system that hangs does not keep the others
  closed.get_future().wait_for(kCloseTime);
  if (shared && world.rank() > 0) std::this_thread::sleep_for(kFirstRankTime);
  world.abort(text, 1);
}

}  // namespace blipft
