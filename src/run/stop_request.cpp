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
  struct sigaction action{};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigset_t blocked;                        // as whoever started the program may have left them
  sigemptyset(&blocked);
  for (const int signal : kSignals) {
    sigaction(signal, &action, nullptr);
    sigaddset(&blocked, signal);
  }
  pthread_sigmask(SIG_UNBLOCK, &blocked, nullptr);
}

int StopRequest::signal() const { return received; }

const char* StopRequest::name(int signal) { return signal == SIGTERM ? "SIGTERM" : "SIGUSR1"; }

}  // namespace blipft
