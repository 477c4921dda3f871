// Attention backward for bf16 and few queries over many keys, in one kernel: the Q-Former's cross-attention with 32
// queries, 257 keys. backward.cuh gives the formulas, few_queries.cuh describes how the work is divided.
//
//   1  the copies of Q and K start, then dO and V; meanwhile the block computes the dropout mask's bits and delta
//   2  each warp, for its keys, 32 at a time: S^T = K Q^T, dP^T = V dO^T, then P^T and dS^T, whose C fragments are the
//      A fragments of dV = P^T dO and dK = dS^T Q. The block has all queries, so both are complete. They are stored
//      through the warp's own rows of V, which no other warp reads; then dS^T is stored there for the other warps.
//   3  each warp: a 16 x 16 block of dQ = dS K over all keys
//
// It needs 81 KB of shared memory at 257 keys and head size 64: two blocks per SM.
#include <cuda_runtime.h>

#include "cuda/attention/backward.cuh"
#include "cuda/attention/few_queries.cuh"
#include "cuda/device/cuda_check.h"

namespace blipft::attention {
namespace {

using namespace few_queries;

/// Byte offsets in shared memory: Q, dO [32][D]; lse, delta [32] f32; mask bits; K [rows][D]; V [rows][D], a multiple
/// of 32 rows. The last pair may read 16 rows after K, which belong to V. dS^T of a pair, [2][16][32], reuses the first
/// 2048 of the pair's 64 * D bytes of V. All offsets except V's are compile-time constants, which saves registers.
template <int D, int Rounds, bool Drop>
struct Layout {
  static constexpr int kPairBytes = kPairKeys * D * 2, kTileBytes = kQueries * D * 2;
  static constexpr int kQ = 0, kDout = kTileBytes, kLse = 2 * kTileBytes, kDelta = kLse + 4 * kQueries;
  static constexpr int kBits = kDelta + 4 * kQueries, kK = kBits + (Drop ? KeepBits::kBytes<Rounds> : 0);
  static_assert(kPairKeys * kQueries * 2 <= kPairBytes, "dS takes the place of V");

  static __host__ __device__ __forceinline__ int v(int kv_tokens) { return kK + (kv_tokens + 15) / 16 * 16 * D * 2; }
  static int bytes(int kv_tokens) { return v(kv_tokens) + (kv_tokens + kPairKeys - 1) / kPairKeys * kPairBytes; }
};

/// delta = row sums of dO * O, with half a warp per row and 8 columns per lane; loaded early, summed late.
template <int D>
struct Deltas {
  static constexpr int kGroups = kThreads / 16, kRounds = (kQueries + kGroups - 1) / kGroups;
  uint4 out[kRounds], dout[kRounds];

  __device__ __forceinline__ void load(const Params& p, int b, int h) {
    const int column = (static_cast<int>(threadIdx.x) & 15) * 8, group = static_cast<int>(threadIdx.x) / 16;
    const bf16* out_head = p.out.head<const bf16>(b, h, p.head_size) + column;
    const bf16* dout_head = p.dout.head<const bf16>(b, h, p.head_size) + column;
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const int row = i * kGroups + group;
      out[i] = dout[i] = uint4{0, 0, 0, 0};
      if (row >= p.query_tokens || column >= p.head_size) continue;
      out[i] = load8(out_head + row * p.out.row_stride, column, p.head_size, p.wide);
      dout[i] = load8(dout_head + row * p.dout.row_stride, column, p.head_size, p.wide);
    }
  }
  __device__ __forceinline__ void reduce(float* delta) const {
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const int row = i * kGroups + static_cast<int>(threadIdx.x) / 16;
      float sum = dot8(out[i], dout[i]);
#pragma unroll
      for (int o = 8; o; o /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, o);
      if ((threadIdx.x & 15) == 0 && row < kQueries) delta[row] = sum;
    }
  }
};

