// Gradients are there after the step, for comparisons, also where a run would not hold them.
#pragma once

#include "blipft/store.h"

namespace blipft::testing {

struct HoldGradients : StoragePolicy {
  bool transient_gradients(bool) const override { return false; }
};

}  // namespace blipft::testing
