// Relative position bias and its gradient. The tables are small, so each thread computes one element.
#include "blipft/relative_bias.h"

#include "cuda/cuda_ops.h"
#include "cuda/vector.cuh"
#include "ops/ops_check.h"

namespace blipft {
namespace {

constexpr int kThreads = 128;

/// The parameters of RelativeBias as a kernel argument.
struct Rule {
  int distances, directed, behind, columns, heads;
  int32_t first[RelativeBias::kMaxBuckets];

  __device__ __forceinline__ int bucket(int column) const {
    const int offset = column - behind, distance = offset < 0 ? -offset : offset;
    int found = distances - 1;
    while (found > 0 && first[found] > distance) --found;
    return found + (offset > 0 ? directed : 0);
  }
};

Rule rule_of(const RelativeBias& args) {
  Rule rule{.distances = static_cast<int>(args.distances), .directed = static_cast<int>(args.directed),
            .behind = static_cast<int>(args.scores.behind), .columns = static_cast<int>(args.scores.columns()),
            .heads = static_cast<int>(args.table.cols()), .first = {}};
  for (int i = 0; i < RelativeBias::kMaxBuckets; ++i) rule.first[i] = args.first[i];
  return rule;
}

template <class T>
__global__ void forward_kernel(const T* __restrict__ table, float* __restrict__ scores, const __grid_constant__ Rule rule) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x), h = i / rule.columns;
  if (h < rule.heads) scores[i] = to_float(table[rule.bucket(i % rule.columns) * rule.heads + h]);
}

template <class T>
__global__ void backward_kernel(T* __restrict__ table, const float* __restrict__ scores, const __grid_constant__ Rule rule,
                                int buckets, bool accumulate) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x), bucket = i / rule.heads, h = i % rule.heads;
  if (bucket >= buckets) return;
  float sum = 0;
  for (int c = 0; c < rule.columns; ++c)
    if (rule.bucket(c) == bucket) sum += scores[h * rule.columns + c];
  table[i] = from_float<T>(accumulate ? to_float(table[i]) + sum : sum);
}

unsigned blocks_of(int64_t threads) { return static_cast<unsigned>((threads + kThreads - 1) / kThreads); }

}  // namespace

void CudaOps::relative_bias_forward(const RelativeBias& args, Stream stream) {
  check_args(args);
  dispatch_float(args.table.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    forward_kernel<T><<<blocks_of(args.scores.values.numel()), kThreads, 0, context(stream).stream>>>(
        args.table.as<const T>(), args.scores.values.as<float>(), rule_of(args));
  });
  BLIPFT_CUDA_LAUNCHED("relative bias kernel");
}

void CudaOps::relative_bias_backward(const RelativeBias& args, Stream stream) {
  check_backward_args(args);
  dispatch_float(args.table.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    backward_kernel<T><<<blocks_of(args.table.numel()), kThreads, 0, context(stream).stream>>>(
        args.table.as<T>(), args.scores.values.as<const float>(), rule_of(args), static_cast<int>(args.buckets()),
        args.accumulate);
  });
  BLIPFT_CUDA_LAUNCHED("relative bias gradient kernel");
}

}  // namespace blipft
