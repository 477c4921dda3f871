// Attention backward for bf16 and any sequence length, with mma.sync: three kernels, no atomics.
//
//   delta: row sums of dO * O.
//   dkv:   8 warps with 16 keys each (128 keys per block), queries in blocks of 64, double-buffered. Scores are
//          computed transposed, S^T = K Q^T, so that P^T and dS^T become A fragments of dV += P^T dO and dK += dS^T Q
//          without leaving registers: warps wait for each other only at the arrival of the next queries.
//          dK and dV stay in registers (128 at head size 128). 128 KB at head size 128, one block per SM.
//          If query heads share keys, the block processes the queries of one head after the other.
//   dq:    4 warps with 32 queries each, keys in blocks of 32, double-buffered; dQ in registers, dS from registers.
//          96 KB at head size 128, two blocks per SM.
// For packed samples (PackedParams), blocks beyond the rows or keys of their sample exit at once.
// With a window (WindowParams), a block of keys processes the queries up to the last that sees one of them, and a block
// of queries the keys from the first that one of them sees; masks do the rest.
// S and dP are computed twice (7 matrix products instead of 5), so that one block owns every output.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>

#include "cuda/attention/backward.cuh"
#include "cuda/device/cuda_check.h"

namespace blipft::attention {
namespace backward_long {

constexpr int kDeltaRows = 64, kDeltaThreads = 256;
constexpr int kKvWarps = 8, kKvThreads = kKvWarps * 32, kKvKeys = kKvWarps * 16, kKvQueries = 64;
constexpr int kQWarps = 4, kQThreads = kQWarps * 32, kQRows = kQWarps * 32, kQKeys = 32;

template <int Columns>
__global__ void __launch_bounds__(kDeltaThreads) delta_kernel(const PackedParams p) {
  const int row0 = static_cast<int>(blockIdx.x) * kDeltaRows, h = static_cast<int>(blockIdx.y);
  const int b = static_cast<int>(blockIdx.z), rows = min(kDeltaRows, p.queries(b) - row0);
  if (rows <= 0) return;
  float* delta = p.delta + (static_cast<int64_t>(b) * p.heads + h) * p.query_tokens + row0;
  compute_deltas<kDeltaThreads, Columns>(delta, p, b, h, row0, rows);
}

/// Computes acc [16][D] += weights [16][16 * NT] (C fragments) times rows [16 * NT][D] from tile row `row`.
template <int D, int NT>
__device__ __forceinline__ void accumulate(float (&acc)[1][D / 8][4], const float (&weights)[1][2 * NT][4],
                                           const LaneAddress<D>& rows, int row) {
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    uint32_t a[1][4];
    pack_a(a[0], weights[0][2 * n], weights[0][2 * n + 1]);
    multiply_rows<D, 1>(acc, a, rows, row + 16 * n);
  }
}

template <int D>
constexpr int kv_bytes() {
  return (2 * kKvKeys + 4 * kKvQueries) * pitch<D> * 2 + 4 * kKvQueries * 4;
}

/// The block of queries that a block of keys processes: rows from `row` on of the member-th of the query heads that
/// share the keys.
struct QueryBlock {
  int member, row;

