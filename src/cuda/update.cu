// Optimizer updates: one fused pass over a flat shard, 8 or 16 elements a thread.
//
// All arithmetic is f32, whatever the tensors hold; a value is rounded once, when it is stored. torch's bf16 AdamW
// rounds every intermediate result to bf16 instead, so a bf16 step here is at least as close to exact arithmetic.
#include "cuda/cuda_ops.h"
#include "cuda/vector.cuh"
#include "ops/ops_check.h"

namespace blipft {
namespace {

constexpr int kThreads = 256;

/// Elements [i, i + N), those at and after n as zeros. kWhole: all lie below n, at multiples of 16 bytes. Nothing here
/// is read again soon: what whole packs bring is the first to leave the L2 cache, which the products beside need.
template <bool kWhole, int N, class T>
__device__ __forceinline__ Pack<T, N> load_some(const T* from, int64_t i, int64_t n) {
  Pack<T, N> pack;
  if constexpr (kWhole) {
#pragma unroll
    for (int w = 0; w < static_cast<int>(sizeof(pack) / 16); ++w)
      reinterpret_cast<uint4*>(&pack)[w] = __ldcs(reinterpret_cast<const uint4*>(from + i) + w);
  } else {
#pragma unroll
    for (int j = 0; j < N; ++j) pack.v[j] = i + j < n ? from[i + j] : from_float<T>(0.0f);
  }
  return pack;
}

template <bool kWhole, class T, int N>
__device__ __forceinline__ void store_some(T* to, int64_t i, int64_t n, const float (&x)[N]) {
  if constexpr (kWhole) {
    const Pack<T, N> pack = packed<T>(x);
#pragma unroll
    for (int w = 0; w < static_cast<int>(sizeof(pack) / 16); ++w)
      __stcs(reinterpret_cast<uint4*>(to + i) + w, reinterpret_cast<const uint4*>(&pack)[w]);
  } else {
#pragma unroll
    for (int j = 0; j < N; ++j)
      if (i + j < n) to[i + j] = from_float<T>(x[j]);
  }
}

/// Calls body(whole) for a block whose elements end at `end`: whole is true_type where they all exist and are aligned.
template <bool kAligned, class Body>
__device__ __forceinline__ void with_whole(int64_t end, int64_t n, Body&& body) {
  if constexpr (kAligned) {
    if (end <= n) return body(std::true_type{});
  }
  body(std::false_type{});
}

template <int N>
__device__ __forceinline__ float squares_of(const float (&x)[N]) {
  float sum = 0;
#pragma unroll
  for (int j = 0; j < N; ++j) sum = fmaf(x[j], x[j], sum);
  return sum;
}

/// The block's sums of squares over kSquaresSpan elements each: a span is one pack of each of its threads.
template <int kUnroll>
struct BlockSquares {
  float (*warps)[kThreads / 32];  // [kUnroll], shared

  /// This thread's part of span u; every thread of the block calls it, late: other accesses do not move across it.
  __device__ __forceinline__ void add(int u, float sum) const {
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) warps[u][threadIdx.x / 32] = sum;
  }
  /// To their places. Every thread of the block calls it.
  __device__ __forceinline__ void write(float* __restrict__ squares, int64_t n) const {
    __syncthreads();
    const int64_t span = int64_t{blockIdx.x} * kUnroll + threadIdx.x;
    if (threadIdx.x >= kUnroll || span * kSquaresSpan >= n) return;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kThreads / 32; ++w) sum += warps[threadIdx.x][w];
    squares[span] = sum;
  }
};

/// Where the exact values lie: in the master copy, if there is one.
template <bool kMaster, class P>
__device__ __forceinline__ auto* values_of(P* param, float* master) {
  if constexpr (kMaster) return master;
  else return param;
}

struct AdamW {
  float beta1, beta2, eps, weight_decay;
};

