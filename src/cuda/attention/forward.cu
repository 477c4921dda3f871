// Attention forward for bf16: two kernels around the warp steps of forward.cuh, with 4 warps per block.
//
// resident: one block per (sample, head), with K and V completely in shared memory (two blocks per SM: 113 KB each).
//   They arrive in four cp.async groups, and the first query tiles start when the first group has arrived. Warps
//   process query tiles of 16 * MT rows one after the other without further barriers; with a causal mask the longest
//   tiles go first, in snake order, so that the warps end together. Query fragments are loaded once per tile.
//     MT = 2 (two blocks per SM): every K and V fragment feeds 4 mma; with MT = 1 it would feed 2, and shared-memory
//       bandwidth would be the limit. For many queries: the vision tower's 257 x 257, head size 88 -> 96. 257 = 8 * 32
//       + 1: the last row is not a separate tile (which would cost 4 warps the time of one more tile, 1/3 of all);
//       the four warps divide its keys instead and merge their partial sums through shared memory.
//     MT = 1 (four blocks per SM): short sequences (language model 82 x 82, Q-Former), bound by latency and device
//       memory; and all dropout.
// streaming (streaming.cuh): one block per 64 * MT queries, K and V in blocks of 64 keys, double-buffered; Q in shared
//   memory. For sequences that do not fit, e.g. 2048 x 128.
// With a window (WindowParams), the streaming kernel starts at the first key block that the block's queries see; masks
// do the rest. Grids and shared memory are for the maximum rows of a sample. For packed samples (PackedParams) a block
// processes only the keys and query tiles of its sample, so short samples of the language model cost less.
#include <cuda_runtime.h>

#include <algorithm>

#include "cuda/attention/streaming.cuh"
#include "cuda/device/cuda_check.h"

namespace blipft::attention {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * 32, kGroups = 4;
constexpr int kResidentBytes = 113 << 10;  // two blocks per SM, each with 1 KB reserved by the system

constexpr int round16(int x) { return (x + 15) / 16 * 16; }

/// Waits for cp.async groups in order. Every warp of the block passes the same kGroups barriers, each where it needs
/// them.
struct Arrivals {
  int rows_per_group;
  int ready = 0;

  __device__ __forceinline__ void need_group(int group) {
    while (ready <= group) {
      switch (ready) {
        case 0: wait_copies<kGroups - 1>(); break;
        case 1: wait_copies<kGroups - 2>(); break;
        case 2: wait_copies<kGroups - 3>(); break;
        default: wait_copies<0>(); break;
      }
      // Not __syncthreads(), which all warps would have to call at the same point.
      asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
      ++ready;
    }
  }
  __device__ __forceinline__ void need_rows(int end) {
    if (ready < kGroups) need_group((end - 1) / rows_per_group);
  }
};

template <int D, int MT, bool Drop, class Args>
__device__ __forceinline__ void resident_tile(const Args& p, const RowTile& tile, const DropoutMask& mask,
                                              uint32_t k_tile, uint32_t v_tile, Arrivals& arrivals) {
  const SampleHead own = sample_head(p);
  RegisterQueries<D, MT> q;
  q.load(head_of<const bf16>(p, p.q, own.b, own.h), p.q.row_stride, tile.row0, p.queries(own.b), p.head_size);
  const auto keys = LaneAddress<D>::chunk_major(k_tile), values = LaneAddress<D>::row_major(v_tile);
  RowState<D, MT> state;
  state.clear();
  const int end = tile.limit(tile.row0 + 16 * MT - 1), full = tile.limit(tile.row0);
  int j = 0;
#pragma unroll 1
  for (; j + 32 <= full; j += 32) {
    arrivals.need_rows(j + 32);
    forward_step<D, MT, 2, false, Drop>(state, q, keys, values, j, j, tile, mask);
  }
#pragma unroll 1
  for (; j < end; j += 16) {
    arrivals.need_rows(j + 16);
    forward_step<D, MT, 1, true, Drop>(state, q, keys, values, j, j, tile, mask);
  }
  const SampleHead same = sample_head(p);
  store_rows<D, MT>(state, p, same.b, same.h, tile.row0);
}

/// The last rows (at most 16) of a block without causal mask and packing: each warp processes every kWarps-th step of
/// keys; then the partial outputs are merged through the shared memory of K and V.
template <int D>
__device__ __forceinline__ void shared_tail(const Params& p, const RowTile& tile, const DropoutMask& mask,
                                            char* shared, uint32_t k_tile, uint32_t v_tile, int b, int h) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) & 31;
  const int g = lane >> 2, t = lane & 3;
  RegisterQueries<D, 1> q;
  q.load(head_of<const bf16>(p, p.q, b, h), p.q.row_stride, tile.row0, p.query_tokens, p.head_size);
  const auto keys = LaneAddress<D>::chunk_major(k_tile), values = LaneAddress<D>::row_major(v_tile);
  RowState<D, 1> state;
  state.clear();