/// Computes, as A fragments, the dropped probabilities and dS of a pair's 32 keys and 16 queries from 16 * part on,
/// from s = k q^T of all queries and dp = v dO^T of these queries (C fragments: rows are keys, columns queries). lse
/// and delta: [32]. keys_left: number of the 32 keys that exist.
template <bool Drop>
__device__ __forceinline__ void pair_gradients(uint32_t (&probabilities)[2][4], uint32_t (&gradients)[2][4],
                                               float (&s)[2][4][4], float (&dp)[2][2][4], int part, const float* lse,
                                               const float* delta, const KeepBits& keep, int key0, int keys_left,
                                               float scale_log2, float keep_scale) {
  const int lane = static_cast<int>(threadIdx.x) & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const int query = 16 * part + 8 * n + 2 * t;
    const float2 lse2 = *reinterpret_cast<const float2*>(lse + query);
    const float2 delta2 = *reinterpret_cast<const float2*>(delta + query);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float row_lse = e ? lse2.y : lse2.x, row_delta = e ? delta2.y : delta2.x;
      uint32_t kept = 0;
      if (Drop) kept = keep.keys(query + e, key0) >> g;
#pragma unroll
      for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float& x = s[m][2 * part + n][2 * half + e];
          float& y = dp[m][n][2 * half + e];
          const int key = 16 * m + 8 * half;
          float probability = exp2_approx(fmaf(x, scale_log2, -row_lse));
          if (key + g >= keys_left) probability = 0;
          const float factor = Drop ? (kept >> key & 1 ? keep_scale : 0.0f) : 1.0f;
          y = probability * (Drop ? fmaf(y, factor, -row_delta) : y - row_delta);
          x = Drop ? probability * factor : probability;
        }
    }
  }
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    pack_a(probabilities[m], s[m][2 * part], s[m][2 * part + 1]);
    pack_a(gradients[m], dp[m][0], dp[m][1]);
  }
}

/// Stores a [32 keys][32 queries] times the tile `rows` [32 queries][D], times factor, in rows from key0 on of a head,
/// below kv_length, through rows from key0 on of the tile `place`.
template <int D>
__device__ __forceinline__ void key_gradient(const uint32_t (&a)[2][2][4], uint32_t rows_tile, char* place,
                                             float factor, bf16* head, int64_t row_stride, int key0, int kv_length,
                                             int head_size, bool wide) {
  constexpr int kColumns = 2;  // n16 columns at a time, to need few accumulators
  const auto rows = LaneAddress<D>::row_major(rows_tile);
  const auto staged = LaneAddress<D>::row_major(shared_address(place));
#pragma unroll 1
  for (int first = 0; first < D / 16; first += kColumns) {
    float acc[2][2 * kColumns][4] = {};
#pragma unroll
    for (int k = 0; k < 2; ++k)
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        if (D / 16 % kColumns != 0 && first + c >= D / 16) continue;
        uint32_t b[4];
        ldmatrix4_trans(b, rows.at(16 * k, first + c));
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          mma(acc[m][2 * c], a[k][m], b[0], b[1]);
          mma(acc[m][2 * c + 1], a[k][m], b[2], b[3]);
        }
      }
    stage_fragments<D>(acc, factor, staged, key0, first);
  }
  __syncwarp();
  store_tile_rows<D, kPairKeys>(place, key0, head, row_stride, key0, kv_length, head_size, wide);
  __syncwarp();  // the tile `place` may be overwritten
}

