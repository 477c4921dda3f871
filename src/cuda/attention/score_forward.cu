// Attention forward for bf16 if scores change between the product and the softmax: caps (Gemma 2) and relative
// positions (T5). It also supports separately packed keys (cross-attention of packed samples), windows, dropout with
// packed samples, and heads of 129 to 256 (Gemma). It uses the mma.sync kernel of streaming.cuh, or for wide heads that
// of wgmma_wide_forward.cu.
//
// With mma.sync, 256 columns of a warp's 16 queries take 128 registers, so a warp has only 16 queries (MT = 1), and 8
// warps share the keys of a block: 192 KB, one block per SM. Every K and V fragment then feeds 2 mma but takes as long
// to load from shared memory as 2.5 mma, which is the limit. If a block may use only 99 KB, it has 4 warps and blocks
// of 32 keys.
#include <cuda_runtime.h>

#include "cuda/attention/streaming.cuh"
#include "cuda/attention/wgmma_wide.cuh"

namespace blipft::attention {
namespace {

bool forward_wide(const ScoreParams& p, cudaStream_t stream) {
  return wgmma_wide_forward(p, stream) || launch_streaming<256, 1, false, 8, 64>(p, stream) ||
         launch_streaming<256, 1, false, 4, 32>(p, stream);
}

bool forward_last_keys(const LastKeyScoreParams& p, cudaStream_t stream) {
  if (p.dropout) return false;             // no model combines both
  if (p.head_size <= 128) return launch_streaming<128, 2, false>(p, stream);
  return launch_streaming<256, 1, false, 8, 64>(p, stream) || launch_streaming<256, 1, false, 4, 32>(p, stream);
}

}  // namespace

bool mma_score_forward(const Params& params, cudaStream_t stream) {
  if (params.last_keys) return forward_last_keys({score_params(params)}, stream);
  const ScoreParams p = score_params(params);
  if (p.dropout && (p.group > 1 || p.head_size > 128)) return false;  // no model combines both
  if (p.head_size > 128) return forward_wide(p, stream);
  if (p.dropout) {
    if (p.head_size <= 64) return launch_streaming<64, 1, true>(p, stream);
    return launch_streaming<128, 1, true>(p, stream);
  }
  return p.head_size <= 64 ? launch_streaming<64, 2, false>(p, stream) : launch_streaming<128, 2, false>(p, stream);
}

}  // namespace blipft::attention
