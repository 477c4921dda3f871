// Optimizer updates: one fused pass over a flat shard, 8 elements a thread.
//
// All arithmetic is f32, whatever the tensors hold; a value is rounded once, when it is stored. torch's bf16 AdamW
// rounds every intermediate result to bf16 instead, so a bf16 step here is at least as close to exact arithmetic.
#include "cuda/cuda_ops.h"
#include "cuda/vector.cuh"
#include "ops_check.h"

namespace blipft {
namespace {

constexpr int kThreads = 256;

/// Loads elements [i, i + N) that lie below n. A whole pack takes 16-byte accesses.
template <bool kAligned, class T, int N>
__device__ __forceinline__ void load_some(const T* from, int64_t i, int64_t n, float (&x)[N]) {
  if (kAligned && i + N <= n) {
    load(from + i, x);
    return;
  }
#pragma unroll
  for (int j = 0; j < N; ++j) x[j] = i + j < n ? to_float(from[i + j]) : 0.0f;
}

template <bool kAligned, class T, int N>
__device__ __forceinline__ void store_some(T* to, int64_t i, int64_t n, const float (&x)[N]) {
  if (kAligned && i + N <= n) {
    store(to + i, x);
    return;
  }
#pragma unroll
  for (int j = 0; j < N; ++j)
    if (i + j < n) to[i + j] = from_float<T>(x[j]);
}

struct AdamW {
  float beta1, beta2, eps, weight_decay;
};

template <class P, class G, class S, bool kMaster, int N, bool kAligned>
__global__ void __launch_bounds__(kThreads)
adamw_kernel(P* __restrict__ param, float* __restrict__ master, const G* __restrict__ grad, S* __restrict__ m_state,
             S* __restrict__ v_state, const float* __restrict__ scalars, int64_t n, AdamW args) {
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * N;
  if (i >= n) return;
  float p[N], g[N], m[N], v[N];
  if constexpr (kMaster) load_some<kAligned>(master, i, n, p);
  else load_some<kAligned>(param, i, n, p);
  load_some<kAligned>(grad, i, n, g);
  load_some<kAligned>(m_state, i, n, m);
  load_some<kAligned>(v_state, i, n, v);
  const float lr = scalars[kLearningRate], clip = scalars[kClipCoefficient];
  const float step_size = lr / scalars[kBiasCorrection1];
  const float rsqrt_correction2 = 1.0f / sqrtf(scalars[kBiasCorrection2]);
  const float decay = 1.0f - lr * args.weight_decay;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const float gradient = g[j] * clip;
    m[j] = m[j] + (1.0f - args.beta1) * (gradient - m[j]);
    v[j] = args.beta2 * v[j] + (1.0f - args.beta2) * gradient * gradient;
    const float denominator = sqrtf(v[j]) * rsqrt_correction2 + args.eps;
    p[j] = p[j] * decay - step_size * (m[j] / denominator);
  }
  if constexpr (kMaster) store_some<kAligned>(master, i, n, p);
  store_some<kAligned>(param, i, n, p);
  store_some<kAligned>(m_state, i, n, m);
  store_some<kAligned>(v_state, i, n, v);
}

struct Sgd {
  float momentum, weight_decay;
};

template <class P, class G, class S, bool kMaster, int N, bool kAligned>
__global__ void __launch_bounds__(kThreads)
sgd_kernel(P* __restrict__ param, float* __restrict__ master, const G* __restrict__ grad, S* __restrict__ buffer,
           const float* __restrict__ scalars, int64_t n, Sgd args) {
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * N;
  if (i >= n) return;
  float p[N], g[N];
  if constexpr (kMaster) load_some<kAligned>(master, i, n, p);
  else load_some<kAligned>(param, i, n, p);
  load_some<kAligned>(grad, i, n, g);
  const float lr = scalars[kLearningRate], clip = scalars[kClipCoefficient];
#pragma unroll
  for (int j = 0; j < N; ++j) g[j] = g[j] * clip + args.weight_decay * p[j];
  if (buffer) {
    float old[N];
    load_some<kAligned>(buffer, i, n, old);
#pragma unroll
    for (int j = 0; j < N; ++j) g[j] += args.momentum * old[j];
    store_some<kAligned>(buffer, i, n, g);
  }
#pragma unroll
  for (int j = 0; j < N; ++j) p[j] -= lr * g[j];
  if constexpr (kMaster) store_some<kAligned>(master, i, n, p);
  store_some<kAligned>(param, i, n, p);
}

/// Calls `run` with the types of param, gradient and state, whether there is a master copy, pack width and alignment.
template <class Run>
void dispatch_update(const Tensor& param, const Tensor& grad, DType state, bool master, bool aligned, Run&& run) {
  dispatch_float(param.dtype, [&](auto p) {
    dispatch_float(grad.dtype, [&](auto g) {
      dispatch_float(state, [&](auto s) {
        dispatch_bool(master, [&](auto has_master) {
          dispatch_bool(aligned, [&](auto is_aligned) { run(p, g, s, has_master, is_aligned); });
        });
      });
    });
  });
}

constexpr int kPack = 8;

unsigned update_blocks(int64_t n) { return static_cast<unsigned>(ceil_div(n, int64_t{kThreads} * kPack)); }

}  // namespace