/// Computes dq = scale dS K; the warps process blocks of 16 x 16 in turn. dS^T is in the memory of V.
template <int D>
__device__ __forceinline__ void store_query_gradients(const Params& p, int b, int h, uint32_t k_tile, uint32_t v_tile,
                                                      int steps) {
  const auto keys = LaneAddress<D>::row_major(k_tile);
  const auto left = LaneAddress<kQueries>::chunk_major(v_tile);
#pragma unroll 1
  for (int unit = fresh_thread() / 32; unit < 2 * (D / 16); unit += kWarps) {
    const int m = unit & 1, column16 = unit >> 1;
    if (16 * m >= p.query_tokens || 16 * column16 >= p.head_size) continue;
    float dq[1][2][4];
    sum_over_keys<D>(dq,
                     [&](uint32_t (&a)[4], int step) {
                       ldmatrix4_trans(a, left.at(16 * (step & 1), m) + (step >> 1) * (kPairKeys * D * 2));
                     },
                     keys, column16, steps);
    store_fragments<1, 2>(dq, p.scale, p.dq.head<bf16>(b, h, p.head_size), p.dq.row_stride, 16 * m, p.query_tokens,
                          16 * column16, p.head_size);
  }
}

/// Starts copying Q and K, then dO and V: two groups of copies.
template <class L, int D, int MaxKeys>
__device__ __forceinline__ void start_copies(const Params& p, int b, int h, uint32_t base, uint32_t v_tile, int steps,
                                             int kv_length) {
  load_rows<D, kQueries>(base + L::kQ, p, p.q, b, h, kQueries, p.query_tokens);
  load_rows<D, MaxKeys>(base + L::kK, p, p.k, b, h, 16 * steps, kv_length);
  commit_copies();
  load_rows<D, kQueries>(base + L::kDout, p, p.dout, b, h, kQueries, p.query_tokens);
  load_rows<D, MaxKeys>(v_tile, p, p.v, b, h, 16 * steps, kv_length);
  commit_copies();
}

/// Computes the probabilities and dS, [16 queries][16 keys], of a pair's keys from key0 on, from its scores s.
template <class L, int D, bool Drop>
__device__ __forceinline__ void take_pair(uint32_t (&probabilities)[2][2][4], uint32_t (&gradients)[2][2][4],
                                          float (&s)[2][4][4], const Params& p, const char* shared,
                                          uint32_t v_tile, const KeepBits& keep, int key0, int kv_length) {
  const float* lse = reinterpret_cast<const float*>(shared + L::kLse);
  const float* delta = reinterpret_cast<const float*>(shared + L::kDelta);
#pragma unroll
  for (int part = 0; part < 2; ++part) {  // dp of all queries would need too many registers
    if (16 * part >= p.query_tokens) continue;
    float dp[2][2][4];
    scores<D, 2, 1>(dp, SharedQueries<D>{LaneAddress<D>::row_major(v_tile), key0},
                    LaneAddress<D>::chunk_major(shared_address(shared) + L::kDout), 16 * part);
    pair_gradients<Drop>(probabilities[part], gradients[part], s, dp, part, lse, delta, keep, key0, kv_length - key0,
                         p.scale * kLog2e, p.keep_scale);
  }
}

/// Stores dS^T of a pair for the other warps.
__device__ __forceinline__ void stage_gradients(const uint32_t (&gradients)[2][2][4], uint32_t tile) {
  const auto place = LaneAddress<kQueries>::row_major(tile);
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int n = 0; n < 2; ++n) stmatrix4(place.at(16 * m, n), gradients[n][m]);
}

template <int D>
constexpr int backward_blocks(int rounds) { return rounds == 1 && D <= 80 ? 2 : 1; }