  /// Returns the next block among rows [first, end) of each head, one head after the other.
  template <class Args>
  __device__ __forceinline__ QueryBlock next(const Args& p, int first, int end) const {
    const int after = row + kKvQueries;
    return after >= end && member + 1 < p.heads_per_kv() ? QueryBlock{member + 1, first} : QueryBlock{member, after};
  }
};

/// Computes dK and dV of a block of keys.
// The kernel has 78 lines, half of them addresses: all parts of its loop over two stages need the same variables.
template <int D, bool Drop, class Args>
__global__ void __launch_bounds__(kKvThreads, 1) dkv_kernel(const Args p) {
  constexpr int NT = Drop && (D > 96 || Args::kScores) ? 2 : 4;  // 16-query pieces per step
  constexpr uint32_t kBlockBytes = kKvQueries * pitch<D> * 2;
  extern __shared__ __align__(1024) char shared[];
  const int block0 = static_cast<int>(block_tile<Args>()) * kKvKeys, kv_head = block_head<Args>();
  const int b = static_cast<int>(blockIdx.z), warp = static_cast<int>(threadIdx.x) / 32;
  const int first_head = kv_head * p.heads_per_kv();  // first of the query heads
  if (Args::kPacked && block0 >= p.keys(b)) return;
  const int kv_length = p.kv_length(b), warp_row = warp * 16, key_row0 = block0 + warp_row;
  const uint32_t k_tile = shared_address(shared), v_tile = k_tile + kKvKeys * pitch<D> * 2;
  const uint32_t q_tile = v_tile + kKvKeys * pitch<D> * 2, dout_tile = q_tile + 2 * kBlockBytes;
  float* lse = reinterpret_cast<float*>(shared + 2 * kKvKeys * pitch<D> * 2 + 4 * kBlockBytes);  // [2][kKvQueries]
  float* delta = lse + 2 * kKvQueries;                                                    // [2][kKvQueries]
  const bf16* q = head_of<const bf16>(p, p.q, b, first_head);
  const bf16* dout = head_of<const bf16>(p, p.dout, b, first_head);
  const int64_t rows_before = (static_cast<int64_t>(b) * p.heads + first_head) * p.query_tokens;
  [[maybe_unused]] StepNumbers<kKvQueries> numbers;  // of the block that was requested last
  const auto load_block = [&](int stage, const QueryBlock& next) {
    const uint32_t offset = static_cast<uint32_t>(stage) * kBlockBytes;
    const int query0 = next.row, skip = next.member * p.head_size;
    load_rows<Args, D, kKvThreads, kKvQueries>(q_tile + offset, q + skip, p.q.row_stride, query0, p.queries(b), p);
    load_rows<Args, D, kKvThreads, kKvQueries>(dout_tile + offset, dout + skip, p.dout.row_stride, query0,
                                               p.queries(b), p);
    commit_copies();
    if constexpr (Args::kScores) {
      numbers.fetch(p, b, first_head + next.member, query0);
      return;
    }
    load_lse<kKvThreads>(lse + stage * kKvQueries, p, b, first_head + next.member, query0, kKvQueries);
    const float* deltas = p.delta + rows_before + static_cast<int64_t>(next.member) * p.query_tokens;
    for (int i = static_cast<int>(threadIdx.x); i < kKvQueries; i += kKvThreads)
      delta[stage * kKvQueries + i] = query0 + i < p.queries(b) ? deltas[query0 + i] : 0.0f;
  };
  const DropoutMask mask(p, b);  // with dropout, no other head uses these keys
  float* table = delta + 2 * kKvQueries;
  if constexpr (Args::kScores) load_relative<kKvThreads>(table, p, first_head);  // no other head uses these keys
  const auto tile = tile_of(p, {0, kv_length, p.causal, p.scale * kLog2e, element_row(p, kv_head, 0), p.query_elements},
                            table, b);
  float dk[1][D / 8][4] = {}, dv[1][D / 8][4] = {};
  load_rows<Args, D, kKvThreads, kKvKeys>(k_tile, key_head_of<const bf16>(p, p.k, b, kv_head), p.k.row_stride, block0,
                                          kv_length, p);
  load_rows<Args, D, kKvThreads, kKvKeys>(v_tile, key_head_of<const bf16>(p, p.v, b, kv_head), p.v.row_stride, block0,
                                          kv_length, p);
  const int first = first_query(p, b, block0, kKvQueries);  // block0 is a multiple of kKvQueries
  int end = block0 < kv_length ? p.queries(b) : first;  // no work for keys that no query may see
  if constexpr (Args::kWindow) end = min(end, block0 + kKvKeys - 1 + p.window);
  const SharedQueries<D> keys{LaneAddress<D>::row_major(k_tile), warp_row};
  const SharedQueries<D> values{LaneAddress<D>::row_major(v_tile), warp_row};
  const auto q_rows = LaneAddress<D>::chunk_major(q_tile), dout_rows = LaneAddress<D>::chunk_major(dout_tile);
  const auto q_columns = LaneAddress<D>::row_major(q_tile), dout_columns = LaneAddress<D>::row_major(dout_tile);
  QueryBlock block{0, first};
  if (first < end) load_block(0, block);
  int stage = 0;
#pragma unroll 1
  for (; block.row < end; block = block.next(p, first, end), stage ^= 1) {
    if constexpr (Args::kScores) numbers.store(lse, delta, stage);
    wait_copies<0>();
    __syncthreads();  // this stage has arrived, the other one is free
    const QueryBlock next = block.next(p, first, end);
    if (next.row < end) load_block(stage ^ 1, next);
    if (key_row0 >= kv_length) continue;
#pragma unroll 1
    for (int piece = 0; piece < kKvQueries; piece += 16 * NT) {
      const int query0 = block.row + piece, row = stage * kKvQueries + piece;
      if (query0 >= p.queries(b) || before_keys(p, tile, query0 + 16 * NT, key_row0)) continue;
      if (before_window(tile, query0, key_row0 + 16)) continue;
      float s[1][2 * NT][4], dp[1][2 * NT][4];
      scores<D, 1, NT>(s, keys, q_rows, row);
      adjust_scores<true>(s, tile, key_row0 - query0);
      scores<D, 1, NT>(dp, values, dout_rows, row);
      if (key_row0 + 16 <= tile.limit(query0) && all_in_window(tile, query0 + 16 * NT - 1, key_row0))
        transposed_gradients<NT, false, Drop>(s, dp, lse + row, delta + row, key_row0, query0, tile, mask,
                                              p.keep_scale);
      else
        transposed_gradients<NT, true, Drop>(s, dp, lse + row, delta + row, key_row0, query0, tile, mask,
                                             p.keep_scale);
      accumulate<D, NT>(dv, s, dout_columns, row);
      accumulate<D, NT>(dk, dp, q_columns, row);
    }
  }
  wait_copies<0>();
  store_fragments<1, D / 8>(dk, p.scale, key_head_of<bf16>(p, p.dk, b, kv_head), p.dk.row_stride, key_row0, p.keys(b),
                            0, p.head_size);
  store_fragments<1, D / 8>(dv, 1.0f, key_head_of<bf16>(p, p.dv, b, kv_head), p.dv.row_stride, key_row0, p.keys(b), 0,
                            p.head_size);
}

/// Computes dq += dS K for one tile of 32 queries and one block of 32 keys. numbers: lse, then delta, of the block's
/// queries.
template <int D, bool Masked, bool Drop, class Tile>
__device__ __forceinline__ void dq_step(float (&dq)[2][D / 8][4], const SharedQueries<D>& q,
                                        const SharedQueries<D>& dout, uint32_t k_tile, uint32_t v_tile,
                                        const char* numbers, int key_row, int key0, const Tile& tile,
                                        const DropoutMask& mask, float keep_scale) {
  float s[2][4][4], dp[2][4][4];
  scores<D, 2, 2>(s, q, LaneAddress<D>::chunk_major(k_tile), key_row);
  adjust_scores<false>(s, tile, key0 - tile.row0);
  scores<D, 2, 2>(dp, dout, LaneAddress<D>::chunk_major(v_tile), key_row);
  float lse[2][2], delta[2][2];
  row_numbers<2>(lse, numbers, 0, q.row);
  row_numbers<2>(delta, numbers, kQRows * 4, q.row);
  score_gradients<2, 2, Masked, Drop>(s, dp, lse, delta, key0, tile, mask, keep_scale);
  const auto keys = LaneAddress<D>::row_major(k_tile);
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    uint32_t a[2][4];
#pragma unroll
    for (int m = 0; m < 2; ++m) pack_a(a[m], dp[m][2 * n], dp[m][2 * n + 1]);
    multiply_rows<D, 2>(dq, a, keys, key_row + 16 * n);
  }
}

