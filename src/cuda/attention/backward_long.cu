// Selection among the instances of the kernels of backward_long.cuh (see attention.cu).
#include <cuda_runtime.h>

#include "cuda/attention/backward_long.cuh"

namespace blipft::attention {
namespace {

template <int D, bool Drop, class Args = Params>
bool backward(const Params& params, cudaStream_t stream) {
  Args p;
  static_cast<Params&>(p) = params;
  return backward_long::backward<D, Drop>(p, stream);
}

}  // namespace

bool mma_backward_window(const Params& p, cudaStream_t stream) {
  if (p.dropout) return false;             // no model combines both
  if (p.head_size <= 64) return backward<64, false, WindowParams>(p, stream);
  return (p.head_size <= 96 ? backward<96, false, WindowParams> : backward<128, false, WindowParams>)(p, stream);
}

bool mma_backward_long(const Params& p, cudaStream_t stream) {
  const int d = p.head_size;
  if (p.dropout && p.group > 1) return false;  // no model combines both
  if (p.dropout && p.starts) return false;     // handled by mma_score_backward
  if (p.dropout)
    return d <= 64 ? backward<64, true>(p, stream) : (d <= 96 ? backward<96, true> : backward<128, true>)(p, stream);
  if (p.packed_or_grouped()) {
    if (d <= 64) return backward<64, false, PackedParams>(p, stream);
    if (d <= 80) return backward<80, false, PackedParams>(p, stream);
    return (d <= 96 ? backward<96, false, PackedParams> : backward<128, false, PackedParams>)(p, stream);
  }
  if (d <= 64) return backward<64, false>(p, stream);
  if (d <= 80) return backward<80, false>(p, stream);
  if (d <= 96) return backward<96, false>(p, stream);
  return d <= 112 ? backward<112, false>(p, stream) : backward<128, false>(p, stream);
}

}  // namespace blipft::attention
