// Attention forward for bf16 where scores change between the product and the softmax: caps (Gemma 2),
// relative positions (T5), with keys packed by themselves (cross attention of packed samples), within windows or not,
// with dropout over packed samples, and for heads of 129 to 256 (Gemma): with mma.sync, the streaming kernel of
// streaming.cuh, or for wide heads that of wgmma_wide_forward.cu.
//
// With mma.sync 256 columns of a warp's 16 queries are 128 registers, so a warp has no more queries than these (MT = 1),
// and 8 warps share the keys of a block: 192 KB, one block an SM. Every K and V fragment feeds 2 mma then, and shared
// memory, which brings one in the time of 2.5, is the limit. Where a block may have no more than 99 KB, it has 4 warps
// and blocks of 32 keys.
#include <cuda_runtime.h>

#include "cuda/attention/streaming.cuh"
#include "cuda/attention/wgmma_wide.cuh"

namespace blipft::attention {
namespace {

bool forward_wide(const ScoreParams& p, cudaStream_t stream) {
  return wgmma_wide_forward(p, stream) || launch_streaming<256, 1, false, 8, 64>(p, stream) ||
         launch_streaming<256, 1, false, 4, 32>(p, stream);
}

}  // namespace

bool mma_score_forward(const Params& params, cudaStream_t stream) {
  const ScoreParams p = score_params(params);
  if (p.dropout && (p.group > 1 || p.head_size > 128)) return false;  // no model has both
  if (p.head_size > 128) return forward_wide(p, stream);
  if (p.dropout) {
    if (p.head_size <= 64) return launch_streaming<64, 1, true>(p, stream);
    return launch_streaming<128, 1, true>(p, stream);
  }
  return p.head_size <= 64 ? launch_streaming<64, 2, false>(p, stream) : launch_streaming<128, 2, false>(p, stream);
}

}  // namespace blipft::attention
