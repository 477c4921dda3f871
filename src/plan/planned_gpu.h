// PlannedGpu: the GPU that a plan is made for.
#pragma once

#include <cstdint>
#include <string>

#include "plan/fit/step_time.h"

namespace blipft {

struct PlannedGpu {
  int64_t bytes;
  std::string which;                       ///< for the output: the GPU's name, or why this size is used
  const MachineRates& rates = h200_rates();
};

/// Returns a GPU with `gib` GiB of memory. If `gib` is 0, returns this machine's GPU, or an H200 if it has none.
PlannedGpu planned_gpu(double gib);

}  // namespace blipft
