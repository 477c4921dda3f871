// Attention forward for f32 with TF32 products (see tf32.cuh). A block has 64 queries of a (sample, head), 16 per warp,
// whose fragments are in registers and rounded once. Keys and values come in blocks of 32, double-buffered; the softmax
// is that of forward.cuh.
//   head size 64:  34 KB of shared memory, 164 registers: three blocks per multiprocessor
//   head size 128: 66 KB of shared memory, 224 registers: two blocks per multiprocessor
// For packed samples, blocks beyond the queries of their sample exit at once. With a causal mask the blocks with the
// most keys come first.
#include <cuda_runtime.h>

#include "cuda/attention/tf32.cuh"
#include "cuda/device/cuda_check.h"

namespace blipft::attention {
namespace {

using namespace tf32;

constexpr int kKeys = 32;

/// Blocks per multiprocessor, limited by registers.
template <int D, bool Drop>
constexpr int kBlocks = D <= 64 && !Drop ? 3 : 2;

/// Two blocks each of K and V.
template <int D>
constexpr int kTileFloats = kKeys * kPitch<D>;
template <int D>
constexpr int kBytes = 4 * kTileFloats<D> * 4;

template <int D, bool Masked, bool Drop>
__device__ __forceinline__ void step(RowState<D, 1>& state, const RegisterRows<D>& q, const LaneRows<D>& keys,
                                     const float* values, int key_row, int key0, const RowTile& tile,
                                     const DropoutMask& mask) {
  constexpr int NT = kKeys / 16;
  float s[1][2 * NT][4];
  row_products<D>(s, q, keys, key_row);
  if (Masked) mask_scores<1, NT>(s, tile, key0);
  raise_base<D, 1, NT>(state, s, tile.scale_log2);
  probabilities<D, 1, NT, Masked, Drop>(state, s, key0, tile, mask);
  add_products<D>(state.o, s, values, key_row);
}

template <int D>
__device__ __forceinline__ void finish(const RowState<D, 1>& state, const PackedParams& p, int b, int h, int row0) {
  const int lane = static_cast<int>(threadIdx.x) & 31, g = lane >> 2, t = lane & 3, rows = p.queries(b);
  float* lse = p.lse + (static_cast<int64_t>(b) * p.heads + h) * p.query_tokens;
  float factor[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = quad_sum(state.sum[0][half]);
    const int row = row0 + 8 * half + g;
    factor[half] = sum > 0 ? p.keep_scale / sum : 0.0f;
    if (t == 0 && row < rows) lse[row] = sum > 0 ? (state.base[0][half] + log2f(sum)) * kLn2 : -INFINITY;
  }
  store_products<D>(state.o, factor, head_of<float>(p, p.out, b, h), p.out.row_stride, row0, rows, p.head_size);
}

template <int D, bool Drop>
__global__ void __launch_bounds__(kThreads, (kBlocks<D, Drop>)) forward_kernel(const PackedParams p) {
  extern __shared__ __align__(16) float shared[];
  const int block = p.causal ? static_cast<int>(gridDim.x - 1 - blockIdx.x) : static_cast<int>(blockIdx.x);
  const int q0 = block * kRows, h = static_cast<int>(blockIdx.y), b = static_cast<int>(blockIdx.z);
  const int queries = p.queries(b), kv_length = p.kv_length(b);
  if (q0 >= queries) return;
  float *k_tile = shared, *v_tile = k_tile + 2 * kTileFloats<D>;
  const float* k = head_of<const float>(p, p.k, b, p.kv_head(h));
  const float* v = head_of<const float>(p, p.v, b, p.kv_head(h));
  const auto load_block = [&](int j) {
    const int stage = (j & 1) * kTileFloats<D>, key0 = j * kKeys;
    load_rows<D, kKeys>(k_tile + stage, k, p.k.row_stride, key0, kv_length, p.head_size);
    load_rows<D, kKeys>(v_tile + stage, v, p.v.row_stride, key0, kv_length, p.head_size);
    commit_copies();
  };
  load_block(0);
  const int row0 = q0 + static_cast<int>(threadIdx.x) / 32 * 16;
  const DropoutMask mask(p, b);
  const RowTile tile{row0, kv_length, p.causal, p.scale * kLog2e, element_row(p, h, row0), p.query_elements};
  const int blocks = (tile.limit(q0 + kRows - 1) + kKeys - 1) / kKeys;
  const int end = row0 < queries ? tile.limit(row0 + 15) : 0, full = tile.limit(row0);
  RegisterRows<D> q;
  q.load(head_of<const float>(p, p.q, b, h), p.q.row_stride, row0, queries, p.head_size);
  const auto keys = LaneRows<D>::as_b(k_tile);
  const float* values = lane_columns<D>(v_tile);
  RowState<D, 1> state;
  state.clear();
#pragma unroll 1
  for (int j = 0; j < blocks; ++j) {
    const int key0 = j * kKeys, key_row = (j & 1) * kKeys;
    wait_copies<0>();
    round_rows<D, kKeys>(k_tile + key_row * kPitch<D>);
    round_rows<D, kKeys>(v_tile + key_row * kPitch<D>);
    __syncthreads();  // block j has arrived for all threads, the other stage is free
    if (j + 1 < blocks) load_block(j + 1);
    if (key0 + kKeys <= full) step<D, false, Drop>(state, q, keys, values, key_row, key0, tile, mask);
    else if (key0 < end) step<D, true, Drop>(state, q, keys, values, key_row, key0, tile, mask);
  }
  wait_copies<0>();
  finish<D>(state, p, b, h, row0);
}

template <int D, bool Drop>
bool forward(const Params& params, cudaStream_t stream) {
  const PackedParams p{params};
  if (kBytes<D> > p.shared_bytes) return false;
  allow_shared_memory(&forward_kernel<D, Drop>, kBytes<D>);
  const dim3 grid(static_cast<unsigned>((p.query_tokens + kRows - 1) / kRows), static_cast<unsigned>(p.heads),
                  static_cast<unsigned>(p.batch));
  forward_kernel<D, Drop><<<grid, kThreads, kBytes<D>, stream>>>(p);
  BLIPFT_CUDA_LAUNCHED("TF32 attention forward");
  return true;
}

}  // namespace

bool tf32_forward(const Params& p, cudaStream_t stream) {
  if (p.dropout) return p.head_size <= 64 ? forward<64, true>(p, stream) : forward<128, true>(p, stream);
  if (p.head_size <= 64) return forward<64, false>(p, stream);
  return p.head_size <= 96 ? forward<96, false>(p, stream) : forward<128, false>(p, stream);
}

}  // namespace blipft::attention
