// Attention forward for bf16 and few queries over many keys: the Q-Former's cross-attention with 32 queries, 257 keys.
// few_queries.cuh describes how the work is divided.
//
//   1  the copies of Q and K start, then V; meanwhile the block computes the dropout mask's bits
//   2  each warp: S = Q K^T for its keys, kept in registers; row maxima to shared memory
//   3  each warp: P = exp2(S - maximum over all warps); row sums to shared memory, P as bf16 to the memory of K
//   4  each warp: blocks of 16 queries x 16 columns of out = P V / row sums, over all keys
//
// It needs 75 KB of shared memory at 257 keys and head size 64: three blocks per SM.
#include <cuda_runtime.h>

#include "cuda/attention/backward.cuh"
#include "cuda/attention/few_queries.cuh"
#include "cuda/device/cuda_check.h"

namespace blipft::attention {
namespace {

using namespace few_queries;

/// Byte offsets in shared memory: Q [32][D]; row maxima of the warps [kWarps][32] f32; mask bits; K and V [rows][D].
/// After their last use, P [steps][32][16] reuses the memory of K, and the row sums [kWarps][32] f32 that of Q: a step
/// of 16 keys takes 1024 bytes of P and 32 * D bytes of K. The last pair may read 16 rows after K, which belong to V.
template <int D, int Rounds, bool Drop>
struct Layout {
  static constexpr int kQ = 0, kSums = kQ, kMaxima = kQueries * D * 2, kBits = kMaxima + kWarps * kQueries * 4;
  static constexpr int kK = kBits + (Drop ? KeepBits::kBytes<Rounds> : 0);
  static_assert(kWarps * kQueries * 4 <= kQueries * D * 2, "row sums take the place of Q");
  static_assert(kQueries * 16 * 2 <= 16 * D * 2, "P takes the place of K");

  static __host__ __device__ __forceinline__ int tile_bytes(int kv_tokens) {
    return (kv_tokens + 15) / 16 * 16 * D * 2;
  }
  static int bytes(int kv_tokens) { return kK + 2 * tile_bytes(kv_tokens); }
};

/// Distributes lane r's value for row r to the lanes of this row (g and g + 8 of each 16).
__device__ __forceinline__ void spread_rows(float (&x)[2][2], float of_lane) {
  const int g = (static_cast<int>(threadIdx.x) & 31) >> 2;
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) x[m][half] = __shfl_sync(0xffffffffu, of_lane, 16 * m + 8 * half + g);
}

/// Reduces over the four lanes that share this lane's rows.
template <class Reduce>
__device__ __forceinline__ void quad_rows(float (&x)[2][2], const Reduce& reduce) {
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) x[m][half] = reduce(x[m][half]);
}

/// Lanes with t = 0 store their rows in a warp's row of 32.
__device__ __forceinline__ void store_row_numbers(float* target, const float (&x)[2][2]) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  if (lane & 3) return;
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) target[16 * m + 8 * half + (lane >> 2)] = x[m][half];
}

/// Sets scores of keys at and after kv_length to -inf and raises `top` to the row maxima.
__device__ __forceinline__ void mask_scores(float (&s)[2][4][4], float (&top)[2][2], int keys_left) {
  const int limit = keys_left - 2 * (static_cast<int>(threadIdx.x) & 3);
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int n = 0; n < 4; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s[m][n][2 * half + e];
          if (8 * n + e >= limit) x = -INFINITY;
          top[m][half] = fmaxf(top[m][half], x);
        }
}

/// Converts scores to probabilities times the row sum; adds them to `sum` before dropout.
template <bool Drop>
__device__ __forceinline__ void exponentiate(float (&s)[2][4][4], float (&sum)[2][2], const float (&base)[2][2],
                                             float scale_log2, const KeepBits& keep, int key0) {
  const int lane = static_cast<int>(threadIdx.x) & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t kept = 0;
      if (Drop) kept = keep.keys(16 * m + 8 * half + g, key0) >> (2 * t);
#pragma unroll
      for (int n = 0; n < 4; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s[m][n][2 * half + e];
          x = exp2_approx(fmaf(x, scale_log2, -base[m][half]));
          sum[m][half] += x;
          if (Drop && !(kept >> (8 * n + e) & 1)) x = 0;
        }
    }
}

/// Stores a pair's probabilities as bf16 in steps `step` and `step` + 1 of P, if these exist.
__device__ __forceinline__ void store_weights(const float (&s)[2][4][4], uint32_t p_tile, int step, int steps) {
  const auto weights = LaneAddress<16>::row_major(p_tile);
#pragma unroll
  for (int u = 0; u < 2; ++u) {
    if (step + u >= steps) continue;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      uint32_t a[4];
      pack_a(a, s[m][2 * u], s[m][2 * u + 1]);
      stmatrix4(weights.at(kQueries * (step + u) + 16 * m, 0), a);
    }
  }
}

/// Computes out = P V / row sums; the warps process blocks of 16 x 16 in turn. row_sum: of row `lane`.
template <int D>
__device__ __forceinline__ void store_outputs(const Params& p, int b, int h, uint32_t p_tile, uint32_t v_tile,
                                              float row_sum, int steps) {
  const auto weights = LaneAddress<16>::row_major(p_tile);
  const auto values = LaneAddress<D>::row_major(v_tile);
  float factor[2][2];
  spread_rows(factor, row_sum > 0 ? p.keep_scale / row_sum : 0.0f);
#pragma unroll 1
  for (int unit = fresh_thread() / 32; unit < 2 * (D / 16); unit += kWarps) {
    const int m = unit & 1, column16 = unit >> 1;
    if (16 * m >= p.query_tokens || 16 * column16 >= p.head_size) continue;
    float o[1][2][4];
    sum_over_keys<D>(o, [&](uint32_t (&a)[4], int step) { ldmatrix4(a, weights.at(kQueries * step + 16 * m, 0)); },
                     values, column16, steps);
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) o[0][n][e] *= m ? factor[1][e / 2] : factor[0][e / 2];
    store_fragments<1, 2>(o, 1.0f, p.out.head<bf16>(b, h, p.head_size), p.out.row_stride, 16 * m, p.query_tokens,
                          16 * column16, p.head_size);
  }
}

