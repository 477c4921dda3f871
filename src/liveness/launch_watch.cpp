// The thread that watches the start of a run; see launch_watch.h.
#include "liveness/launch_watch.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "base/process_info.h"
#include "base/standard_output.h"
#include "blipft/error.h"
#include "liveness/launcher.h"
#include "liveness/watchdog.h"
#include "ops/quietly.h"

namespace blipft {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kTick{100};  // this process ends little later than its launcher
constexpr std::chrono::seconds kEndTime{1};
// Maximum seconds counted per check: a process that was stopped itself did not wait for other ranks in this time.
constexpr double kLongestTick = 1;

enum class Stage { mpi, agreements, done };

struct Shared {
  std::mutex mutex;
  std::condition_variable changed;
  bool ends = false;
  std::thread thread;
  std::atomic<Stage> stage{Stage::done};
  std::atomic<double> timeout{60};
  std::mutex end_mutex;
  std::function<void()> end;
};
// Never destroyed, because the process may end while the thread runs.
Shared& shared() {
  static Shared& one = *new Shared;
  return one;
}

void say(const std::string& what) {
  const std::string line = concat("\nblipft: rank ", LaunchedRank::own().rank, " on ", host_name(), ": ", what, "\n");
  write_error_now(line);
}

// The other threads continue until _exit() and may still change files. Therefore _exit() directly follows the end
// function.
[[noreturn]] void end_process() {
  std::thread([] {
    const std::lock_guard lock(shared().end_mutex);
    if (shared().end) quietly(shared().end);
    _exit(kLostRankExit);
  }).detach();
  std::this_thread::sleep_for(kEndTime);   // a file system that hangs does not block the exit
  _exit(kLostRankExit);
}

std::string late_text(Stage stage, double seconds) {
  const OtherRanks others = OtherRanks::find();
  const LaunchedRank& own = LaunchedRank::own();
  const std::string what = stage == Stage::mpi ? "MPI_Init is not through" : "the ranks have not come together";
  const bool elsewhere = own.ranks > own.local_ranks && own.local_ranks > 0;
  return concat(what, " after ", static_cast<int64_t>(seconds + 0.5), " s; ",
                !others.missing.empty() ? concat("missing: ", others.missing)
                : elsewhere ? "all ranks of this machine are there, look at the other machines"
                            : "who is missing cannot be seen from here");
}

class Start {
 public:
  // Called once per kTick.
  void look() {
    const Clock::time_point now = Clock::now();
    seconds_ += std::min(std::chrono::duration<double>(now - last_).count(), kLongestTick);
    last_ = now;
    const Stage stage = shared().stage;
    const double timeout = shared().timeout;
    if (stage == Stage::done) return;
    if (seconds_ > LaunchWatch::kStart * timeout) {
      say(concat(late_text(stage, seconds_), " (", LaunchWatch::kStart, " times parallel.timeout_seconds, ", timeout, ")"));
      end_process();
    }
    if (warned_ || seconds_ <= timeout) return;
    warned_ = true;
    if (OtherRanks::find().first_that_waits)
      say(concat(late_text(stage, seconds_), "; all end after ", LaunchWatch::kStart * timeout, " s (", LaunchWatch::kStart,
                 " times parallel.timeout_seconds)"));
  }

 private:
  Clock::time_point last_ = Clock::now();
  double seconds_ = 0;
  bool warned_ = false;
};

void watch() {
  Start start;
  std::unique_lock lock(shared().mutex);
  while (!shared().changed.wait_for(lock, kTick, [] { return shared().ends; })) {
    if (launcher_is_gone()) {
      const Launcher& launcher = Launcher::own();
      say(concat("its launcher, ", launcher.name, " (process ", launcher.pid, "), is gone: ends without a checkpoint; the last ",
                 "one stays"));
      end_process();
    }
    start.look();
  }
}

}  // namespace

LaunchWatch::LaunchWatch(const std::function<double()>& read_timeout) {
  if (!one_of_several()) return;
  Launcher::own();                         // reads the environment before MPI changes it
  shared().stage = Stage::mpi;
  shared().thread = std::thread([] { quietly(watch); });
  quietly([&] { shared().timeout = read_timeout(); });
}

bool LaunchWatch::one_of_several() { return !LaunchedRank::own().rank.empty(); }

LaunchWatch::~LaunchWatch() {
  {
    const std::lock_guard lock(shared().mutex);
    shared().ends = true;
  }
  shared().changed.notify_all();
  if (shared().thread.joinable()) shared().thread.join();
}

void LaunchWatch::mpi_started() {
  Stage mpi = Stage::mpi;
  shared().stage.compare_exchange_strong(mpi, Stage::agreements);
}
void LaunchWatch::together() { shared().stage = Stage::done; }
void LaunchWatch::set_end(std::function<void()> end) {
  const std::lock_guard lock(shared().end_mutex);
  shared().end = std::move(end);
}

}  // namespace blipft
