// The gradient of relative positions for bf16 with mma.sync: for each offset between key and query, the sum of dS (the
// gradient of the scores) over all elements with this offset, over all samples.
//
// A block processes tiles of 64 queries and 64 keys of a head, ordered by the offset between key tile and query tile:
// all samples and query tiles of an offset before the next offset. The dS of tiles with equal offset are added element
// by element, in registers, and their diagonals are summed once per offset. S and dP are recomputed: 2 products in
// addition to the 7 of backward_long.cuh. Blocks divide a head's tiles evenly in this order, so that the sums always
// have the same addends in the same order.
#include <cuda_runtime.h>

#include "cuda/attention/backward.cuh"
#include "cuda/device/cuda_check.h"

namespace blipft::attention {
namespace {

constexpr int kTile = 64, kWarps = kTile / 16, kThreads = kWarps * 32, kPitch = kTile + 1, kDiagonals = 2 * kTile - 1;

/// The sequence of tiles of a head: sample b, query tile `tile`, and the key tile `offset` tiles after it.
struct Walk {
  int query_tiles, key_tiles, batch, offset, b, tile;
  int64_t left;

  __device__ __forceinline__ int first() const { return max(0, -offset); }
  __device__ __forceinline__ int end() const { return min(query_tiles, key_tiles - offset); }
  __device__ __forceinline__ int query0() const { return tile * kTile; }
  __device__ __forceinline__ int key0() const { return (tile + offset) * kTile; }

