// Attention forward for bf16 with mma.sync, the `streaming` kernel: one block per 16 * MT * Warps queries, K and V in
// blocks of `Keys` keys, double-buffered; Q in shared memory. forward.cu selects it, and score_forward.cu if scores
// change before the softmax.
#pragma once

#include <cuda_runtime.h>

#include "cuda/attention/forward.cuh"
#include "cuda/device/cuda_check.h"

namespace blipft::attention {

// One function: queries, running maxima and sums stay in registers from one block of keys to the next.
template <int D, int MT, bool Drop, class Args, int Warps = 4, int Keys = 64>
__global__ void __launch_bounds__(Warps * 32, D > 128 ? 1 : 2) streaming_kernel(const Args p) {
  constexpr int kThreads = Warps * 32, kQueries = Warps * 16 * MT;
  constexpr uint32_t kBlockBytes = Keys * pitch<D> * 2;
  extern __shared__ __align__(1024) char shared[];
  const int block = p.causal ? static_cast<int>(grid_tiles<Args>() - 1 - block_tile<Args>())
                             : static_cast<int>(block_tile<Args>());
  const int q0 = block * kQueries, h = block_head<Args>(), b = static_cast<int>(blockIdx.z);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int kv_length = p.kv_length(b);
  if (Args::kPacked && q0 >= p.queries(b)) return;  // a short packed sample
  const uint32_t q_tile = shared_address(shared), k_tile = q_tile + kQueries * pitch<D> * 2;
  const uint32_t v_tile = k_tile + 2 * kBlockBytes;
  const bf16* k = key_head_of<const bf16>(p, p.k, b, p.kv_head(h));
  const bf16* v = key_head_of<const bf16>(p, p.v, b, p.kv_head(h));
  const auto load_block = [&](int j) {
    const uint32_t stage = static_cast<uint32_t>(j & 1) * kBlockBytes;
    const int row0 = j * Keys;
    load_rows<Args, D, kThreads, Keys>(k_tile + stage, k, p.k.row_stride, row0, kv_length, p);
    load_rows<Args, D, kThreads, Keys>(v_tile + stage, v, p.v.row_stride, row0, kv_length, p);
    commit_copies();
  };
  const DropoutMask mask(p, b);
  const int row0 = q0 + warp * 16 * MT;
  float* table = reinterpret_cast<float*>(shared + kQueries * pitch<D> * 2 + 4 * kBlockBytes);
  if constexpr (Args::kScores) load_relative<kThreads>(table, p, h);
  const auto tile =
      tile_of(p, {row0, kv_length, p.causal, p.scale * kLog2e, element_row(p, h, row0), p.query_elements}, table, b);
  const int blocks = (tile.limit(q0 + kQueries - 1) + Keys - 1) / Keys;
  const int first = first_block(tile, q0, Keys);
  const int end = row0 < p.queries(b) ? tile.limit(row0 + 16 * MT - 1) : 0, full = tile.limit(row0);
  load_rows<Args, D, kThreads, kQueries>(q_tile, head_of<const bf16>(p, p.q, b, h), p.q.row_stride, q0, p.queries(b),
                                         p);
  const SharedQueries<D> q{LaneAddress<D>::row_major(q_tile), warp * 16 * MT};
  const auto keys = LaneAddress<D>::chunk_major(k_tile), values = LaneAddress<D>::row_major(v_tile);
  RowState<D, MT> state;
  state.clear();
  load_block(first);
#pragma unroll 1
  for (int j = first; j < blocks; ++j) {
    if constexpr (Args::kScores) {
      wait_copies<0>();
      __syncthreads();  // block j has arrived, the other stage is free
      if (j + 1 < blocks) load_block(j + 1);
    } else {
      if (j + 1 < blocks) {
        load_block(j + 1);
        wait_copies<1>();
      } else {
        wait_copies<0>();
      }
      __syncthreads();
    }
    const int key0 = j * Keys, key_row = (j & 1) * Keys;
    if (key0 + Keys <= full && all_in_window(tile, row0 + 16 * MT - 1, key0))
      forward_step<D, MT, Keys / 16, false, Drop>(state, q, keys, values, key_row, key0, tile, mask);
    else
#pragma unroll 1
      for (int part = 0; part < Keys && key0 + part < end; part += 32)
        if (!before_window(tile, row0, key0 + part + 32))
          forward_step<D, MT, 2, true, Drop>(state, q, keys, values, key_row + part, key0 + part, tile, mask);
    if constexpr (!Args::kScores) __syncthreads();
  }
  wait_copies<0>();
  store_rows<D, MT>(state, p, b, h, row0);
}

/// Returns false if a block needs too much shared memory.
template <int D, int MT, bool Drop, int Warps = 4, int Keys = 64, class Args>
bool launch_streaming(const Args& p, cudaStream_t stream) {
  constexpr int kQueries = Warps * 16 * MT, kBytes = (kQueries + 4 * Keys) * pitch<D> * 2;
  int bytes = kBytes;
  if constexpr (Args::kScores) {
    bytes += p.table_bytes();
    if (bytes > p.shared_bytes) return false;
  }
  allow_shared_memory(&streaming_kernel<D, MT, Drop, Args, Warps, Keys>, bytes);
  const dim3 grid = grid_of<Args>((p.query_tokens + kQueries - 1) / kQueries, p.heads, p.batch);
  streaming_kernel<D, MT, Drop, Args, Warps, Keys><<<grid, Warps * 32, bytes, stream>>>(p);
  BLIPFT_CUDA_LAUNCHED("streaming attention forward");
  return true;
}

}  // namespace blipft::attention
