// StopRequest: signals that ask a run to write a checkpoint and end.
#pragma once

namespace blipft {

/// The process ends with this code when it was asked to stop and has written a checkpoint: run it again to go on
/// (EX_TEMPFAIL of sysexits.h).
constexpr int kStoppedCode = 75;

/// A file that may not grow further (SIGXFSZ) and a log that nobody reads any more (SIGPIPE) are errors of write() from now
/// on, told as such or gone through, and no end of the process.
void ignore_signals_of_writes();

/// SIGINT (Ctrl-C), SIGTERM and SIGUSR1 are noted instead of ending the process, also when this object is gone: one that
/// comes while a stopped run ends changes nothing. The first is answered with a line, by one rank; a second one ends the
/// process at once. They are blocked in all threads but one that waits for them; a SIGINT that whoever started the process
/// had it ignore (a shell's background job) stays ignored. All that a process makes share what came.
class StopRequest {
 public:
  StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;
  /// The signal that came, 0: none.
  int signal() const;
  static const char* name(int signal);

  /// Blocks the signals, which wait for watch() from then on. The first line of main(): a signal that comes earlier, while
  /// the system loads and initialises libraries, ends the process as it ends any.
  static void listen();
  /// Starts the thread that notes signals, the first time. Before other threads start: they inherit which signals are blocked.
  static void watch();
  /// Back to what signals do by default, for what is no run. One that came already does that now.
  static void release();
};

}  // namespace blipft
