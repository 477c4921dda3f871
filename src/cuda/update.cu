// Optimizer updates: one fused pass over a flat shard; each thread updates 8 or 16 elements in each turn of its block.
//
// All arithmetic is f32, regardless of the tensors' dtypes; a value is rounded once, when it is stored. torch's bf16
// AdamW rounds every intermediate result to bf16, so a bf16 step here is at least as close to exact arithmetic.
#include "cuda/update.cuh"

#include "cuda/cuda_ops.h"
#include "ops/ops_check.h"

namespace blipft {
namespace {

/// In each turn of its block a thread updates kUnroll packs of N elements that are kUpdateThreads packs apart. A block
/// has one turn, or with kTurns every gridDim.x-th of `turns`.
template <class P, class G, class S, bool kMaster, bool kAligned, bool kStochastic, bool kTurns, int kUnroll>
__global__ void __launch_bounds__(kUpdateThreads, kUnroll == 1 ? 1 : 3)
adamw_kernel(P* __restrict__ param, float* __restrict__ master, const G* __restrict__ grad, S* __restrict__ m_state,
             S* __restrict__ v_state, const float* __restrict__ scalars, float* __restrict__ squares, int64_t n,
             int64_t turns, AdamWNumbers args, Rounding rounding) {
  constexpr int N = kUpdatePack;
  static_assert(kUpdateThreads * N == kSquaresSpan, "a pack of each thread of a block is one span");
  constexpr bool kFast = sizeof(P) == 2 && sizeof(S) == 2 && !kMaster;
  constexpr int64_t kStep = int64_t{kUpdateThreads} * N;
  auto* const values = values_of<kMaster>(param, master);
  using Value = std::remove_reference_t<decltype(*values)>;
  __shared__ float warps[kUnroll][kUpdateThreads / 32];
  const bool skipped = is_skipped(scalars);  // tested only after the loads are issued
  const BlockSquares<kUnroll> own_squares{warps};
  for (int64_t turn = blockIdx.x;; turn += gridDim.x) {
    const int64_t begin = turn * kUnroll * kStep, first = begin + threadIdx.x * N;
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
      if (skipped) return;
      const AdamWStep<kFast> adamw(args, scalars);
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
        for (int j = 0; j < N; ++j) adamw(p[j], g[j], m[j], v[j]);
        store_param<kWhole, kMaster, kStochastic>(param, master, i, n, p, rounding, scalars);
        store_some<kWhole>(m_state, i, n, m);
        store_some<kWhole>(v_state, i, n, v);
      }
      if (!squares) return;
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) own_squares.add(u, sums[u]);
    });
    if (squares && !skipped) own_squares.write(squares, turn, n);
    if (!kTurns || skipped || turn + gridDim.x >= turns) return;
    __syncthreads();
  }
}

/// Updates with at most one state: `Rule` updates p and the state of each element from its gradient.
template <class Rule, class P, class G, class S, bool kMaster, bool kAligned, bool kStochastic, bool kTurns>
__global__ void __launch_bounds__(kUpdateThreads)
one_state_kernel(P* __restrict__ param, float* __restrict__ master, const G* __restrict__ grad, S* __restrict__ state,
                 const float* __restrict__ scalars, float* __restrict__ squares, int64_t n, int64_t turns, Rule rule,
                 Rounding rounding) {
  constexpr int N = kUpdatePack;
  static_assert(kUpdateThreads * N == kSquaresSpan, "a pack of each thread of a block is one span");
  __shared__ float warps[1][kUpdateThreads / 32];
  const bool skipped = is_skipped(scalars);
  const BlockSquares<1> own_squares{warps};
  const auto* const values = values_of<kMaster>(param, master);
  for (int64_t turn = blockIdx.x;; turn += gridDim.x) {
    const int64_t begin = turn * kUpdateThreads * N, i = begin + threadIdx.x * N;
    with_whole<kAligned>(begin + kUpdateThreads * N, n, [&](auto is_whole) {
      constexpr bool kWhole = decltype(is_whole)::value;
      const auto own = load_some<kWhole, N>(values, i, n);
      const auto gradients = load_some<kWhole, N>(grad, i, n);
      const auto old = state ? load_some<kWhole, N>(static_cast<const S*>(state), i, n) : Pack<S, N>{};
      if (skipped) return;
      float p[N], g[N], s[N];
      unpack(own, p);
      unpack(gradients, g);
      unpack(old, s);
      const float sum = squares_of(g);
      const float lr = scalars[kLearningRate], clip = scalars[kClipCoefficient];
#pragma unroll
      for (int j = 0; j < N; ++j) rule(lr, g[j] * clip, p[j], s[j]);
      if (state) store_some<kWhole>(state, i, n, s);
      store_param<kWhole, kMaster, kStochastic>(param, master, i, n, p, rounding, scalars);
      if (squares) own_squares.add(0, sum);
    });
    if (squares && !skipped) own_squares.write(squares, turn, n);
    if (!kTurns || skipped || turn + gridDim.x >= turns) return;
    __syncthreads();
  }
}