template <int D>
constexpr int dq_bytes() {
  return (2 * kQRows + 4 * kQKeys) * pitch<D> * 2 + 2 * kQRows * 4;
}

template <int D, bool Drop, class Args>
__global__ void __launch_bounds__(kQThreads, 2) dq_kernel(const Args p) {
  constexpr uint32_t kBlockBytes = kQKeys * pitch<D> * 2;
  extern __shared__ __align__(1024) char shared[];
  const int block = p.causal ? static_cast<int>(grid_tiles<Args>() - 1 - block_tile<Args>())
                             : static_cast<int>(block_tile<Args>());
  const int q0 = block * kQRows, h = block_head<Args>(), b = static_cast<int>(blockIdx.z);
  const int warp_row = static_cast<int>(threadIdx.x) / 32 * 32;
  const int queries = p.queries(b);
  if (Args::kPacked && q0 >= queries) return;
  const int kv_length = p.kv_length(b), row0 = q0 + warp_row;
  const uint32_t q_tile = shared_address(shared), dout_tile = q_tile + kQRows * pitch<D> * 2;
  const uint32_t k_tile = dout_tile + kQRows * pitch<D> * 2, v_tile = k_tile + 2 * kBlockBytes;
  const bf16* k = key_head_of<const bf16>(p, p.k, b, p.kv_head(h));
  const bf16* v = key_head_of<const bf16>(p, p.v, b, p.kv_head(h));
  const auto load_block = [&](int j) {
    const uint32_t stage = static_cast<uint32_t>(j & 1) * kBlockBytes;
    const int key0 = j * kQKeys;
    load_rows<Args, D, kQThreads, kQKeys>(k_tile + stage, k, p.k.row_stride, key0, kv_length, p);
    load_rows<Args, D, kQThreads, kQKeys>(v_tile + stage, v, p.v.row_stride, key0, kv_length, p);
    commit_copies();
  };
  const DropoutMask mask(p, b);
  float* numbers = reinterpret_cast<float*>(shared + (2 * kQRows + 4 * kQKeys) * pitch<D> * 2);
  float* table = numbers + 2 * kQRows;
  if constexpr (Args::kScores) load_relative<kQThreads>(table, p, h);
  const auto tile =
      tile_of(p, {row0, kv_length, p.causal, p.scale * kLog2e, element_row(p, h, row0), p.query_elements}, table, b);
  const int first = first_block(tile, q0, kQKeys);
  load_rows<Args, D, kQThreads, kQRows>(q_tile, head_of<const bf16>(p, p.q, b, h), p.q.row_stride, q0, queries, p);
  load_rows<Args, D, kQThreads, kQRows>(dout_tile, head_of<const bf16>(p, p.dout, b, h), p.dout.row_stride, q0,
                                        queries, p);
  load_block(first);
  const SharedQueries<D> q{LaneAddress<D>::row_major(q_tile), warp_row};
  const SharedQueries<D> dout{LaneAddress<D>::row_major(dout_tile), warp_row};
  load_lse<kQThreads>(numbers, p, b, h, q0, kQRows);
  const float* deltas = p.delta + (static_cast<int64_t>(b) * p.heads + h) * p.query_tokens;
  for (int i = static_cast<int>(threadIdx.x); i < kQRows; i += kQThreads)
    numbers[kQRows + i] = q0 + i < queries ? deltas[q0 + i] : 0.0f;
  float dq[2][D / 8][4] = {};
  const int blocks = (tile.limit(q0 + kQRows - 1) + kQKeys - 1) / kQKeys;
  const int end = row0 < queries ? tile.limit(row0 + 31) : 0, full = tile.limit(row0);
#pragma unroll 1
  for (int j = first; j < blocks; ++j) {
    wait_copies<0>();
    __syncthreads();  // block j has arrived, the other stage is free
    if (j + 1 < blocks) load_block(j + 1);
    const int key0 = j * kQKeys, key_row = (j & 1) * kQKeys;
    if (key0 + kQKeys <= full && all_in_window(tile, row0 + 31, key0))
      dq_step<D, false, Drop>(dq, q, dout, k_tile, v_tile, reinterpret_cast<const char*>(numbers), key_row, key0, tile,
                              mask, p.keep_scale);
    else if (key0 < end && !before_window(tile, row0, key0 + kQKeys))
      dq_step<D, true, Drop>(dq, q, dout, k_tile, v_tile, reinterpret_cast<const char*>(numbers), key_row, key0, tile,
                              mask, p.keep_scale);
  }
  wait_copies<0>();
  store_fragments<2, D / 8>(dq, p.scale, head_of<bf16>(p, p.dq, b, h), p.dq.row_stride, row0, queries, 0,
                            p.head_size);
}

