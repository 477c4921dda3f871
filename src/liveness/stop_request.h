// StopRequest: signals that request a run to write a checkpoint and end.
#pragma once

namespace blipft {

/// Exit code of a process that was requested to stop and has written a checkpoint. Run the process again to resume
/// (EX_TEMPFAIL of sysexits.h).
constexpr int kStoppedCode = 75;

/// From now on, a file that must not grow further (SIGXFSZ) and a log without a reader (SIGPIPE) do not end the
/// process. They are errors of write(), which are reported or ignored.
void ignore_signals_of_writes();

/// SIGINT (Ctrl-C), SIGTERM and SIGUSR1 are noted and do not end the process, even after this object is destroyed: a
/// signal that comes while a stopped run ends has no effect. One rank answers the first signal with a line. A second
/// signal ends the process at once. The signals are blocked in all threads except one that waits for them. If the
/// process was started with SIGINT ignored (a shell's background job), SIGINT stays ignored. All objects in a process
/// share the noted signal.
class StopRequest {
 public:
  StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;
  /// Returns the noted signal, or 0 if there is none.
  int signal() const;
  static const char* name(int signal);

  /// Blocks the signals; they stay pending until watch() runs. Call this in the first line of main(): an earlier
  /// signal, while the system loads and initialises libraries, ends the process as usual.
  static void listen();
  /// The first call starts the thread that notes signals. Call it before other threads start, because they inherit the
  /// signal mask.
  static void watch();
  /// Restores the default effect of the signals, for modes that are not a run. A signal noted earlier is raised now.
  static void release();
};

}  // namespace blipft
