// Attention backward for bf16 with mma.sync and heads of 129 to 256 (Gemma): dK and dV by blocks of keys, dQ by blocks
// of queries, like backward_long.cuh, which also computes the row sums. There are 8 warps in 4 pairs; pairs wait for
// each other only at the arrival of the next tiles. A warp's registers hold one tile of 16 x 256 or 32 x 128, but not
// two. The warps of a pair therefore divide the work on the same scores and exchange results through shared memory
// (they run on the same quarter of the SM, where one has products to compute while the other waits):
//
//   dkv: a pair has 16 keys. The first warp computes S^T = K Q^T and P^T, passes P^T on, and computes dV += P^T dO; the
//        second computes dP^T = V dO^T, then dS^T from P^T, and dK += dS^T Q: 2 products each. 64 keys per block,
//        queries in blocks of `Queries`, double-buffered: 209 KB.
//   dq: a pair has 16 * MT queries. The first warp computes S = Q K^T and P and passes P on; the second computes
//        dP = dO V^T and dS and passes dS back; then each computes half of the columns of dQ += dS K: with MT = 2 every
//        fragment of K, V feeds 4 mma. Keys in blocks of 32, double-buffered: 217 KB.
// P is passed in f32, dS as the bf16 fragments that the products use. No dropout.
#pragma once

#include "cuda/attention/backward_long.cuh"

namespace blipft::attention {
namespace backward_wide {

constexpr int D = 256, kPairs = 4, kThreads = 2 * kPairs * 32, kKeys = 16 * kPairs, kStepKeys = 32;

/// This warp's pair and its index in it.
struct Warp {
  int pair;
  bool second;
};
__device__ __forceinline__ Warp own_warp() {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  return {warp % kPairs, warp >= kPairs};
}

/// hand_over() makes a warp's writes to shared memory visible to the other warp, which waits in take_over(). A barrier
/// of the whole block separates two uses of the same number.
__device__ __forceinline__ void hand_over(int number) {
  asm volatile("bar.arrive %0, 64;" ::"r"(number) : "memory");
}
__device__ __forceinline__ void take_over(int number) { asm volatile("bar.sync %0, 64;" ::"r"(number) : "memory"); }

/// Stores fragments in shared memory, 16 bytes per lane at a time: `place` is [N][32] of float4.
template <int N>
__device__ __forceinline__ void put(float4* place, const float (&x)[N][4]) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
#pragma unroll
  for (int n = 0; n < N; ++n) place[32 * n + lane] = make_float4(x[n][0], x[n][1], x[n][2], x[n][3]);
}

/// Computes x = p * (x - delta), with p = P (times the slope of a cap) from `place` and delta of each element's row or
/// column.
template <int N, class Delta>
__device__ __forceinline__ void take_gradients(float (&x)[N][4], const float4* place, const Delta& delta) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const float4 p = place[32 * n + lane];
    x[n][0] = p.x * (x[n][0] - delta(n, 0));
    x[n][1] = p.y * (x[n][1] - delta(n, 1));
    x[n][2] = p.z * (x[n][2] - delta(n, 2));
    x[n][3] = p.w * (x[n][3] - delta(n, 3));
  }
}

/// Converts s^T (adjusted) of keys from key_row0 on and queries from query0 on to P^T, and stores P^T times slopes in
/// `place`. lse: of these queries, in shared memory.
template <bool Masked, int N, class Tile>
__device__ __forceinline__ void transposed_probabilities(float (&s)[N][4], float4* place, const float* lse,
                                                         int key_row0, int query0, const Tile& tile) {
  const int lane = static_cast<int>(threadIdx.x) & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const float2 pair = *reinterpret_cast<const float2*>(lse + 8 * n + 2 * t);
    float sloped[4];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int query = query0 + 8 * n + 2 * t + e;
      const int limit = Masked ? tile.limit(query) : 0, first = Masked ? tile.first(query) : 0;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int key = key_row0 + 8 * half + g;
        float& x = s[n][2 * half + e];
        float probability = exp2_approx(fmaf(x, tile.scale_log2, e ? -pair.y : -pair.x));
        if (Masked && (key >= limit || key < first)) probability = 0;
        sloped[2 * half + e] = probability * tile.slope(x);
        x = probability;
      }
    }
    place[32 * n + lane] = make_float4(sloped[0], sloped[1], sloped[2], sloped[3]);
  }
}