struct Sgd {
  float momentum, weight_decay;
  __device__ __forceinline__ void operator()(float lr, float gradient, float& p, float& buffer) const {
    buffer = gradient + weight_decay * p + momentum * buffer;
    p -= lr * buffer;
  }
};

struct Lion {
  float beta1, beta2, weight_decay;
  __device__ __forceinline__ void operator()(float lr, float gradient, float& p, float& mean) const {
    const float mixed = beta1 * mean + (1.0f - beta1) * gradient;
    const float sign = (mixed > 0 ? 1.0f : 0.0f) - (mixed < 0 ? 1.0f : 0.0f);
    p -= lr * weight_decay * p;
    p -= lr * sign;
    mean = beta2 * mean + (1.0f - beta2) * gradient;
  }
};

template <class Update, class Rule>
void launch_one_state(const Update& args, const Tensor& state, const Rule& rule, cudaStream_t queue) {
  const int64_t n = args.param.numel();
  if (n == 0) return;
  const bool aligned = all_aligned16(args.param, args.master, args.grad, state);
  const int64_t turns = update_turns(n);
  dispatch_update(args, aligned, [&](auto p, auto g, auto has_master, auto is_aligned, auto is_stochastic) {
    dispatch_float(state ? state.dtype : DType::f32, [&](auto s) {
      dispatch_turns(few_blocks_do(args.link_bytes), is_aligned, [&](auto takes_turns) {
        using P = typename decltype(p)::type;
        using G = typename decltype(g)::type;
        using S = typename decltype(s)::type;
        constexpr bool kTurns = decltype(takes_turns)::value;
        one_state_kernel<Rule, P, G, S, decltype(has_master)::value, decltype(is_aligned)::value,
                         decltype(is_stochastic)::value, kTurns>
            <<<update_blocks(turns, kTurns), kUpdateThreads, 0, queue>>>(
                args.param.template as<P>(), args.master.template as<float>(), args.grad.template as<const G>(),
                state.as<S>(), args.scalars.template as<const float>(), args.squares.template as<float>(), n, turns,
                rule, args.rounding);
      });
    });
  });
  BLIPFT_CUDA_LAUNCHED("one_state_kernel");
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
  dispatch_update(args, aligned, [&](auto p, auto g, auto has_master, auto is_aligned, auto is_stochastic) {
    dispatch_float(args.m.dtype, [&](auto s) {
      using P = typename decltype(p)::type;
      using G = typename decltype(g)::type;
      using S = typename decltype(s)::type;
      // Pure bf16 has half the bytes per pack: two packs keep as many bytes in flight.
      constexpr int kUnroll = sizeof(P) + sizeof(G) + sizeof(S) == 6 && !decltype(has_master)::value ? 2 : 1;
      dispatch_turns(few_blocks_do(args.link_bytes, kUnroll), is_aligned, [&](auto takes_turns) {
        constexpr bool kTurns = decltype(takes_turns)::value;
        const int64_t turns = update_turns(n, kUnroll);
        adamw_kernel<P, G, S, decltype(has_master)::value, decltype(is_aligned)::value, decltype(is_stochastic)::value,
                     kTurns, kUnroll><<<update_blocks(turns, kTurns), kUpdateThreads, 0, queue>>>(
            args.param.as<P>(), args.master.as<float>(), args.grad.as<const G>(), args.m.as<S>(), args.v.as<S>(),
            args.scalars.as<const float>(), args.squares.as<float>(), n, turns,
            AdamWNumbers{args.beta1, args.beta2, args.eps, args.weight_decay}, args.rounding);
      });
    });
  });
  BLIPFT_CUDA_LAUNCHED("adamw_kernel");
}

void CudaOps::sgd_update(const SgdUpdate& args, Stream stream) {
  check_args(args);
  launch_one_state(args, args.momentum_buffer, Sgd{args.momentum, args.weight_decay}, context(stream).stream);
}

void CudaOps::lion_update(const LionUpdate& args, Stream stream) {
  check_args(args);
  launch_one_state(args, args.m, Lion{args.beta1, args.beta2, args.weight_decay}, context(stream).stream);
}

}  // namespace blipft