/// Returns the largest of the numbers that the warps stored for a row.
__device__ __forceinline__ float largest_of_warps(const float* numbers) {
  float largest = -INFINITY;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, numbers[w * kQueries]);
  return largest;
}

template <int D>
constexpr int forward_blocks(int rounds) { return rounds > 1 ? 1 : (D <= 64 ? 3 : 2); }

/// Rounds: maximum number of pairs per warp.
template <int D, int Rounds, bool Drop>
__global__ void __launch_bounds__(kThreads, forward_blocks<D>(Rounds)) few_queries_forward_kernel(const Params p) {
  extern __shared__ __align__(1024) char shared[];
  using L = Layout<D, Rounds, Drop>;
  constexpr int kMaxKeys = Rounds * kWarps * kPairKeys;
  const int h = static_cast<int>(blockIdx.x) % p.heads, b = static_cast<int>(blockIdx.x) / p.heads;
  const DropoutMask mask(p, b);
  const int kv_length = p.kv_length(b), steps = (kv_length + 15) / 16;
  const uint32_t base_address = shared_address(shared), q_tile = base_address + L::kQ, k_tile = base_address + L::kK;
  const uint32_t v_tile = k_tile + L::tile_bytes(p.kv_tokens);
  load_rows<D, kQueries>(q_tile, p, p.q, b, h, kQueries, p.query_tokens);
  load_rows<D, kMaxKeys>(k_tile, p, p.k, b, h, 16 * steps, kv_length);
  commit_copies();
  load_rows<D, kMaxKeys>(v_tile, p, p.v, b, h, 16 * steps, kv_length);
  commit_copies();
  KeepBits keep{};
  if constexpr (Drop) keep = KeepBits::make(shared + L::kBits, mask, p, h);
  wait_copies<1>();
  __syncthreads();  // Q, K and the mask are complete

  const int thread = fresh_thread(), warp = thread / 32, lane = thread & 31;
  const SharedQueries<D> q{LaneAddress<D>::row_major(q_tile), 0};
  const auto keys = LaneAddress<D>::chunk_major(k_tile);
  float s[Rounds][2][4][4], top[2][2] = {{-INFINITY, -INFINITY}, {-INFINITY, -INFINITY}};
#pragma unroll
  for (int r = 0; r < Rounds; ++r) {
    const int key0 = (warp + r * kWarps) * kPairKeys;
    if (key0 >= kv_length) continue;
    scores<D, 2, 2>(s[r], q, keys, key0);
    mask_scores(s[r], top, kv_length - key0);
  }
  quad_rows(top, quad_max);
  float* maxima = reinterpret_cast<float*>(shared + L::kMaxima);
  float* sums = reinterpret_cast<float*>(shared + L::kSums);
  store_row_numbers(maxima + warp * kQueries, top);
  __syncthreads();  // the row maxima are complete; Q and K are not needed any more

  const float row_base = largest_of_warps(maxima + lane) * (p.scale * kLog2e);  // of row `lane`
  float base[2][2], sum[2][2] = {};
  spread_rows(base, row_base);
#pragma unroll
  for (int r = 0; r < Rounds; ++r) {
    const int pair = warp + r * kWarps;
    if (pair * kPairKeys >= kv_length) continue;
    exponentiate<Drop>(s[r], sum, base, p.scale * kLog2e, keep, pair * kPairKeys);
    store_weights(s[r], k_tile, 2 * pair, steps);
  }
  quad_rows(sum, quad_sum);
  store_row_numbers(sums + warp * kQueries, sum);
  wait_copies<0>();
  __syncthreads();  // P, the row sums and V are complete

  float row_sum = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) row_sum += sums[w * kQueries + lane];
  if (warp == kWarps - 1 && lane < p.query_tokens)
    p.lse[(static_cast<int64_t>(b) * p.heads + h) * p.query_tokens + lane] =
        row_sum > 0 ? (row_base + log2f(row_sum)) * kLn2 : -INFINITY;
  store_outputs<D>(p, b, h, k_tile, v_tile, row_sum, steps);
}

template <int D, int Rounds, bool Drop>
bool launch(const Params& p, cudaStream_t stream) {
  const int bytes = Layout<D, Rounds, Drop>::bytes(p.kv_tokens);
  if (bytes > p.shared_bytes) return false;
  allow_shared_memory(&few_queries_forward_kernel<D, Rounds, Drop>, bytes);
  few_queries_forward_kernel<D, Rounds, Drop>
      <<<static_cast<unsigned>(p.batch * p.heads), kThreads, bytes, stream>>>(p);
  BLIPFT_CUDA_LAUNCHED("attention forward of few queries");
  return true;
}

}  // namespace

bool mma_few_queries_forward(const Params& p, cudaStream_t stream) {
  return with_instance(p, [&](auto size, auto rounds, auto drop) {
    return launch<decltype(size)::value, decltype(rounds)::value, decltype(drop)::value>(p, stream);
  });
}

}  // namespace blipft::attention
