// The GPU that a plan is for.
#pragma once

#include <cstdint>
#include <string>

#include "plan/fit/step_time.h"

namespace blipft {

struct PlannedGpu {
  int64_t bytes;
  std::string which;                       ///< for people: its name, or why it was taken
  const MachineRates& rates = h200_rates();
};

/// One of `gib` GiB, else (0) the one that is here, else an H200.
PlannedGpu planned_gpu(double gib);

}  // namespace blipft
