// Attention backward for bf16 for the arguments of score_forward.cu: the kernels of backward_long.cuh, and for heads of
// more than 128 those of wgmma_wide_backward.cu or backward_wide.cuh.
#include <cuda_runtime.h>

#include "cuda/attention/backward_wide.cuh"
#include "cuda/attention/wgmma_wide.cuh"

namespace blipft::attention {
namespace {

bool backward_last_keys(const LastKeyScoreParams& p, cudaStream_t stream) {
  if (p.dropout) return false;             // no model combines both
  if (p.head_size <= 128) return backward_long::backward<128, false>(p, stream);
  return backward_wide::backward<64, 2>(p, stream) || backward_wide::backward<32, 1>(p, stream);
}

}  // namespace

bool mma_score_backward(const Params& params, cudaStream_t stream) {
  if (params.last_keys) return backward_last_keys({score_params(params)}, stream);
  const ScoreParams p = score_params(params);
  if ((p.dropout || p.relative) && p.group > 1) return false;  // no model combines both
  if (p.head_size > 128) {
    if (p.dropout) return false;
    return wgmma_wide_backward(p, stream) || backward_wide::backward<64, 2>(p, stream) ||
           backward_wide::backward<32, 1>(p, stream);
  }
  if (p.head_size <= 64)
    return p.dropout ? backward_long::backward<64, true>(p, stream) : backward_long::backward<64, false>(p, stream);
  return p.dropout ? backward_long::backward<128, true>(p, stream) : backward_long::backward<128, false>(p, stream);
}

}  // namespace blipft::attention
