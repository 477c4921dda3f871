// Optimizer updates: one fused pass over a flat shard, 8 or 16 elements a thread.
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

/// The raw form of load_some: several of these can be on their way before the first is converted.
template <bool kAligned, int N, class T>
__device__ __forceinline__ Pack<T, N> load_some_raw(const T* from, int64_t i, int64_t n) {
  if (kAligned && i + N <= n) return load_pack<N>(from + i);
  Pack<T, N> pack;
#pragma unroll
  for (int j = 0; j < N; ++j) pack.v[j] = i + j < n ? from[i + j] : from_float<T>(0.0f);
  return pack;
}

struct AdamW {
  float beta1, beta2, eps, weight_decay;
};

/// Square root and quotient. `kFast`, for results that bf16 rounds anyway: within 2 units in the last place of f32.
template <bool kFast>
__device__ __forceinline__ float square_root(float x) {
  if constexpr (!kFast) return sqrtf(x);
  float y;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
template <bool kFast>
__device__ __forceinline__ float quotient(float a, float b) {
  if constexpr (kFast) return __fdividef(a, b);
  else return a / b;
}

/// A thread takes kUnroll packs of N elements, kThreads packs apart.
template <class P, class G, class S, bool kMaster, int N, bool kAligned, int kUnroll>
__global__ void __launch_bounds__(kThreads, kUnroll == 1 ? 1 : 3)
adamw_kernel(P* __restrict__ param, float* __restrict__ master, const G* __restrict__ grad, S* __restrict__ m_state,
             S* __restrict__ v_state, const float* __restrict__ scalars, int64_t n, AdamW args) {
  constexpr bool kFast = sizeof(P) == 2 && sizeof(S) == 2 && !kMaster;
  constexpr int64_t kStep = int64_t{kThreads} * N;
  using Value = std::conditional_t<kMaster, float, P>;
  Value* const values = [&] {
    if constexpr (kMaster) return master;
    else return param;
  }();
  const int64_t first = (int64_t{blockIdx.x} * kThreads * kUnroll + threadIdx.x) * N;
  Pack<Value, N> own[kUnroll];
  Pack<G, N> gradients[kUnroll];
  Pack<S, N> means[kUnroll], squares[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t i = first + u * kStep;
    if (i >= n) continue;
    own[u] = load_some_raw<kAligned, N>(values, i, n);
    gradients[u] = load_some_raw<kAligned, N>(grad, i, n);
    means[u] = load_some_raw<kAligned, N>(m_state, i, n);
    squares[u] = load_some_raw<kAligned, N>(v_state, i, n);
  }
  const float lr = scalars[kLearningRate], clip = scalars[kClipCoefficient];
  const float step_size = lr / scalars[kBiasCorrection1];
  const float rsqrt_correction2 = 1.0f / sqrtf(scalars[kBiasCorrection2]);
  const float decay = 1.0f - lr * args.weight_decay;
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t i = first + u * kStep;
    if (i >= n) continue;
    float p[N], g[N], m[N], v[N];
    unpack(own[u], p);
    unpack(gradients[u], g);
    unpack(means[u], m);
    unpack(squares[u], v);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float gradient = g[j] * clip;
      m[j] = m[j] + (1.0f - args.beta1) * (gradient - m[j]);
      v[j] = args.beta2 * v[j] + (1.0f - args.beta2) * gradient * gradient;
      const float denominator = square_root<kFast>(v[j]) * rsqrt_correction2 + args.eps;
      p[j] = p[j] * decay - step_size * quotient<kFast>(m[j], denominator);
    }
    if constexpr (kMaster) store_some<kAligned>(master, i, n, p);
    store_some<kAligned>(param, i, n, p);
    store_some<kAligned>(m_state, i, n, m);
    store_some<kAligned>(v_state, i, n, v);
  }
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

unsigned update_blocks(int64_t n, int unroll = 1) {
  return static_cast<unsigned>(ceil_div(n, int64_t{kThreads} * kPack * unroll));
}

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
    // Pure bf16 moves half the bytes a pack: two packs keep as many of them on their way.
    constexpr int kUnroll = sizeof(P) + sizeof(G) + sizeof(S) == 6 && !decltype(has_master)::value ? 2 : 1;
    adamw_kernel<P, G, S, decltype(has_master)::value, kPack, decltype(is_aligned)::value, kUnroll>
        <<<update_blocks(n, kUnroll), kThreads, 0, queue>>>(
            args.param.as<P>(), args.master.as<float>(), args.grad.as<const G>(), args.m.as<S>(), args.v.as<S>(),
            args.scalars.as<const float>(), n, AdamW{args.beta1, args.beta2, args.eps, args.weight_decay});
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