void CudaOps::adamw_update(const AdamWUpdate& args, Stream stream) {
  check_args(args);
  const int64_t n = args.param.numel();
  if (n == 0) return;
  BLIPFT_CHECK(args.m.dtype == args.v.dtype, "adamw_update: m has dtype ", dtype_name(args.m.dtype), ", v ",
               dtype_name(args.v.dtype), ", expected one dtype");
  const cudaStream_t queue = context(stream).stream;
  const bool aligned = all_aligned16(args.param, args.master, args.grad, args.m, args.v);
  dispatch_update(args.param, args.grad, args.m.dtype, static_cast<bool>(args.master), aligned,
                  [&](auto p, auto g, auto s, auto has_master, auto is_aligned) {
    using P = typename decltype(p)::type;
    using G = typename decltype(g)::type;
    using S = typename decltype(s)::type;
    adamw_kernel<P, G, S, decltype(has_master)::value, kPack, decltype(is_aligned)::value>
        <<<update_blocks(n), kThreads, 0, queue>>>(args.param.as<P>(), args.master.as<float>(), args.grad.as<const G>(),
                                                   args.m.as<S>(), args.v.as<S>(), args.scalars.as<const float>(), n,
                                                   AdamW{args.beta1, args.beta2, args.eps, args.weight_decay});
  });
  BLIPFT_CUDA_LAUNCHED("adamw_kernel");
}

void CudaOps::sgd_update(const SgdUpdate& args, Stream stream) {
  check_args(args);
  const int64_t n = args.param.numel();
  if (n == 0) return;
  const cudaStream_t queue = context(stream).stream;
  const bool aligned = all_aligned16(args.param, args.master, args.grad, args.momentum_buffer);
  const DType state = args.momentum_buffer ? args.momentum_buffer.dtype : DType::f32;
  dispatch_update(args.param, args.grad, state, static_cast<bool>(args.master), aligned,
                  [&](auto p, auto g, auto s, auto has_master, auto is_aligned) {
    using P = typename decltype(p)::type;
    using G = typename decltype(g)::type;
    using S = typename decltype(s)::type;
    sgd_kernel<P, G, S, decltype(has_master)::value, kPack, decltype(is_aligned)::value>
        <<<update_blocks(n), kThreads, 0, queue>>>(args.param.as<P>(), args.master.as<float>(), args.grad.as<const G>(),
                                                   args.momentum_buffer.as<S>(), args.scalars.as<const float>(), n,
                                                   Sgd{args.momentum, args.weight_decay});
  });
  BLIPFT_CUDA_LAUNCHED("sgd_kernel");
}

}  // namespace blipft