/// Converts s (adjusted) of queries from tile.row0 on and keys from key0 on to P times slopes.
template <bool Masked, int MT, int N, class Tile>
__device__ __forceinline__ void sloped_probabilities(float (&s)[MT][N][4], const float (&lse)[MT][2], int key0,
                                                     const Tile& tile) {
  const int lane = static_cast<int>(threadIdx.x) & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
  for (int m = 0; m < MT; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = tile.row0 + 16 * m + 8 * half + g, column0 = key0 + 2 * t;
      const int limit = Masked ? tile.limit(query) - column0 : 0, first = Masked ? tile.first(query) - column0 : 0;
#pragma unroll
      for (int n = 0; n < N; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s[m][n][2 * half + e];
          float probability = exp2_approx(fmaf(x, tile.scale_log2, -lse[m][half]));
          if (Masked && (8 * n + e >= limit || 8 * n + e < first)) probability = 0;
          x = probability * tile.slope(x);
        }
    }
}

/// Computes acc (C fragments of [16 * MT][16 * Columns16]) += a times 16 rows from tile row `row` on, columns from 16 *
/// column16 on.
template <int MT, int Columns16>
__device__ __forceinline__ void multiply_columns(float (&acc)[MT][2 * Columns16][4], const uint32_t (&a)[MT][4],
                                                 const LaneAddress<D>& rows, int row, int column16) {
#pragma unroll
  for (int d = 0; d < Columns16; ++d) {
    uint32_t b[4];
    ldmatrix4_trans(b, rows.at(row, column16 + d));
#pragma unroll
    for (int m = 0; m < MT; ++m) {
      mma(acc[m][2 * d], a[m], b[0], b[1]);
      mma(acc[m][2 * d + 1], a[m], b[2], b[3]);
    }
  }
}

/// Byte offsets in the shared memory of the kernels.
template <int Queries>
struct KvLayout {
  static constexpr int K = 0, V = K + kKeys * D * 2, Block = Queries * D * 2;
  static constexpr int Q = V + kKeys * D * 2, Dout = Q + 2 * Block;               // [2] of blocks
  static constexpr int Shared = Dout + 2 * Block, Place = 16 * Queries * 4;       // [pair]
  static constexpr int Lse = Shared + kPairs * Place, Delta = Lse + 2 * Queries * 4;  // [2][Queries]
  static constexpr int Table = Delta + 2 * Queries * 4;
};
template <int MT>
struct QLayout {
  static constexpr int Rows = kPairs * 16 * MT, Block = kStepKeys * D * 2;
  static constexpr int Q = 0, Dout = Q + Rows * D * 2;
  static constexpr int K = Dout + Rows * D * 2, V = K + 2 * Block;                // [2] of blocks
  static constexpr int Shared = V + 2 * Block, Place = 16 * MT * kStepKeys * 4;   // [pair] of P
  static constexpr int Back = Shared + kPairs * Place, BackPlace = Place / 2;     // [pair] of dS
  static constexpr int Numbers = Back + kPairs * BackPlace;                       // lse, delta [Rows]
  static constexpr int Table = Numbers + 2 * Rows * 4;
};

