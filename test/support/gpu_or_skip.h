// For tests that need a GPU.
#pragma once

#include <cstdio>

#include "blipft/device.h"

namespace blipft::testing {

/// Returns true if there is a GPU; else prints that `test` is skipped.
inline bool gpu_or_skip(const char* test) {
  if (cuda_device_count() > 0) return true;
  std::printf("SKIPPED: %s (no GPU)\n", test);
  return false;
}

}  // namespace blipft::testing
