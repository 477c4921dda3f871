// StopRequest: signals that ask a run to write a checkpoint and end.
#pragma once

namespace blipft {

/// The process ends with this code when it was asked to stop and has written a checkpoint: run it again to go on
/// (EX_TEMPFAIL of sysexits.h).
constexpr int kStoppedCode = 75;

/// While it lives, SIGTERM and SIGUSR1 are noted instead of ending the process; a second one ends it at once. One at a
/// time.
class StopRequest {
 public:
  StopRequest();
  ~StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;
  /// The signal that came, 0: none.
  int signal() const;
  static const char* name(int signal);
};

}  // namespace blipft
