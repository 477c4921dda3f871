// Attention forward for bf16 with warpgroup products for heads of 129 to 256 (Gemma) and any number of tokens,
// optionally with windows, caps, relative positions and packing. wgmma_wide.cuh describes the structure.
//
// A block has 128 queries, 64 per warpgroup, and processes 64 keys per step: 192 KB. A step's scores are started
// together with the product of the last step's probabilities with V, and only the scores are waited for: the
// exponentials are computed during the product. V therefore arrives one step after K.
#include <cuda_runtime.h>

#include "cuda/attention/wgmma_wide.cuh"
#include "cuda/device/cuda_check.h"

namespace blipft::attention {
namespace {

using namespace wgmma_wide;

constexpr int kQueries = 128, kKeys = 64;

/// Byte offsets in shared memory.
struct Layout {
  static constexpr int Q = 0, Own = tile_bytes(64);                            // [warpgroup]
  static constexpr int K = 2 * Own, Block = tile_bytes(kKeys), V = K + 2 * Block;  // [2]
  static constexpr int Fence = V + 2 * Block, Table = Fence + 16;
};

#ifdef BLIPFT_WGMMA_CODE

/// The softmax state of rows g and g + 8 of a warp's 16 queries, like RowState.
struct Softmax {
  float base[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};

  /// Converts scores to probabilities relative to the base, which is updated if scores exceed it by more than kSlack.
  /// Returns true if it was updated for any row of the warp; `shrink` is then the factor of the output.
  template <int N>
  __device__ __forceinline__ bool take(float (&s)[N][4], float scale_log2, float (&shrink)[2]) {
    const float top[2] = {row_top(s, 0, scale_log2), row_top(s, 1, scale_log2)};
    const bool raise = __any_sync(0xffffffffu, top[0] > base[0] + kSlack || top[1] > base[1] + kSlack);
    if (raise) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float now = fmaxf(base[half], top[half]);
        shrink[half] = now == -INFINITY ? 1.0f : exp2_approx(base[half] - now);
        base[half] = now;
        sum[half] *= shrink[half];
      }
    }
    // A row that has not seen a key has base -inf; its scores are -inf too and must become 0, not NaN.
    const float from[2] = {base[0] == -INFINITY ? 0.0f : base[0], base[1] == -INFINITY ? 0.0f : base[1]};
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        s[n][e] = exp2_approx(fmaf(s[n][e], scale_log2, -from[e / 2]));
        sum[e / 2] += s[n][e];
      }
    return raise;
  }
};

/// Stores out = o / sum and lse of a warp's 16 queries from row0 on.
__device__ __forceinline__ void store_queries(Rows64& o, const Softmax& state, const ScoreParams& p, int b, int h,
                                              int row0) {
  const int g = (fresh_thread() & 31) >> 2, rows = p.queries(b);
  float* lse = p.lse + (static_cast<int64_t>(b) * p.heads + h) * p.query_tokens;
  float factor[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = quad_sum(state.sum[half]);
    const int row = row0 + 8 * half + g;
    factor[half] = sum > 0 ? 1.0f / sum : 0.0f;
    if ((fresh_thread() & 3) == 0 && row < rows)
      lse[row] = sum > 0 ? (state.base[half] + log2f(sum)) * kLn2 : -INFINITY;
  }
  o.scale_rows(factor);
  o.store(1.0f, head_of<bf16>(p, p.out, b, h), p.out.row_stride, row0, rows, p.head_size);
}

#endif  // BLIPFT_WGMMA_CODE

