// Head norms and rotary position embedding in one kernel.
#pragma once

#include "blipft/head_norm.h"
#include "cuda/kernels.h"

namespace blipft {

/// Returns false, without doing anything, in cases that need two kernels: groups that are not heads, heads that are
/// rotated partly or whose halves are not whole packs, positions on several axes, and gradients of gamma.
bool launch_head_norm_rotary(const HeadNormForward& args, const LaunchContext& context);
bool launch_head_norm_rotary(const HeadNormBackward& args, const LaunchContext& context);

}  // namespace blipft