/// Computes dK and dV of a block of keys.
// The kernel has 80 lines for the same reason as in backward_long.cuh.
template <int Queries, class Args>
__global__ void __launch_bounds__(kThreads, 1) dkv_kernel(const Args p) {
  using L = KvLayout<Queries>;
  constexpr int NT = Queries / 16;
  extern __shared__ __align__(1024) char shared[];
  const int block0 = static_cast<int>(block_tile<Args>()) * kKeys, kv_head = block_head<Args>();
  const int b = static_cast<int>(blockIdx.z), first_head = kv_head * p.heads_per_kv();
  if (block0 >= p.keys(b)) return;
  const auto [pair, second] = own_warp();
  const int kv_length = p.kv_length(b), key_row0 = block0 + 16 * pair;
  const uint32_t base = shared_address(shared);
  float* lse = reinterpret_cast<float*>(shared + L::Lse);
  float* delta = reinterpret_cast<float*>(shared + L::Delta);
  float* table = reinterpret_cast<float*>(shared + L::Table);
  const bf16* q = head_of<const bf16>(p, p.q, b, first_head);
  const bf16* dout = head_of<const bf16>(p, p.dout, b, first_head);
  StepNumbers<Queries> numbers;  // of the step that was requested last
  const auto load_block = [&](int stage, int member, int query0) {
    const uint32_t offset = base + static_cast<uint32_t>(stage * L::Block);
    const int skip = member * p.head_size, queries = p.queries(b);
    load_rows<Args, D, kThreads, Queries>(offset + L::Q, q + skip, p.q.row_stride, query0, queries, p);
    load_rows<Args, D, kThreads, Queries>(offset + L::Dout, dout + skip, p.dout.row_stride, query0, queries, p);
    commit_copies();
    numbers.fetch(p, b, first_head + member, query0);
  };
  load_relative<kThreads>(table, p, first_head);  // no other head uses these keys
  const auto tile = tile_of(p, {0, kv_length, p.causal, p.scale * kLog2e, 0, p.query_elements}, table, b);
  float acc[1][D / 8][4] = {};  // dV or dK
  load_rows<Args, D, kThreads, kKeys>(base + L::K, key_head_of<const bf16>(p, p.k, b, kv_head), p.k.row_stride, block0,
                                      kv_length, p);
  load_rows<Args, D, kThreads, kKeys>(base + L::V, key_head_of<const bf16>(p, p.v, b, kv_head), p.v.row_stride, block0,
                                      kv_length, p);
  const int first = first_query(p, b, block0, Queries);
  const int end = block0 < kv_length ? min(p.queries(b), block0 + kKeys - 1 + p.window) : first;
  const SharedQueries<D> own{LaneAddress<D>::row_major(base + (second ? L::V : L::K)), 16 * pair};
  const auto factor_rows = LaneAddress<D>::chunk_major(base + (second ? L::Dout : L::Q));
  const auto columns = LaneAddress<D>::row_major(base + (second ? L::Q : L::Dout));
  float4* place = reinterpret_cast<float4*>(shared + L::Shared + pair * L::Place);
  int member = 0, query0 = first, stage = 0;
  if (first < end) load_block(0, member, query0);
#pragma unroll 1
  while (query0 < end) {
    numbers.store(lse, delta, stage);
    wait_copies<0>();
    __syncthreads();  // this stage has arrived, the other one and `place` are free
    int next_member = member, next = query0 + Queries;
    if (next >= end && member + 1 < p.heads_per_kv()) ++next_member, next = first;
    if (next < end) load_block(stage ^ 1, next_member, next);
    const int row = stage * Queries, at = query0;
    member = next_member, query0 = next, stage ^= 1;
    if (key_row0 >= kv_length || before_keys(p, tile, at + Queries, key_row0) || before_window(tile, at, key_row0 + 16))
      continue;
    float s[1][2 * NT][4];
    scores<D, 1, NT>(s, own, factor_rows, row);
    if (!second) {
      adjust_scores<true>(s, tile, key_row0 - at);
      if (key_row0 + 16 <= tile.limit(at) && all_in_window(tile, at + Queries - 1, key_row0))
        transposed_probabilities<false>(s[0], place, lse + row, key_row0, at, tile);
      else
        transposed_probabilities<true>(s[0], place, lse + row, key_row0, at, tile);
      hand_over(1 + pair);
    } else {
      take_over(1 + pair);
      const float* own_delta = delta + row + 2 * (static_cast<int>(threadIdx.x) & 3);
      take_gradients(s[0], place, [&](int n, int e) { return own_delta[8 * n + e % 2]; });
    }
    backward_long::accumulate<D, NT>(acc, s, columns, row);
  }
  wait_copies<0>();
  const View& out = second ? p.dk : p.dv;
  store_fragments<1, D / 8>(acc, second ? p.scale : 1.0f, key_head_of<bf16>(p, out, b, kv_head), out.row_stride,
                            key_row0, p.keys(b), 0, p.head_size);
}

