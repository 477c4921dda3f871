// Implements waits for other ranks; see mpi_wait.h.
#include "comm/mpi_wait.h"

#include <strings.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>

namespace blipft {
namespace {

bool is_done(MPI_Request& request, const char* what) {
  int done = 0;
  check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), what);
  return done != 0;
}

// Makes sleeps of the calling thread end on time; by default each takes 50 us longer than requested.
bool enable_short_sleeps() { return prctl(PR_SET_TIMERSLACK, 1000) == 0; }  // ns

}  // namespace

bool ranks_sleep() {
  static const bool sleep = [] {
    const char* const policy = std::getenv("OMP_WAIT_POLICY");
    return policy && strcasecmp(policy, "passive") == 0;
  }();
  return sleep;
}

void finish(MPI_Request request, int64_t bytes, const char* what) {
  using Clock = std::chrono::steady_clock;
  using std::chrono::microseconds;
  constexpr microseconds kLook(20), kShortest(50), kLongest(200);
  if (!ranks_sleep()) return check_mpi(MPI_Wait(&request, MPI_STATUS_IGNORE), what);
  [[maybe_unused]] static const bool short_sleeps = enable_short_sleeps();
  const std::chrono::nanoseconds moving(bytes / 16);  // transfer time at 16 GB/s
  const auto begin = Clock::now();
  for (auto look_until = begin + kLook + moving; !is_done(request, what);) {
    const auto now = Clock::now();
    if (now < look_until) continue;
    std::this_thread::sleep_for(std::clamp<Clock::duration>((now - begin) / 8, kShortest, kLongest));
    look_until = Clock::now() + moving;
  }
}

}  // namespace blipft