#pragma unroll 1
  for (int j = warp * 16; j < tile.kv_length; j += kWarps * 16)
    forward_step<D, 1, 1, true, false>(state, q, keys, values, j, j, tile, mask);
  __syncthreads();  // K and V are not needed any more
  const int rows = p.query_tokens - tile.row0;
  float* outputs = reinterpret_cast<float*>(shared);                // [kWarps][rows][D]
  float2* sums = reinterpret_cast<float2*>(outputs + kWarps * rows * D);  // [kWarps][rows] of base, sum
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = 8 * half + g;
    const float sum = quad_sum(state.sum[0][half]);
    if (row >= rows) continue;
    float* target = outputs + (warp * rows + row) * D + 2 * t;
#pragma unroll
    for (int n = 0; n < D / 8; ++n)
      *reinterpret_cast<float2*>(target + 8 * n) = make_float2(state.o[0][n][2 * half], state.o[0][n][2 * half + 1]);
    if (t == 0) sums[warp * rows + row] = make_float2(state.base[0][half], sum);
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < rows * D; i += kThreads) {
    const int row = i / D, column = i - row * D, query = tile.row0 + row;
    if (column >= p.head_size) continue;
    float base = -INFINITY, sum = 0, out = 0;
    for (int w = 0; w < kWarps; ++w) base = fmaxf(base, sums[w * rows + row].x);
    for (int w = 0; w < kWarps; ++w) {
      const float2 part = sums[w * rows + row];
      const float factor = part.y > 0 ? exp2_approx(part.x - base) : 0.0f;
      sum = fmaf(part.y, factor, sum);
      out = fmaf(outputs[(w * rows + row) * D + column], factor, out);
    }
    head_of<bf16>(p, p.out, b, h)[query * p.out.row_stride + column] =
        __float2bfloat16_rn(sum > 0 ? out * p.keep_scale / sum : 0.0f);
    if (column == 0)
      p.lse[(static_cast<int64_t>(b) * p.heads + h) * p.query_tokens + query] =
          sum > 0 ? (base + log2f(sum)) * kLn2 : -INFINITY;
  }
}

constexpr int resident_blocks(int d, int mt) { return mt == 2 ? 2 : (d > 96 ? 3 : 4); }

/// `tiles`: number of whole query tiles, for samples that are not packed.
template <int D, int MT, bool Drop, class Args>
__global__ void __launch_bounds__(kThreads, resident_blocks(D, MT)) resident_kernel(const Args p, int tiles) {
  extern __shared__ __align__(1024) char shared[];
  const auto [b, h] = sample_head(p);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int kv_length = p.kv_length(b), key_rows = round16(kv_length);
  const uint32_t k_tile = shared_address(shared), v_tile = k_tile + static_cast<uint32_t>(key_rows * pitch<D> * 2);
  Arrivals arrivals{max(32, (key_rows + kGroups * 32 - 1) / (kGroups * 32) * 32)};
  const bf16* k = head_of<const bf16>(p, p.k, b, p.kv_head(h));
  const bf16* v = head_of<const bf16>(p, p.v, b, p.kv_head(h));
#pragma unroll 1
  for (int group = 0; group < kGroups; ++group) {
    const int row0 = group * arrivals.rows_per_group, rows = min(arrivals.rows_per_group, key_rows - row0);
    load_tile_async<D, kThreads>(k_tile, k, p.k.row_stride, row0, rows, 0, kv_length, p.head_size, p.wide);
    load_tile_async<D, kThreads>(v_tile, v, p.v.row_stride, row0, rows, 0, kv_length, p.head_size, p.wide);
    commit_copies();
  }
  const DropoutMask mask(p, b);
  RowTile tile{0, kv_length, p.causal, p.scale * kLog2e, 0, p.query_elements};
  const auto own_tiles = [&] {
    return Args::kPacked ? (p.queries(sample_head(p).b) + 16 * MT - 1) / (16 * MT) : tiles;
  };
#pragma unroll 1
  for (int round = 0; round * kWarps < own_tiles(); ++round) {
    const int count = own_tiles();
    const int place = round * kWarps + (round & 1 ? kWarps - 1 - warp : warp);
    if (place >= count) continue;
    tile.row0 = (p.causal ? count - 1 - place : place) * 16 * MT;
    tile.element_row0 = element_row(p, h, tile.row0);
    resident_tile<D, MT, Drop>(p, tile, mask, k_tile, v_tile, arrivals);
  }
  arrivals.need_group(kGroups - 1);
  if constexpr (MT == 2 && !Args::kPacked) {
    if (tiles * 16 * MT >= p.query_tokens) return;
    tile.row0 = tiles * 16 * MT;
    shared_tail<D>(p, tile, mask, shared, k_tile, v_tile, b, h);
  }
}