/// Rounds: maximum number of pairs per warp.
template <int D, int Rounds, bool Drop>
__global__ void __launch_bounds__(kThreads, backward_blocks<D>(Rounds)) few_queries_backward_kernel(const Params p) {
  extern __shared__ __align__(1024) char shared[];
  using L = Layout<D, Rounds, Drop>;
  const int h = static_cast<int>(blockIdx.x) % p.heads, b = static_cast<int>(blockIdx.x) / p.heads;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const DropoutMask mask(p, b);
  const int kv_length = p.kv_length(b), steps = (kv_length + 15) / 16;
  const int v_offset = L::v(p.kv_tokens);
  const uint32_t base = shared_address(shared), q_tile = base + L::kQ, dout_tile = base + L::kDout;
  const uint32_t k_tile = base + L::kK, v_tile = base + v_offset;
  float* lse = reinterpret_cast<float*>(shared + L::kLse);
  float* delta = reinterpret_cast<float*>(shared + L::kDelta);
  start_copies<L, D, Rounds * kWarps * kPairKeys>(p, b, h, base, v_tile, steps, kv_length);
  Deltas<D> deltas;
  deltas.load(p, b, h);
  if (threadIdx.x < kQueries) {
    const int row = static_cast<int>(threadIdx.x);
    lse[row] = row < p.query_tokens
                   ? lse_log2(p.lse[(static_cast<int64_t>(b) * p.heads + h) * p.query_tokens + row]) : INFINITY;
  }
  KeepBits keep{};
  if constexpr (Drop) keep = KeepBits::make(shared + L::kBits, mask, p, h);
  deltas.reduce(delta);
  wait_copies<1>();
  __syncthreads();  // Q, K, lse, delta and the mask are complete

  float s[2][4][4];
  const auto score = [&](int key0) {
    scores<D, 2, 2>(s, SharedQueries<D>{LaneAddress<D>::row_major(k_tile), key0}, LaneAddress<D>::chunk_major(q_tile),
                    0);
  };
  if (warp * kPairKeys < kv_length) score(warp * kPairKeys);
  wait_copies<0>();
  __syncthreads();  // dO and V have arrived
#pragma unroll 1
  for (int round = 0; round < Rounds; ++round) {
    const int key0 = (warp + round * kWarps) * kPairKeys;
    if (key0 >= kv_length) break;
    if (round > 0) score(key0);
    uint32_t probabilities[2][2][4] = {}, gradients[2][2][4] = {};  // [16 queries][16 keys]
    take_pair<L, D, Drop>(probabilities, gradients, s, p, shared, v_tile, keep, key0, kv_length);
    __syncwarp();  // the warp has read its rows of V
    key_gradient<D>(probabilities, dout_tile, shared + v_offset, 1.0f, p.dv.head<bf16>(b, h, p.head_size),
                    p.dv.row_stride, key0, kv_length, p.head_size, p.wide);
    key_gradient<D>(gradients, q_tile, shared + v_offset, p.scale, p.dk.head<bf16>(b, h, p.head_size),
                    p.dk.row_stride, key0, kv_length, p.head_size, p.wide);
    stage_gradients(gradients, v_tile + key0 / kPairKeys * L::kPairBytes);
  }
  __syncthreads();  // dS^T is complete

  store_query_gradients<D>(p, b, h, k_tile, v_tile, steps);
  zero_rows<kThreads>(p.dk.head<bf16>(b, h, p.head_size), p.dk.row_stride, kv_length, p.kv_tokens, p.head_size);
  zero_rows<kThreads>(p.dv.head<bf16>(b, h, p.head_size), p.dv.row_stride, kv_length, p.kv_tokens, p.head_size);
}

template <int D, int Rounds, bool Drop>
bool launch(const Params& p, cudaStream_t stream) {
  const int bytes = Layout<D, Rounds, Drop>::bytes(p.kv_tokens);
  if (bytes > p.shared_bytes) return false;
  allow_shared_memory(&few_queries_backward_kernel<D, Rounds, Drop>, bytes);
  few_queries_backward_kernel<D, Rounds, Drop>
      <<<static_cast<unsigned>(p.batch * p.heads), kThreads, bytes, stream>>>(p);
  BLIPFT_CUDA_LAUNCHED("attention backward of few queries");
  return true;
}

}  // namespace

bool mma_few_queries_backward(const Params& p, cudaStream_t stream) {
  return with_instance(p, [&](auto size, auto rounds, auto drop) {
    return launch<decltype(size)::value, decltype(rounds)::value, decltype(drop)::value>(p, stream);
  });
}

}  // namespace blipft::attention
