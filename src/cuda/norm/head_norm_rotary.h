// Norms of heads and rotary positions in one pass.
#pragma once

#include "blipft/head_norm.h"
#include "cuda/kernels.h"

namespace blipft {

/// False, having done nothing, for what two kernels must do: groups that are not heads, heads of which a part turns or whose
/// halves are no whole packs, and gradients of gamma.
bool launch_head_norm_rotary(const HeadNormForward& args, const LaunchContext& context);
bool launch_head_norm_rotary(const HeadNormBackward& args, const LaunchContext& context);

}  // namespace blipft