/// Square root and quotient. `kFast`, for results that bf16 rounds anyway: within 2 units in the last place of f32, and
/// subnormal numbers are zeros.
template <bool kFast>
__device__ __forceinline__ float square_root(float x) {
  if constexpr (!kFast) return sqrtf(x);
  float y;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
template <bool kFast>
__device__ __forceinline__ float quotient(float a, float b) {
  if constexpr (!kFast) return a / b;
  float y;
  asm("div.approx.ftz.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

/// A thread takes kUnroll packs of N elements, kThreads packs apart.
template <class P, class G, class S, bool kMaster, int N, bool kAligned, int kUnroll>
__global__ void __launch_bounds__(kThreads, kUnroll == 1 ? 1 : 3)
adamw_kernel(P* __restrict__ param, float* __restrict__ master, const G* __restrict__ grad, S* __restrict__ m_state,
             S* __restrict__ v_state, const float* __restrict__ scalars, float* __restrict__ squares, int64_t n,
             AdamW args) {
  static_assert(kThreads * N == kSquaresSpan, "a pack of each thread of a block is one span");
  constexpr bool kFast = sizeof(P) == 2 && sizeof(S) == 2 && !kMaster;
  constexpr int64_t kStep = int64_t{kThreads} * N;
  auto* const values = values_of<kMaster>(param, master);
  using Value = std::remove_reference_t<decltype(*values)>;
  __shared__ float warps[kUnroll][kThreads / 32];
  const BlockSquares<kUnroll> own_squares{warps};
  const int64_t begin = int64_t{blockIdx.x} * kUnroll * kStep, first = begin + threadIdx.x * N;
  with_whole<kAligned>(begin + kUnroll * kStep, n, [&](auto is_whole) {
    constexpr bool kWhole = decltype(is_whole)::value;
    Pack<Value, N> own[kUnroll];
    Pack<G, N> gradients[kUnroll];
    Pack<S, N> means[kUnroll], second_moments[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t i = first + u * kStep;
      own[u] = load_some<kWhole, N>(values, i, n);
      gradients[u] = load_some<kWhole, N>(grad, i, n);
      means[u] = load_some<kWhole, N>(m_state, i, n);
      second_moments[u] = load_some<kWhole, N>(v_state, i, n);
    }
    const float lr = scalars[kLearningRate], clip = scalars[kClipCoefficient];
    const float step_size = lr / scalars[kBiasCorrection1];
    const float rsqrt_correction2 = 1.0f / sqrtf(scalars[kBiasCorrection2]);
    const float decay = 1.0f - lr * args.weight_decay;
    float sums[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t i = first + u * kStep;
      float p[N], g[N], m[N], v[N];
      unpack(own[u], p);
      unpack(gradients[u], g);
      unpack(means[u], m);
      unpack(second_moments[u], v);
      sums[u] = squares_of(g);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const float gradient = g[j] * clip;
        m[j] = m[j] + (1.0f - args.beta1) * (gradient - m[j]);
        v[j] = args.beta2 * v[j] + (1.0f - args.beta2) * gradient * gradient;
        const float denominator = square_root<kFast>(v[j]) * rsqrt_correction2 + args.eps;
        p[j] = p[j] * decay - step_size * quotient<kFast>(m[j], denominator);
      }
      if constexpr (kMaster) store_some<kWhole>(master, i, n, p);
      store_some<kWhole>(param, i, n, p);
      store_some<kWhole>(m_state, i, n, m);
      store_some<kWhole>(v_state, i, n, v);
    }
    if (!squares) return;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) own_squares.add(u, sums[u]);
  });
  if (squares) own_squares.write(squares, n);
}

struct Sgd {
  float momentum, weight_decay;
};

template <class P, class G, class S, bool kMaster, int N, bool kAligned>
__global__ void __launch_bounds__(kThreads)
sgd_kernel(P* __restrict__ param, float* __restrict__ master, const G* __restrict__ grad, S* __restrict__ buffer,
           const float* __restrict__ scalars, float* __restrict__ squares, int64_t n, Sgd args) {
  static_assert(kThreads * N == kSquaresSpan, "a pack of each thread of a block is one span");
  __shared__ float warps[1][kThreads / 32];
  const BlockSquares<1> own_squares{warps};
  const auto* const values = values_of<kMaster>(param, master);
  const int64_t begin = int64_t{blockIdx.x} * kThreads * N, i = begin + threadIdx.x * N;
  with_whole<kAligned>(begin + kThreads * N, n, [&](auto is_whole) {
    constexpr bool kWhole = decltype(is_whole)::value;
    const auto own = load_some<kWhole, N>(values, i, n);
    const auto gradients = load_some<kWhole, N>(grad, i, n);
    const auto old = buffer ? load_some<kWhole, N>(static_cast<const S*>(buffer), i, n) : Pack<S, N>{};
    float p[N], g[N];
    unpack(own, p);
    unpack(gradients, g);
    const float sum = squares_of(g);
    const float lr = scalars[kLearningRate], clip = scalars[kClipCoefficient];
#pragma unroll
    for (int j = 0; j < N; ++j) g[j] = g[j] * clip + args.weight_decay * p[j];
    if (buffer) {
      float momentum[N];
      unpack(old, momentum);
#pragma unroll
      for (int j = 0; j < N; ++j) g[j] += args.momentum * momentum[j];
      store_some<kWhole>(buffer, i, n, g);
    }
#pragma unroll
    for (int j = 0; j < N; ++j) p[j] -= lr * g[j];
    if constexpr (kMaster) store_some<kWhole>(master, i, n, p);
    store_some<kWhole>(param, i, n, p);
    if (squares) own_squares.add(0, sum);
  });
  if (squares) own_squares.write(squares, n);
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
            args.scalars.as<const float>(), args.squares.as<float>(), n,
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
                                                   args.momentum_buffer.as<S>(), args.scalars.as<const float>(),
                                                   args.squares.as<float>(), n, Sgd{args.momentum, args.weight_decay});
  });
  BLIPFT_CUDA_LAUNCHED("sgd_kernel");
}

}  // namespace blipft
