// Sums of whole tensors in two deterministic stages: partial sums of the blocks, then one block that adds them.
#include "cuda/cuda_ops.h"
#include "cuda/vector.cuh"
#include "ops/ops_check.h"

namespace blipft {
namespace {

constexpr int kThreads = 512;
constexpr int kLoads = 4;  // independent 16-byte loads in flight per thread

__device__ __forceinline__ float block_sum(float x) {
  __shared__ TeamSlots slots;
  return team_sum(x, slots, threadIdx.x / 32, threadIdx.x % 32, kThreads / 32);
}

template <class T, int N, bool kSquares>
__global__ void __launch_bounds__(kThreads) sum_kernel(const T* __restrict__ x, int64_t n,
    float* __restrict__ partials) {
  const auto take = [](float v) { return kSquares ? v * v : v; };
  const int64_t packs = n / N;
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  float sums[kLoads] = {};
  for (int64_t p = thread; p < packs; p += stride * kLoads) {
    Pack<T, N> loaded[kLoads];
#pragma unroll
    for (int u = 0; u < kLoads; ++u)
      if (p + u * stride < packs) loaded[u] = load_pack<N>(x + (p + u * stride) * N);
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      if (p + u * stride >= packs) continue;
      float v[N];
      unpack(loaded[u], v);
#pragma unroll
      for (int j = 0; j < N; ++j) sums[u] += take(v[j]);
    }
  }
  for (int64_t i = packs * N + thread; i < n; i += stride) sums[0] += take(to_float(x[i]));
  const float total = block_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
  if (threadIdx.x == 0) partials[blockIdx.x] = total;
}

__global__ void __launch_bounds__(kThreads)
finish_sum_kernel(const float* __restrict__ partials, int count, float* __restrict__ out, bool accumulate) {
  float sum = 0;
  for (int i = threadIdx.x; i < count; i += kThreads) sum += partials[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) out[0] = accumulate ? out[0] + sum : sum;
}

/// Maximum number of blocks: four for each multiprocessor of an H100 or H200, but the same on every GPU. The order of
/// the summation depends on it, and replicas on different GPU models, which each compute the norm of equal gradients,
/// must get the same bits.
constexpr int64_t kSumBlocks = 528;

template <bool kSquares>
void launch_sum(const Tensor& x, const Tensor& out, bool accumulate, const LaunchContext& context) {
  BLIPFT_CHECK(context.scratch, "set_workspace() comes before sums");
  const int64_t n = x.numel();
  const int blocks = static_cast<int>(std::clamp<int64_t>(ceil_div(n, int64_t{kThreads} * 32), 1, kSumBlocks));
  dispatch_float(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto grid = static_cast<unsigned>(blocks);
    if (all_aligned16(x))
      sum_kernel<T, kVector<T>, kSquares><<<grid, kThreads, 0, context.stream>>>(x.as<const T>(), n, context.scratch);
    else
      sum_kernel<T, 1, kSquares><<<grid, kThreads, 0, context.stream>>>(x.as<const T>(), n, context.scratch);
  });
  BLIPFT_CUDA_LAUNCHED("sum_kernel");
  finish_sum_kernel<<<1, kThreads, 0, context.stream>>>(context.scratch, blocks, out.as<float>(), accumulate);
  BLIPFT_CUDA_LAUNCHED("finish_sum_kernel");
}

}  // namespace

void CudaOps::sum(const Tensor& x, const Tensor& out, bool accumulate, Stream stream) {
  check_sum(x, out);
  launch_sum<false>(x, out, accumulate, context(stream));
}

void CudaOps::sum_squares(const Tensor& x, const Tensor& out, bool accumulate, Stream stream) {
  check_sum_squares(x, out);
  launch_sum<true>(x, out, accumulate, context(stream));
}

}  // namespace blipft