/// The work of a pair's warps on dQ for one block of keys at tile row key_row.
template <int MT, bool Masked, class Tile>
__device__ __forceinline__ void dq_step(float (&dq)[MT][16][4], const SharedQueries<D>& rows, uint32_t factor_tile,
                                        uint32_t k_tile, char* shared, int pair, bool second, int key_row, int key0,
                                        const Tile& tile) {
  using L = QLayout<MT>;
  float4* place = reinterpret_cast<float4*>(shared + L::Shared + pair * L::Place);
  uint4* back = reinterpret_cast<uint4*>(shared + L::Back + pair * L::BackPlace);
  const int lane = static_cast<int>(threadIdx.x) & 31;
  uint32_t a[2][MT][4];  // for 16 keys each
  {
    float s[MT][4][4], numbers[MT][2];
    scores<D, MT, 2>(s, rows, LaneAddress<D>::chunk_major(factor_tile), key_row);
    row_numbers<MT>(numbers, shared + L::Numbers, second ? L::Rows * 4 : 0, rows.row);
    if (!second) {
      adjust_scores<false>(s, tile, key0 - tile.row0);
      sloped_probabilities<Masked>(s, numbers, key0, tile);
#pragma unroll
      for (int m = 0; m < MT; ++m) put(place + 128 * m, s[m]);
      hand_over(1 + pair);
    } else {
      take_over(1 + pair);
#pragma unroll
      for (int m = 0; m < MT; ++m)
        take_gradients(s[m], place + 128 * m, [&](int, int e) { return numbers[m][e / 2]; });
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int m = 0; m < MT; ++m) {
          pack_a(a[n][m], s[m][2 * n], s[m][2 * n + 1]);
          back[32 * (n * MT + m) + lane] = make_uint4(a[n][m][0], a[n][m][1], a[n][m][2], a[n][m][3]);
        }
      hand_over(1 + kPairs + pair);
    }
  }
  if (!second) {
    take_over(1 + kPairs + pair);
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int m = 0; m < MT; ++m) {
        const uint4 x = back[32 * (n * MT + m) + lane];
        a[n][m][0] = x.x, a[n][m][1] = x.y, a[n][m][2] = x.z, a[n][m][3] = x.w;
      }
  }
  const auto keys = LaneAddress<D>::row_major(k_tile);
#pragma unroll
  for (int n = 0; n < 2; ++n) multiply_columns<MT, 8>(dq, a[n], keys, key_row + 16 * n, second ? 8 : 0);
}

