// Signals, and the thread that waits for them; see stop_request.h.
//
// A signal handler alone is not enough: while CUDA starts, its driver installs its own handler for half a second, and a
// signal in this time is lost. Therefore the signals are blocked in every thread (each thread inherits the mask of its
// creator). A blocked signal stays pending until the thread of this file accepts it. This thread starts after main()
// has read the command line. The handlers are for threads in which a library unblocks the signals.
#include "liveness/stop_request.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <mutex>
#include <thread>

#include "base/standard_output.h"
#include "liveness/launcher.h"

namespace blipft {

namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGUSR1};
// A launcher may pass on a signal that the terminal has already sent to all processes: both count as one request.
constexpr int64_t kOneRequestNs = 100'000'000;

std::atomic<int> received{0};
std::atomic<int64_t> received_ns{0};
enum class Speaks : int { never, of_users, always };
std::atomic<Speaks> speaks{Speaks::always};

int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void print(const char* text) { write_error_now(text); }

// Notes a signal. Uses only functions that are allowed in a signal handler.
void note(int signal) {
  int64_t none = 0;
  if (received_ns.compare_exchange_strong(none, now_ns())) {
    received = signal;
    const Speaks how = speaks;
    if (how == Speaks::never || (how == Speaks::of_users && signal == SIGTERM)) return;
    print("\nblipft: ");
    print(StopRequest::name(signal));
    print(": ends after the step under way with a checkpoint; a second signal ends it at once, without\n");
    return;
  }
  if (now_ns() - received_ns < kOneRequestNs) return;
  print("\nblipft: a second signal: ends without a checkpoint; the last one stays\n");
  _exit(128 + signal);
}

// Returns the signals that are noted. SIGINT is excluded if it is ignored.
sigset_t noted() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : kSignals) {
    struct sigaction now{};
    const bool ignored = sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
    if (signal != SIGINT || !ignored) sigaddset(&set, signal);
  }
  return set;
}

// If there are several ranks, only the first prints an answer. It does not answer SIGTERM, because mpirun also sends
// SIGTERM to all ranks when one was killed.
Speaks how_to_speak() {
  const std::string& rank = LaunchedRank::own().rank;
  return rank.empty() ? Speaks::always : rank == "0" ? Speaks::of_users : Speaks::never;
}

}  // namespace

void ignore_signals_of_writes() {
  ::signal(SIGXFSZ, SIG_IGN);
  ::signal(SIGPIPE, SIG_IGN);
}

void StopRequest::listen() {
  const sigset_t set = noted();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  speaks = how_to_speak();
  struct sigaction action{};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (const int signal : kSignals)
    if (sigismember(&set, signal) == 1) sigaction(signal, &action, nullptr);
}

void StopRequest::watch() {
  static std::once_flag once;
  std::call_once(once, [] {
    listen();
    const sigset_t set = noted();
    const timespec now{};                  // accepts signals sent to this thread alone since main() began
    for (int signal = 0; (signal = sigtimedwait(&set, nullptr, &now)) > 0;) note(signal);
    std::thread([set] {
      for (int signal = 0;;)
        if (sigwait(&set, &signal) == 0) note(signal);
    }).detach();
  });
}

StopRequest::StopRequest() { watch(); }

void StopRequest::release() {
  const sigset_t set = noted();
  for (const int signal : kSignals) {
    struct sigaction now{};
    if (sigaction(signal, nullptr, &now) == 0 && now.sa_handler == note) ::signal(signal, SIG_DFL);
  }
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);  // a signal that came in the meantime now has its default effect
  if (received != 0) raise(received);
}

int StopRequest::signal() const { return received; }

const char* StopRequest::name(int signal) {
  return signal == SIGINT ? "SIGINT" : signal == SIGTERM ? "SIGTERM" : "SIGUSR1";
}

}  // namespace blipft
