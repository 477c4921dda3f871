// Waiting for other ranks; see mpi_wait.h.
#include "comm/mpi_wait.h"

#include <dlfcn.h>
#include <strings.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>

namespace blipft {
namespace {

// Whether ranks are to sleep while they wait. If so, sleeps of this thread end on time from here on.
bool waits_asleep() {
  const char* const policy = std::getenv("OMP_WAIT_POLICY");
  if (!policy || strcasecmp(policy, "passive") != 0) return false;
  prctl(PR_SET_TIMERSLACK, 1000);          // ns: else each sleep takes 50 us longer than it should
  return true;
}

// One look that does not yield. Open MPI has a switch for that, though it is none of MPI's functions: with another library
// looks yield if that library yields.
bool is_done(MPI_Request& request, const char* what) {
  using Switch = bool (*)(bool yields);
  static const auto set_yields = reinterpret_cast<Switch>(dlsym(RTLD_DEFAULT, "opal_progress_set_yield_when_idle"));
  const bool before = set_yields && set_yields(false);
  int done = 0;
  const int code = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
  if (before) set_yields(true);
  check_mpi(code, what);
  return done != 0;
}

}  // namespace

void finish(MPI_Request request, int64_t bytes, const char* what) {
  using Clock = std::chrono::steady_clock;
  using std::chrono::microseconds;
  constexpr microseconds kLook(20), kShortest(50), kLongest(200);
  static const bool asleep = waits_asleep();
  if (!asleep) return check_mpi(MPI_Wait(&request, MPI_STATUS_IGNORE), what);
  const std::chrono::nanoseconds moving(bytes / 16);  // at 16 GB/s
  const auto begin = Clock::now();
  for (auto look_until = begin + kLook + moving; !is_done(request, what);) {
    const auto now = Clock::now();
    if (now < look_until) continue;
    std::this_thread::sleep_for(std::clamp<Clock::duration>((now - begin) / 8, kShortest, kLongest));
    look_until = Clock::now() + moving;
  }
}

}  // namespace blipft