template <int D, int MT, bool Drop, class Args>
bool launch_resident(const Args& p, cudaStream_t stream) {
  const int64_t all_keys = int64_t{2} * round16(p.kv_tokens) * pitch<D> * 2;
  const int maximum = std::min(kResidentBytes, p.shared_bytes);
  if (all_keys > maximum) return false;
  const int bytes = static_cast<int>(all_keys);
  constexpr int kRows = 16 * MT;
  int tiles = (p.query_tokens + kRows - 1) / kRows;
  const int tail = p.query_tokens % kRows, merge_bytes = kWarps * tail * (D + 2) * 4;
  if (MT == 2 && !Args::kPacked && !p.causal && tail > 0 && tail <= 16 && (tiles - 1) % kWarps == 0 &&
      merge_bytes <= bytes)
    --tiles;
  allow_shared_memory(&resident_kernel<D, MT, Drop, Args>, maximum);
  resident_kernel<D, MT, Drop, Args><<<static_cast<unsigned>(p.batch * p.heads), kThreads, bytes, stream>>>(p, tiles);
  BLIPFT_CUDA_LAUNCHED("resident attention forward");
  return true;
}

template <int D, class Args>
bool forward(const Args& p, cudaStream_t stream) {
  if (p.query_tokens <= 96) return launch_resident<D, 1, false>(p, stream) || launch_streaming<D, 2, false>(p, stream);
  return launch_resident<D, 2, false>(p, stream) || launch_streaming<D, 2, false>(p, stream);
}

template <int D>
bool forward_dropout(const Params& p, cudaStream_t stream) {
  return launch_resident<D, 1, true>(p, stream) || launch_streaming<D, 1, true>(p, stream);
}

}  // namespace

bool mma_forward_window(const Params& params, cudaStream_t stream) {
  if (params.dropout) return false;        // no model combines both
  const WindowParams p{PackedParams{params}};
  if (p.head_size <= 64) return launch_streaming<64, 2, false>(p, stream);
  return p.head_size <= 96 ? launch_streaming<96, 2, false>(p, stream) : launch_streaming<128, 2, false>(p, stream);
}

bool mma_forward(const Params& p, cudaStream_t stream) {
  if (p.dropout && p.group > 1) return false;  // no model combines both
  if (p.dropout && p.starts) return false;     // handled by mma_score_forward
  if (p.dropout) {
    if (p.head_size <= 64) return forward_dropout<64>(p, stream);
    return p.head_size <= 96 ? forward_dropout<96>(p, stream) : forward_dropout<128>(p, stream);
  }
  if (p.packed_or_grouped()) {
    const PackedParams packed{p};
    if (p.head_size <= 64) return forward<64>(packed, stream);
    if (p.head_size <= 80) return forward<80>(packed, stream);
    return p.head_size <= 96 ? forward<96>(packed, stream) : forward<128>(packed, stream);
  }
  if (p.head_size <= 32) return forward<32>(p, stream);
  if (p.head_size <= 64) return forward<64>(p, stream);
  if (p.head_size <= 80) return forward<80>(p, stream);
  if (p.head_size <= 88) return forward<88>(p, stream);
  if (p.head_size <= 96) return forward<96>(p, stream);
  return p.head_size <= 112 ? forward<112>(p, stream) : forward<128>(p, stream);
}

}  // namespace blipft::attention
