// Times a few steps of candidate settings on this machine, before any part of the run itself exists.
//
// Weights and data are random numbers. All resources are released afterwards: device memory, page-locked memory,
// graphs. The timing has its own Ops object. It uses nothing of the run except the device and the communicators.
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

/// The environment in which steps are timed; the pointers are not owned.
struct StepTimerParts {
  const World* world = nullptr;
  Device* device = nullptr;
  CommGroups* groups = nullptr;
  GroupSizes sizes{1};
  int64_t device_bytes = 0;                ///< device memory of a rank for its plan; 0: unknown (CPUs)
  /// Creates the Ops of the device. This Ops does not time matrix products.
  std::function<std::unique_ptr<Ops>()> make_ops;
  /// Returns the seconds since an arbitrary moment, for measuring the remaining time.
  std::function<double()> now = [] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  };
};

/// Times candidates by the rules of ChoiceTiming. Called by all ranks with the same, which get the same times. A candidate whose
/// memory does not suffice on some rank, or that cannot be set up there, fails on all. An error of a step on one of
/// several ranks is thrown there and ends all ranks, as it would in the run.
std::vector<CandidateTime> time_candidates(const StepTimerParts& parts, const Config& requested, const std::vector<TimedStep>& steps);

}  // namespace blipft