  template <class Args>
  __device__ __forceinline__ static Walk part(const Args& p, int64_t part, int64_t parts) {
    Walk w{(p.query_tokens + kTile - 1) / kTile, (p.kv_tokens + kTile - 1) / kTile, p.batch};
    int64_t all = 0;
    const int last = p.causal ? 0 : w.key_tiles - 1;
    for (w.offset = 1 - w.query_tiles; w.offset <= last; ++w.offset) all += int64_t{w.batch} * (w.end() - w.first());
    int64_t at = all * part / parts;
    w.left = all * (part + 1) / parts - at;
    for (w.offset = 1 - w.query_tiles; w.offset < last; ++w.offset) {
      const int64_t here = int64_t{w.batch} * (w.end() - w.first());
      if (at < here) break;
      at -= here;
    }
    const int of_sample = w.end() - w.first();
    w.b = static_cast<int>(at / of_sample);
    w.tile = w.first() + static_cast<int>(at % of_sample);
    return w.existing(p);
  }
  /// Returns this tile or the first tile after it that has queries and keys.
  template <class Args>
  __device__ __forceinline__ Walk existing(const Args& p) const {
    Walk w = *this;
    while (w.left > 0 && (w.query0() >= p.queries(w.b) || w.key0() >= p.kv_length(w.b))) w.step();
    return w;
  }
  template <class Args>
  __device__ __forceinline__ Walk next(const Args& p) const {
    Walk w = *this;
    w.step();
    return w.existing(p);
  }
  __device__ __forceinline__ void step() {
    --left;
    if (++tile < end()) return;
    if (++b == batch) b = 0, ++offset;
    tile = first();
  }
};

/// Byte offsets in shared memory.
template <int D>
struct Layout {
  static constexpr int Tile = kTile * pitch<D> * 2;
  static constexpr int Q = 0, Dout = Tile, K = 2 * Tile, V = 3 * Tile, Stage = 4 * Tile;  // two stages
  static constexpr int Numbers = 2 * Stage;                       // lse [2][kTile], delta [2][kTile]
  static constexpr int Diagonals = Numbers + 4 * kTile * 4;       // [kDiagonals + 1]
  static constexpr int Table = Diagonals + 2 * kTile * 4;         // relative scores, then their gradients
  static_assert(kTile * kPitch * 4 <= Stage, "sums of a tile lie in a stage");
};

/// Adds the diagonals of a tile of gradients to sums[column]; the tile's first key is `offset` after its first query.
/// Offsets at and beyond either end share a column, to which one thread adds them.
__device__ __forceinline__ void add_diagonals(const ScoreParams& p, const float* gradients, int offset,
                                              float* diagonals, float* sums) {
  const int t = static_cast<int>(threadIdx.x);
  if (t < kDiagonals) {
    const int skew = t - (kTile - 1), own = offset + skew;  // key minus query, in the tile and in total
    float sum = 0;
    for (int r = max(0, -skew); r < min(kTile, kTile - skew); ++r) sum += gradients[r * kPitch + r + skew];
    if (own > -p.behind && own < p.ahead) sums[own + p.behind] += sum;
    diagonals[t] = sum;
  }
  __syncthreads();
  if (t > 0) return;
  for (int d = 0; d < kDiagonals; ++d) {
    const int at = offset + d - (kTile - 1);
    if (at <= -p.behind) sums[0] += diagonals[d];
    else if (at >= p.ahead) sums[p.behind + p.ahead] += diagonals[d];
  }
}

// Processes a range of a head's tiles. It is one function because the sums stay in shared memory from tile to tile.
template <int D, bool Drop>
__global__ void __launch_bounds__(kThreads, D > 64 ? 1 : Drop ? 2 : 3)
    relative_kernel(const ScoreParams p, float* partials) {
  using L = Layout<D>;
  extern __shared__ __align__(1024) char shared[];
  const uint32_t base = shared_address(shared);
  const int h = static_cast<int>(blockIdx.y), warp_row = static_cast<int>(threadIdx.x) / 32 * 16;
  float* table = reinterpret_cast<float*>(shared + L::Table);
  float* sums = table + p.columns();
  load_relative<kThreads>(table, p, h);
  for (int c = static_cast<int>(threadIdx.x); c < p.columns(); c += kThreads) sums[c] = 0;
  float* lse_numbers = reinterpret_cast<float*>(shared + L::Numbers);
  StepNumbers<kTile> numbers;  // of the tile that was requested last
  const auto load = [&](int stage, const Walk& walk) {
    const uint32_t to = base + static_cast<uint32_t>(stage * L::Stage);
    const int b = walk.b, q0 = walk.query0(), k0 = walk.key0(), queries = p.queries(b), keys = p.kv_length(b);
    const auto load_tile = [&](int place, const bf16* head, const View& view, int row0, int rows) {
      load_rows<ScoreParams, D, kThreads, kTile>(to + place, head, view.row_stride, row0, rows, p);
    };
    load_tile(L::Q, head_of<const bf16>(p, p.q, b, h), p.q, q0, queries);
    load_tile(L::Dout, head_of<const bf16>(p, p.dout, b, h), p.dout, q0, queries);
    load_tile(L::K, key_head_of<const bf16>(p, p.k, b, h), p.k, k0, keys);
    load_tile(L::V, key_head_of<const bf16>(p, p.v, b, h), p.v, k0, keys);
    commit_copies();
    numbers.fetch(p, b, h, q0);
  };
  Walk walk = Walk::part(p, blockIdx.x, gridDim.x);
  float acc[8][4] = {};
  if (walk.left > 0) load(0, walk);
  int stage = 0;
#pragma unroll 1
  for (; walk.left > 0; stage ^= 1) {
    const Walk next = walk.next(p);
    numbers.store(lse_numbers, lse_numbers + 2 * kTile, stage);
    wait_copies<0>();
    __syncthreads();  // this stage has arrived, the other one is free
    if (next.left > 0) load(stage ^ 1, next);
    const int row0 = walk.query0() + warp_row, key0 = walk.key0();
    const auto tile = tile_of(p, {row0, p.kv_length(walk.b), p.causal, 0, element_row(p, h, row0), p.query_elements}, table);
    if (row0 < p.queries(walk.b) && key0 < tile.limit(row0 + 15) && !before_window(tile, row0, key0 + kTile)) {
      const uint32_t at = base + static_cast<uint32_t>(stage * L::Stage);
      float s[1][8][4], dp[1][8][4], lse[1][2], delta[1][2];
      scores<D, 1, 4>(s, SharedQueries<D>{LaneAddress<D>::row_major(at + L::Q), warp_row},
                      LaneAddress<D>::chunk_major(at + L::K), 0);
      adjust_scores<false>(s, tile, key0 - row0);
      scores<D, 1, 4>(dp, SharedQueries<D>{LaneAddress<D>::row_major(at + L::Dout), warp_row},
                      LaneAddress<D>::chunk_major(at + L::V), 0);
      row_numbers<1>(lse, shared, L::Numbers + stage * kTile * 4, warp_row);
      row_numbers<1>(delta, shared, L::Numbers + (2 + stage) * kTile * 4, warp_row);
      score_gradients<1, 4, true, Drop>(s, dp, lse, delta, key0, tile, DropoutMask(p, walk.b), p.keep_scale);
#pragma unroll
      for (int n = 0; n < 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) acc[n][e] += dp[0][n][e];
    }
    if (next.left <= 0 || next.offset != walk.offset) {
      __syncthreads();  // all threads have read this stage
      float* gradients = reinterpret_cast<float*>(shared + stage * L::Stage);
      const int lane = static_cast<int>(threadIdx.x) & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
      for (int n = 0; n < 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          gradients[(warp_row + e / 2 * 8 + g) * kPitch + 8 * n + 2 * t + e % 2] = acc[n][e];
          acc[n][e] = 0;
        }
      __syncthreads();
      add_diagonals(p, gradients, walk.offset * kTile, reinterpret_cast<float*>(shared + L::Diagonals), sums);
    }
    walk = next;
  }
  __syncthreads();
  float* out = partials + (static_cast<int64_t>(blockIdx.x) * p.heads + h) * p.columns();
  for (int c = static_cast<int>(threadIdx.x); c < p.columns(); c += kThreads) out[c] = sums[c];
}

template <int D, bool Drop>
bool launch(const ScoreParams& p, float* partials, int splits, cudaStream_t stream) {
  const int bytes = Layout<D>::Table + 2 * p.table_bytes();
  if (bytes > p.shared_bytes) return false;
  allow_shared_memory(&relative_kernel<D, Drop>, bytes);
  const dim3 grid(static_cast<unsigned>(splits), static_cast<unsigned>(p.heads));
  relative_kernel<D, Drop><<<grid, kThreads, bytes, stream>>>(p, partials);
  BLIPFT_CUDA_LAUNCHED("relative positions' gradient");
  return true;
}

}  // namespace

bool mma_relative_gradient(const Params& params, float* partials, int splits, cudaStream_t stream) {
  const ScoreParams p = score_params(params);
  if (p.group > 1 || p.head_size > 128) return false;  // no model has them
  if (p.head_size <= 64)
    return p.dropout ? launch<64, true>(p, partials, splits, stream) : launch<64, false>(p, partials, splits, stream);
  return p.dropout ? launch<128, true>(p, partials, splits, stream) : launch<128, false>(p, partials, splits, stream);
}

}  // namespace blipft::attention
