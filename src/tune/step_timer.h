// A few steps of some settings on this machine, timed, before anything of the run itself is there.
//
// Weights and data are random numbers, and all that is made for it is given back: device memory, page-locked memory, graphs.
// It has an Ops of its own, and reads and changes nothing of a run but the device and the communicators.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "blipft/comm.h"
#include "blipft/config.h"
#include "blipft/loading.h"
#include "blipft/ops.h"
#include "plan/batch_choice.h"

namespace blipft {

/// Where steps are timed; nothing here is owned.
struct StepTimerParts {
  const World* world = nullptr;
  Device* device = nullptr;
  CommGroups* groups = nullptr;
  GroupSizes sizes{1};
  int64_t device_bytes = 0;                ///< that a rank has for its plan; 0: not known (CPUs)
  /// Of the device; it times no matrix products.
  std::function<std::unique_ptr<Ops>()> make_ops;
  /// Seconds from any moment on, by which the time that is left is counted.
  std::function<double()> now = [] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  };
};

/// Times candidates by the rules of ChoiceTiming. Called by all ranks with the same, which get the same times. A candidate whose
/// memory does not suffice on some rank, or that cannot be set up there, fails on all. What goes wrong on one of several
/// ranks in a step is thrown there, and ends all of them, as it would in the run.
std::vector<CandidateTime> time_candidates(const StepTimerParts& parts, const Config& asked, const std::vector<TimedStep>& steps);

}  // namespace blipft