// The kernel has 100 lines: a loop over keys in five parts, which share the addresses of all tiles.
__global__ void __launch_bounds__(kThreads, 1) wgmma_wide_forward_kernel(const __grid_constant__ ScoreParams p) {
#ifdef BLIPFT_WGMMA_CODE
  using L = Layout;
  extern __shared__ __align__(1024) char memory[];
  const int block = p.causal ? static_cast<int>(grid_tiles<ScoreParams>() - 1 - block_tile<ScoreParams>())
                             : static_cast<int>(block_tile<ScoreParams>());
  const int q0 = block * kQueries, h = block_head<ScoreParams>(), b = static_cast<int>(blockIdx.z);
  const int queries = p.queries(b), kv_length = p.kv_length(b);
  if (q0 >= queries) return;
  const uint32_t shared = shared_address(memory);
  const int group = warpgroup_number(), group_row0 = q0 + 64 * group;
  const int row0 = group_row0 + (fresh_thread() >> 5 & 3) * 16;
  const bf16* k = key_head_of<const bf16>(p, p.k, b, p.kv_head(h));
  const bf16* v = key_head_of<const bf16>(p, p.v, b, p.kv_head(h));
  const auto load_block = [&](int place, const bf16* head, int64_t row_stride, int j) {
    load_tile<kKeys>(shared + static_cast<uint32_t>(place + (j & 1) * L::Block), head, row_stride, j * kKeys,
                     kv_length, p.head_size);
  };
  float* table = reinterpret_cast<float*>(memory + L::Table);
  load_relative<kThreads>(table, p, h);
  const Fence fence{{shared + L::Fence}};
  fence.init();
  const auto tile = tile_of(p, {row0, kv_length, p.causal, p.scale * kLog2e, 0, p.query_elements}, table);
  const int first = first_block(tile, q0, kKeys), blocks = (tile.limit(q0 + kQueries - 1) + kKeys - 1) / kKeys;
  // The range of steps in which this warpgroup sees keys.
  const int seen = first_block(tile, group_row0, kKeys);
  const int end = group_row0 < queries ? (tile.limit(group_row0 + 63) + kKeys - 1) / kKeys : 0;
  load_tile<64>(shared + L::Q, head_of<const bf16>(p, p.q, b, h), p.q.row_stride, q0, queries, p.head_size);
  load_tile<64>(shared + L::Q + L::Own, head_of<const bf16>(p, p.q, b, h), p.q.row_stride, q0 + 64, queries,
                p.head_size);
  load_block(L::K, k, p.k.row_stride, first);
  commit_copies();
  const auto load_next = [&](int j) {
    if (j + 1 < blocks) load_block(L::K, k, p.k.row_stride, j + 1);
    if (j < blocks) load_block(L::V, v, p.v.row_stride, j);
    commit_copies();
  };
  const uint32_t own = uniform(shared + static_cast<uint32_t>(L::Q + group * L::Own));
  Rows64 o;
  o.clear_all();
  Softmax state;
  float s[1][kKeys / 8][4], shrink[2];
  uint32_t weights[kKeys / 16][4];  // probabilities of the preceding step
  const auto start_scores = [&](int j) {
    begin_products();
    multiply_rows_transposed<D, kKeys>(s[0], own, uniform(shared + static_cast<uint32_t>(L::K + (j & 1) * L::Block)));
    commit_products();
  };
  const auto start_output = [&](int j) {
    o.add<kKeys>(weights, uniform(shared + static_cast<uint32_t>(L::V + (j & 1) * L::Block)));
    commit_products();
  };
  const auto take_scores = [&](int j) {
    pin(s[0]);
    adjust_scores<false>(s, tile, j * kKeys - row0);
    if (j * kKeys + kKeys > tile.limit(row0) || !all_in_window(tile, row0 + 15, j * kKeys))
      mask_scores<1, kKeys / 16>(s, tile, j * kKeys);
    return state.take(s[0], tile.scale_log2, shrink);
  };
  int j = first;
#pragma unroll 1
  for (; j < seen && j <= blocks; ++j) {
    wait_for_tiles();
    load_next(j);
  }
  if (seen < end) {
    wait_for_tiles();  // K of this step and V of the last have arrived; those of earlier steps are free
    start_scores(j);
    load_next(j);
    wait_products<0>();
    take_scores(j);
    pack_rows(weights, s[0]);
#pragma unroll 1
    for (++j; j < end; ++j) {
      wait_for_tiles();
      start_scores(j);
      start_output(j - 1);
      load_next(j);
      wait_products<1>();
      const bool raise = take_scores(j);
      pin(s[0]);
      fence.stay_before();
      wait_products<0>();
      o.pin_all();
      if (raise) o.scale_rows(shrink);
      pack_rows(weights, s[0]);
    }
    wait_for_tiles();
    begin_products();
    start_output(j - 1);
    load_next(j);
    wait_products<0>();
    o.pin_all();
    ++j;
  }
#pragma unroll 1
  for (; j <= blocks; ++j) {
    wait_for_tiles();
    load_next(j);
  }
  store_queries(o, state, p, b, h, row0);
#endif
}

}  // namespace

bool wgmma_wide_forward(const ScoreParams& p, cudaStream_t stream) {
  const int bytes = Layout::Table + p.table_bytes();
  if (!fits(p) || bytes > p.shared_bytes) return false;
  allow_shared_memory(&wgmma_wide_forward_kernel, bytes);
  wgmma_wide_forward_kernel<<<grid_of<ScoreParams>((p.query_tokens + kQueries - 1) / kQueries, p.heads, p.batch),
                              kThreads, bytes, stream>>>(p);
  BLIPFT_CUDA_LAUNCHED("wgmma attention forward, wide heads");
  return true;
}

}  // namespace blipft::attention