template <int MT, class Args>
__global__ void __launch_bounds__(kThreads, 1) dq_kernel(const Args p) {
  using L = QLayout<MT>;
  extern __shared__ __align__(1024) char shared[];
  const int block = p.causal ? static_cast<int>(grid_tiles<Args>() - 1 - block_tile<Args>())
                             : static_cast<int>(block_tile<Args>());
  const int q0 = block * L::Rows, h = block_head<Args>(), b = static_cast<int>(blockIdx.z), queries = p.queries(b);
  if (q0 >= queries) return;
  const auto [pair, second] = own_warp();
  const int kv_length = p.kv_length(b), row0 = q0 + 16 * MT * pair;
  const uint32_t base = shared_address(shared);
  const bf16* k = key_head_of<const bf16>(p, p.k, b, p.kv_head(h));
  const bf16* v = key_head_of<const bf16>(p, p.v, b, p.kv_head(h));
  const auto load_block = [&](int j) {
    const uint32_t offset = base + static_cast<uint32_t>((j & 1) * L::Block);
    const int key0 = j * kStepKeys;
    load_rows<Args, D, kThreads, kStepKeys>(offset + L::K, k, p.k.row_stride, key0, kv_length, p);
    load_rows<Args, D, kThreads, kStepKeys>(offset + L::V, v, p.v.row_stride, key0, kv_length, p);
    commit_copies();
  };
  float* numbers = reinterpret_cast<float*>(shared + L::Numbers);
  float* table = reinterpret_cast<float*>(shared + L::Table);
  load_relative<kThreads>(table, p, h);
  const auto tile = tile_of(p, {row0, kv_length, p.causal, p.scale * kLog2e, 0, p.query_elements}, table, b);
  const int first = first_block(tile, q0, kStepKeys);
  load_rows<Args, D, kThreads, L::Rows>(base + L::Q, head_of<const bf16>(p, p.q, b, h), p.q.row_stride, q0, queries, p);
  load_rows<Args, D, kThreads, L::Rows>(base + L::Dout, head_of<const bf16>(p, p.dout, b, h), p.dout.row_stride, q0,
                                        queries, p);
  load_block(first);
  load_lse<kThreads>(numbers, p, b, h, q0, L::Rows);
  const float* deltas = p.delta + (static_cast<int64_t>(b) * p.heads + h) * p.query_tokens;
  for (int i = static_cast<int>(threadIdx.x); i < L::Rows; i += kThreads)
    numbers[L::Rows + i] = q0 + i < queries ? deltas[q0 + i] : 0.0f;
  const SharedQueries<D> rows{LaneAddress<D>::row_major(base + (second ? L::Dout : L::Q)), 16 * MT * pair};
  float dq[MT][16][4] = {};  // half of the columns
  const int blocks = (tile.limit(q0 + L::Rows - 1) + kStepKeys - 1) / kStepKeys;
  const int end = row0 < queries ? tile.limit(row0 + 16 * MT - 1) : 0, full = tile.limit(row0);
#pragma unroll 1
  for (int j = first; j < blocks; ++j) {
    wait_copies<0>();
    __syncthreads();  // block j has arrived, the other stage and the exchange buffers are free
    if (j + 1 < blocks) load_block(j + 1);
    const int key0 = j * kStepKeys, key_row = (j & 1) * kStepKeys;
    const uint32_t k_tile = base + L::K, factor_tile = base + (second ? L::V : L::K);
    if (key0 + kStepKeys <= full && all_in_window(tile, row0 + 16 * MT - 1, key0))
      dq_step<MT, false>(dq, rows, factor_tile, k_tile, shared, pair, second, key_row, key0, tile);
    else if (key0 < end && !before_window(tile, row0, key0 + kStepKeys))
      dq_step<MT, true>(dq, rows, factor_tile, k_tile, shared, pair, second, key_row, key0, tile);
  }
  wait_copies<0>();
  store_fragments<MT, 16>(dq, p.scale, head_of<bf16>(p, p.dq, b, h), p.dq.row_stride, row0, queries,
                          second ? D / 2 : 0, p.head_size);
}

/// Launches the three kernels; returns false if a block needs too much shared memory.
template <int Queries, int MT, class Args>
bool backward(const Args& p, cudaStream_t stream) {
  using Kv = KvLayout<Queries>;
  using Q = QLayout<MT>;
  const int kv = Kv::Table + p.table_bytes(), q = Q::Table + p.table_bytes();
  if (std::max(kv, q) > p.shared_bytes) return false;
  backward_long::launch_deltas<D>(PackedParams{static_cast<const Params&>(p)}, stream);
  allow_shared_memory(&dkv_kernel<Queries, Args>, kv);
  const dim3 key_blocks = grid_of<Args>(backward_long::blocks_of(p.kv_tokens, kKeys), p.kv_heads, p.batch);
  dkv_kernel<Queries, Args><<<key_blocks, kThreads, kv, stream>>>(p);
  BLIPFT_CUDA_LAUNCHED("attention dk, dv of wide heads");
  allow_shared_memory(&dq_kernel<MT, Args>, q);
  const dim3 query_blocks = grid_of<Args>(backward_long::blocks_of(p.query_tokens, Q::Rows), p.heads, p.batch);
  dq_kernel<MT, Args><<<query_blocks, kThreads, q, stream>>>(p);
  BLIPFT_CUDA_LAUNCHED("attention dq of wide heads");
  return true;
}

}  // namespace backward_wide
}  // namespace blipft::attention
