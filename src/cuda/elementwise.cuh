// Element-wise kernels over flat tensors of any length: y[i] = f(x[i]) and y[i] = f(x[i], y[i]). They use 16-byte
// accesses if the tensors are aligned.
#pragma once

#include "cuda/device/overlap.cuh"
#include "cuda/kernels.h"
#include "cuda/vector.cuh"

namespace blipft {

constexpr int kMapThreads = 256;
constexpr int kMapUnroll = 4;  // independent loads in flight per thread

template <int N, class In, class Out, class Function>
__global__ void __launch_bounds__(kMapThreads)
map_kernel(const In* x, Out* y, int64_t n, Function function) {
  join_chain();
  const int64_t first = (int64_t{blockIdx.x} * kMapUnroll * kMapThreads + threadIdx.x) * N;
  constexpr int64_t kStep = int64_t{kMapThreads} * N;
  Pack<In, N> in[kMapUnroll];
#pragma unroll
  for (int u = 0; u < kMapUnroll; ++u)
    if (first + u * kStep + N <= n) in[u] = load_pack<N>(x + first + u * kStep);
#pragma unroll
  for (int u = 0; u < kMapUnroll; ++u) {
    const int64_t i = first + u * kStep;
    if (i + N > n) continue;
    float v[N];
    unpack(in[u], v);
#pragma unroll
    for (int j = 0; j < N; ++j) v[j] = function(v[j]);
    store(y + i, v);
  }
  // The last elements are fewer than a pack.
  const int64_t rest = n / N * N + threadIdx.x;
  if (blockIdx.x == 0 && rest < n) y[rest] = from_float<Out>(function(to_float(x[rest])));
}

template <int N, class In, class Out, class Function>
__global__ void __launch_bounds__(kMapThreads)
update_kernel(const In* __restrict__ x, Out* __restrict__ y, int64_t n, Function function) {
  const int64_t first = (int64_t{blockIdx.x} * kMapUnroll * kMapThreads + threadIdx.x) * N;
  constexpr int64_t kStep = int64_t{kMapThreads} * N;
  Pack<In, N> in[kMapUnroll];
  Pack<Out, N> old[kMapUnroll];
#pragma unroll
  for (int u = 0; u < kMapUnroll; ++u) {
    if (first + u * kStep + N <= n) {
      in[u] = load_pack<N>(x + first + u * kStep);
      old[u] = load_pack<N>(y + first + u * kStep);
    }
  }
#pragma unroll
  for (int u = 0; u < kMapUnroll; ++u) {
    const int64_t i = first + u * kStep;
    if (i + N > n) continue;
    float v[N], w[N];
    unpack(in[u], v);
    unpack(old[u], w);
#pragma unroll
    for (int j = 0; j < N; ++j) w[j] = function(v[j], w[j]);
    store(y + i, w);
  }
  const int64_t rest = n / N * N + threadIdx.x;
  if (blockIdx.x == 0 && rest < n) y[rest] = from_float<Out>(function(to_float(x[rest]), to_float(y[rest])));
}

inline unsigned map_blocks(int64_t n, int vector) {
  return static_cast<unsigned>(ceil_div(n, int64_t{vector} * kMapThreads * kMapUnroll));
}

/// Computes y[i] = function(x[i]); x may be y.
template <class In, class Out, class Function>
void launch_map(const Tensor& x, const Tensor& y, Function function, const LaunchContext& context) {
  constexpr int kWidth = kVector<In> > kVector<Out> ? kVector<In> : kVector<Out>;
  const int64_t n = y.numel();
  if (n == 0) return;
  const auto launch = [&](auto width) {
    constexpr int N = decltype(width)::value;
    launch_overlapped(map_kernel<N, In, Out, Function>, dim3(map_blocks(n, N)), kMapThreads, 0, context, x.as<const In>(),
                      y.as<Out>(), n, function);
  };
  if (all_aligned16(x, y)) launch(std::integral_constant<int, kWidth>{});
  else launch(std::integral_constant<int, 1>{});
}

/// Computes y[i] = function(x[i], y[i]).
template <class In, class Out, class Function>
void launch_update(const Tensor& x, const Tensor& y, Function function, const LaunchContext& context) {
  constexpr int kWidth = kVector<In> > kVector<Out> ? kVector<In> : kVector<Out>;
  const int64_t n = y.numel();
  if (n == 0) return;
  if (all_aligned16(x, y))
    update_kernel<kWidth><<<map_blocks(n, kWidth), kMapThreads, 0, context.stream>>>(x.as<const In>(), y.as<Out>(),
        n, function);
  else
    update_kernel<1><<<map_blocks(n, 1), kMapThreads, 0, context.stream>>>(x.as<const In>(), y.as<Out>(), n, function);
  BLIPFT_CUDA_LAUNCHED("update_kernel");
}

}  // namespace blipft
