// StopRequest: signals that ask a run to write a checkpoint and end.
#pragma once

namespace blipft {

/// The process ends with this code when it was asked to stop and has written a checkpoint: run it again to go on
/// (EX_TEMPFAIL of sysexits.h).
constexpr int kStoppedCode = 75;

/// From its making on SIGTERM and SIGUSR1 are noted instead of ending the process, also when it is gone: one that comes
/// while a stopped run ends changes nothing. A second one ends the process at once. Both are unblocked. All that a process
/// makes share what came; the first is made before MPI starts, which takes a moment.
class StopRequest {
 public:
  StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;
  /// The signal that came, 0: none.
  int signal() const;
  static const char* name(int signal);
};

}  // namespace blipft