inline int blocks_of(int tokens, int rows) { return (tokens + rows - 1) / rows; }

template <int Columns>
void launch_deltas(const PackedParams& p, cudaStream_t stream) {
  const dim3 grid = grid_of<PackedParams>(blocks_of(p.query_tokens, kDeltaRows), p.heads, p.batch);
  delta_kernel<Columns><<<grid, kDeltaThreads, 0, stream>>>(p);
  BLIPFT_CUDA_LAUNCHED("attention delta");
}

/// Launches the three kernels; returns false if a block needs too much shared memory.
template <int D, bool Drop, class Args>
bool backward(const Args& p, cudaStream_t stream) {
  int kv = kv_bytes<D>(), dq = dq_bytes<D>();
  if constexpr (Args::kScores) kv += p.table_bytes(), dq += p.table_bytes();
  if (std::max(kv, dq) > p.shared_bytes) return false;
  launch_deltas<128>(PackedParams{static_cast<const Params&>(p)}, stream);
  allow_shared_memory(&dkv_kernel<D, Drop, Args>, kv);
  const dim3 key_blocks = grid_of<Args>(blocks_of(p.kv_tokens, kKvKeys), p.kv_heads, p.batch);
  dkv_kernel<D, Drop, Args><<<key_blocks, kKvThreads, kv, stream>>>(p);
  BLIPFT_CUDA_LAUNCHED("attention dk, dv");
  allow_shared_memory(&dq_kernel<D, Drop, Args>, dq);
  const dim3 query_blocks = grid_of<Args>(blocks_of(p.query_tokens, kQRows), p.heads, p.batch);
  dq_kernel<D, Drop, Args><<<query_blocks, kQThreads, dq, stream>>>(p);
  BLIPFT_CUDA_LAUNCHED("attention dq");
  return true;
}

}  // namespace backward_long
}  // namespace blipft::attention
