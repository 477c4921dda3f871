// Signal handlers; see stop_request.h.
#include "run/stop_request.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

namespace blipft {

namespace {

constexpr int kSignals[] = {SIGTERM, SIGUSR1};
std::atomic<int> received{0};
struct sigaction before[2];

// Only what a signal handler may do.
void note(int signal) {
  int none = 0;
  if (received.compare_exchange_strong(none, signal)) return;
  constexpr char text[] = "\nblipft: a second signal: ends without a checkpoint; the last one stays\n";
  (void)!write(STDERR_FILENO, text, sizeof text - 1);
  _exit(128 + signal);
}

}  // namespace

StopRequest::StopRequest() {
  received = 0;
  struct sigaction action{};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (int i = 0; i < 2; ++i) sigaction(kSignals[i], &action, &before[i]);
}

StopRequest::~StopRequest() {
  for (int i = 0; i < 2; ++i) sigaction(kSignals[i], &before[i], nullptr);
}

int StopRequest::signal() const { return received; }

const char* StopRequest::name(int signal) { return signal == SIGTERM ? "SIGTERM" : "SIGUSR1"; }

}  // namespace blipft
