// Attention backward for bf16 and few queries: one block per (sample, head) computes dQ, dK and dV in one pass.
//
// Q and dO stay in shared memory; keys are processed in blocks of KB. Each warp owns one tile of 16 * MT queries and
// keeps its dQ in registers for the whole kernel. For each key block:
//   phase 1  each warp: S = Q K^T, dP = dO V^T, P, dS for its queries; dQ += dS K with dS from registers;
//            P and dS go to shared memory as bf16
//   phase 2  dK = dS^T Q and dV = P^T dO of the block, completely: the contraction runs over all queries, so nothing
//            is accumulated across key blocks and no atomics are needed; meanwhile the next K and V arrive
// This takes 5 matrix products per key block, the minimum: separate dQ and dK/dV kernels need 7.
// lse and delta are in shared memory; delta is computed here, from O in flight and dO in shared memory.
//
// With Sums, the block also computes the column sums of its dQ, dK and dV for the bias gradient. It sums the f32 values
// of dQ. Without dropout, the other sums follow from the softmax, whose rows sum to one:
//   sum over keys of dV = sum over keys, queries of P dO = sum over queries of dO
//   sum over keys of dK = scale sum over queries of (sum over keys of dS) Q = 0, for dS = P (dP - rowsum(P dP))
// With dropout, a warp sums its rows of dK and dV by shuffles when it stores them, into shared memory that no other
// warp writes at the same time. Finally the block adds the sums in a fixed order and writes its columns of the sample's
// row of p.dbias_partials.
//
// For packed samples (PackedParams), a block processes only the rows of its sample; the layout of shared memory depends
// on the maximum rows, so that the addresses need no registers.
//
//   tall: 8 warps with 32 queries each, KB = 64: up to 256 + 16 queries, head size <= 96. 198 KB at head size 88, one
//     block per SM. For the vision tower's 257 queries = 8 * 32 + 1: rows after the 256th are a "tail" of up to 16
//     rows, too few for a warp: in phase 1 the warps divide its key columns (one m16n16 product each), and its dQ is
//     summed in shared memory. The 257th key gives a key block of 16, whose columns phase 2 divides among all warps.
//   flat: 6 warps with 16 queries each, KB = 96: up to 96 queries, any head size. 99 KB at head size 80: two blocks
//     per SM. For the language model (one key block for up to 96 tokens) and the Q-Former.
#include <cuda_runtime.h>

#include "cuda/attention/backward_short.cuh"
#include "cuda/attention/column_sums.cuh"
#include "cuda/device/cuda_check.h"

namespace blipft::attention {
namespace {

using namespace short_backward;

/// One phase 1 step of a warp: 16 * MT queries at Q row tile.row0, 16 * NT keys from column 16 * column16 of the block.
/// Stores P and dS in rows from store_row on of p_tile and ds_tile. dq += dS K.
template <class L, int MT, int NT, bool Masked, bool Drop>
__device__ __forceinline__ void phase1_step(const L& layout, const char* memory, float (&dq)[MT][L::D / 8][4],
                                            int column16, int key0, uint32_t p_tile, uint32_t ds_tile, int store_row,
                                            const RowTile& tile, const DropoutMask& mask, float keep_scale) {
  constexpr int D = L::D;
  const uint32_t shared = shared_address(memory);
  const SharedQueries<D> q{LaneAddress<D>::row_major(shared), tile.row0};
  const SharedQueries<D> dout{LaneAddress<D>::row_major(shared + layout.dout()), tile.row0};
  const uint32_t k_tile = shared + layout.k(), v_tile = shared + layout.v();
  float s[MT][2 * NT][4], dp[MT][2 * NT][4];
  scores<D, MT, NT>(s, q, LaneAddress<D>::chunk_major(k_tile), 16 * column16);
  scores<D, MT, NT>(dp, dout, LaneAddress<D>::chunk_major(v_tile), 16 * column16);
  float lse[MT][2], delta[MT][2];
  row_numbers<MT>(lse, memory, layout.lse(), tile.row0);
  row_numbers<MT>(delta, memory, layout.delta(), tile.row0);
  score_gradients<MT, NT, Masked, Drop>(s, dp, lse, delta, key0 + 16 * column16, tile, mask, keep_scale);
  const auto p_store = LaneAddress<L::KB>::row_major(p_tile), ds_store = LaneAddress<L::KB>::row_major(ds_tile);
  const auto keys = LaneAddress<D>::row_major(k_tile);
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    uint32_t a[MT][4];
#pragma unroll
    for (int m = 0; m < MT; ++m) {
      pack_a(a[m], s[m][2 * n], s[m][2 * n + 1]);
      stmatrix4(p_store.at(store_row + 16 * m, column16 + n), a[m]);
      pack_a(a[m], dp[m][2 * n], dp[m][2 * n + 1]);
      stmatrix4(ds_store.at(store_row + 16 * m, column16 + n), a[m]);
    }
    multiply_rows<D, MT>(dq, a, keys, 16 * (column16 + n));
  }
}

/// Phase 1 of the tail rows: warp w processes the w-th 16 keys of the block and adds its dQ to its own sum.
template <class L, bool Drop>
__device__ __forceinline__ void phase1_tail(const L& layout, char* shared, int key0, int keys, RowTile tile,
                                            const DropoutMask& mask, const Params& p, int h) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) & 31;
  const int g = lane >> 2, t = lane & 3;
  if (warp * 16 >= keys) return;
  tile.row0 = layout.main_rows;
  tile.element_row0 = element_row(p, h, tile.row0);
  float dq[1][L::D / 8][4] = {};
  const uint32_t base = shared_address(shared);
  phase1_step<L, 1, 1, true, Drop>(layout, shared, dq, warp, key0, base + layout.tail_p(),
                                   base + layout.tail_ds(), 0, tile, mask, p.keep_scale);
  float* sum = reinterpret_cast<float*>(shared + layout.tail_dq()) + warp * layout.tail_rows * L::P + 2 * t;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = 8 * half + g;
    if (row >= layout.tail_rows) continue;
#pragma unroll
    for (int n = 0; n < L::D / 8; ++n) {
      float2* place = reinterpret_cast<float2*>(sum + row * L::P + 8 * n);
      const float2 x = *place;
      *place = make_float2(x.x + dq[0][n][2 * half], x.y + dq[0][n][2 * half + 1]);
    }
  }
}

/// One k16 step of a phase 2 unit: acc += A^T B with A = P or dS, B = dO or Q, at the given rows of both.
template <class L>
__device__ __forceinline__ void phase2_step(float (&acc)[2][2 * L::Columns][4], const LaneAddress<L::KB>& weights,
                                            int weight_row, int key_column, const LaneAddress<L::D>& rows, int row,
                                            int first_column) {
  uint32_t a[2][4];
#pragma unroll
  for (int m = 0; m < 2; ++m) ldmatrix4_trans(a[m], weights.at(weight_row, key_column + m));
#pragma unroll
  for (int c = 0; c < L::Columns; ++c) {
    if (L::Columns16 % (L::Split * L::Parts) != 0 && first_column + c >= L::Columns16) continue;
    uint32_t b[4];
    ldmatrix4_trans(b, rows.at(row, first_column + c));
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      mma(acc[m][2 * c], a[m], b[0], b[1]);
      mma(acc[m][2 * c + 1], a[m], b[2], b[3]);
    }
  }
}

/// Computes dK and dV of one key block: warp = (matrix, 32 keys, part of the columns). Adds the column sums to `sums`
/// if kept. After the last key block nothing is copied into the memory of K and V: a warp that owns whole rows then
/// assembles them there, in the same rows of the tile, and stores them row by row.
template <class L, bool Sums, class Args>
__device__ __forceinline__ void phase2(const char* memory, float* sums, const Args& p, int key0, int keys,
                                       int kv_length) {
  constexpr int kUnits = L::Warps / 2;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const bool is_dk = warp >= kUnits;
  const int unit = is_dk ? warp - kUnits : warp;
  const int tile32 = unit / L::Split;
  if (tile32 * 32 >= keys) return;
  const L layout = own_layout<L>(p);
  const bool staged = L::Split == 1 && key0 + L::KB >= kv_length;
  const uint32_t shared = shared_address(memory);
  const auto rows = LaneAddress<L::D>::row_major(shared + (is_dk ? 0 : layout.dout()));
  const auto weights = LaneAddress<L::KB>::chunk_major(shared + (is_dk ? layout.ds() : layout.p()));
  const auto tail = LaneAddress<L::KB>::chunk_major(shared + (is_dk ? layout.tail_ds() : layout.tail_p()));
  const View& view = is_dk ? p.dk : p.dv;
#pragma unroll 1
  for (int part = 0; part < L::Parts; ++part) {
    const int first_column = (unit % L::Split * L::Parts + part) * L::Columns;
    float acc[2][2 * L::Columns][4] = {};
    // Causal: queries before the first of these 32 keys do not see them, and nothing was written for them.
#pragma unroll 1
    for (int row = p.causal ? key0 + tile32 * 32 : 0; row < layout.main_rows; row += 16)
      phase2_step<L>(acc, weights, row, tile32 * 2, rows, row, first_column);
    if (layout.tail_rows) phase2_step<L>(acc, tail, 0, tile32 * 2, rows, layout.main_rows, first_column);
    if (staged)
      stage_fragments<L::D>(acc, is_dk ? p.scale : 1.0f,
                            LaneAddress<L::D>::row_major(shared + (is_dk ? layout.k() : layout.v())), tile32 * 32,
                            first_column);
    else
      store_fragments(acc, is_dk ? p.scale : 1.0f, own_head<bf16>(p, view), view.row_stride, key0 + tile32 * 32,
                      kv_length, first_column * 16, p.head_size);
    if constexpr (Sums) {
      float2 own[2 * L::Columns];
      row_sums<2, 2 * L::Columns>(own, acc, key0 + tile32 * 32, kv_length);
      add_column_sums(own, is_dk ? p.scale : 1.0f, sums + (2 * tile32 + (is_dk ? 0 : 1)) * L::P + first_column * 16, 8,
                      L::P / 8 - 2 * first_column);
    }
  }
  if (staged) {
    __syncwarp();
    store_tile_rows<L::D, 32>(memory + (is_dk ? layout.k() : layout.v()), tile32 * 32,
                              own_head<bf16>(p, view), view.row_stride, key0 + tile32 * 32, kv_length, p.head_size,
                              p.wide);
  }
}

/// Phase 2 for a block of at most 16 keys: warp = (matrix, every (Warps / 2)-th group of 8 columns).
template <class L, bool Sums, class Args>
__device__ __forceinline__ void phase2_narrow(uint32_t shared, float* sums, const Args& p, int key0, int kv_length) {
  constexpr int kParts = L::Warps / 2, kTiles = (L::P / 8 + kParts - 1) / kParts;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) & 31;
  const bool is_dk = warp >= kParts;
  const int part = is_dk ? warp - kParts : warp;
  const L layout = own_layout<L>(p);
  const uint32_t rows = shared + (is_dk ? 0 : layout.dout());
  float acc[kTiles][1][1][4] = {};
  const auto step = [&](const LaneAddress<L::KB>& weights, int weight_row, int row) {
    uint32_t a[4];
    ldmatrix4_trans(a, weights.at(weight_row, 0));
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const int chunk = part + i * kParts;
      if (L::P / 8 % kParts != 0 && chunk >= L::P / 8) continue;
      uint32_t b2[2];
      ldmatrix2_trans(b2, rows + tile_offset<L::D>(row + (lane & 15), chunk));
      mma(acc[i][0][0], a, b2[0], b2[1]);
    }
  };
  const auto weights = LaneAddress<L::KB>::chunk_major(shared + (is_dk ? layout.ds() : layout.p()));
#pragma unroll 1
  for (int row = p.causal ? key0 : 0; row < layout.main_rows; row += 16) step(weights, row, row);
  if (layout.tail_rows)
    step(LaneAddress<L::KB>::chunk_major(shared + (is_dk ? layout.tail_ds() : layout.tail_p())), 0, layout.main_rows);
  const View& view = is_dk ? p.dk : p.dv;
#pragma unroll
  for (int i = 0; i < kTiles; ++i)
    store_fragments<1, 1>(acc[i], is_dk ? p.scale : 1.0f, own_head<bf16>(p, view), view.row_stride, key0, kv_length,
                          8 * (part + i * kParts), p.head_size);
  if constexpr (Sums) {
    float2 own[kTiles];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      float2 one[1];
      row_sums<1, 1>(one, acc[i], key0, kv_length);
      own[i] = one[0];
    }
    add_column_sums(own, is_dk ? p.scale : 1.0f, sums + (is_dk ? 0 : 1) * L::P + 8 * part, 8 * kParts,
                    (L::P / 8 - part + kParts - 1) / kParts);
  }
}

/// Phase 1 of a warp's own tile for one key block.
template <class L, bool Drop>
__device__ __forceinline__ void phase1(const L& layout, char* shared, float (&dq)[L::MT][L::D / 8][4], int key0,
                                       int keys, const RowTile& tile, const DropoutMask& mask, float keep_scale) {
  const uint32_t base = shared_address(shared);
  // Causal: up to the 32 keys that contain the tile's last query (phase 2 reads whole pieces of 32 x 32).
  const int end = tile.causal ? min(keys, (tile.row0 + L::TileRows + 31) / 32 * 32 - key0) : keys;
  const int full = min(tile.limit(tile.row0) - key0, keys);
  int j = 0;
#pragma unroll 1
  for (; j + 32 <= full; j += 32)
    phase1_step<L, L::MT, 2, false, Drop>(layout, shared, dq, j / 16, key0, base + layout.p(),
                                          base + layout.ds(), tile.row0, tile, mask, keep_scale);
#pragma unroll 1
  for (; j < end; j += 16)
    phase1_step<L, L::MT, 1, true, Drop>(layout, shared, dq, j / 16, key0, base + layout.p(),
                                         base + layout.ds(), tile.row0, tile, mask, keep_scale);
}

/// Writes the block's column sums to p.dbias_partials. `sums`, with dropout, are the complete sums of dK and dV. The
/// threads have passed a barrier since the last use of P and dS. tail_dq contains the tail's rows, each written by the
/// thread that reads it here.
template <class L, bool Drop, class Args>
__device__ __forceinline__ void write_column_sums(char* shared, const float* sums,
                                                  const float (&dq)[L::MT][L::D / 8][4], const Args& p) {
  const auto [b, h] = sample_head(p);
  const L layout = own_layout<L>(p);
  constexpr int kChunks = L::P / 8;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, row0 = warp * L::TileRows;
  const int tiles = layout.main_rows / L::TileRows, groups = layout.dout_groups();
  float* dq_sums = reinterpret_cast<float*>(shared + layout.p());
  float* dout_sums = dq_sums + tiles * L::P;
  if (row0 < layout.main_rows) {
    float* target = dq_sums + warp * L::P;
    for (int i = thread & 31; i < L::P; i += 32) target[i] = 0;
    __syncwarp();
    float2 own[L::D / 8];
    row_sums<L::MT, L::D / 8>(own, dq, row0, min(p.queries(b), layout.main_rows));
    add_column_sums(own, p.scale, target, 8, L::D / 8);
  }
  if (!Drop && thread / kChunks < groups) {
    const int group = thread / kChunks, chunk = thread % kChunks;
    float total[8] = {};
    for (int row = group; row < layout.query_rows(); row += groups) {  // rows that do not exist are zeros
      const uint4 pack = *reinterpret_cast<const uint4*>(shared + layout.dout() + tile_offset<L::D>(row, chunk));
      const uint32_t words[4] = {pack.x, pack.y, pack.z, pack.w};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        total[2 * e] += __uint_as_float(words[e] << 16);
        total[2 * e + 1] += __uint_as_float(words[e] & 0xffff0000u);
      }
    }
#pragma unroll
    for (int e = 0; e < 8; ++e) dout_sums[group * L::P + 8 * chunk + e] = total[e];
  }
  __syncthreads();
  const float* tail_dq = reinterpret_cast<const float*>(shared + layout.tail_dq());
  const int64_t width = static_cast<int64_t>(p.heads) * p.head_size;
  float* partials = p.dbias_partials + b * 3 * width + h * p.head_size;
  for (int i = thread; i < 3 * L::P; i += L::Threads) {
    const int matrix = i / L::P, column = i - matrix * L::P;
    if (column >= p.head_size) continue;
    float sum = 0;
    if (matrix == 0) {
      for (int w = 0; w < tiles; ++w) sum += dq_sums[w * L::P + column];
      for (int row = 0; row < layout.tail_rows; ++row) sum += tail_dq[row * L::P + column];
    } else if (Drop) {
      for (int tile = 0; tile < L::KB / 32; ++tile) sum += sums[(2 * tile + matrix - 1) * L::P + column];
    } else if (matrix == 2 && p.kv_length(b) > 0) {  // else no query sees a key
      for (int group = 0; group < groups; ++group) sum += dout_sums[group * L::P + column];
    }
    partials[matrix * width + column] = sum;
  }
}

/// Stores dQ of the tail's rows from the warps' parts in tail_dq; with Sums, each sum stays in tail_dq.
template <class L, bool Sums, class Args>
__device__ __forceinline__ void store_tail_dq(const L& layout, float* tail_dq, bf16* dq_head, const Args& p) {
  for (int i = static_cast<int>(threadIdx.x); i < layout.tail_rows * L::P; i += L::Threads) {
    const int row = i / L::P, column = i - row * L::P;
    float sum = 0;
    for (int part = 0; part < L::KB / 16; ++part) sum += tail_dq[part * layout.tail_rows * L::P + i];
    if (column < p.head_size)
      dq_head[(layout.main_rows + row) * p.dq.row_stride + column] = __float2bfloat16_rn(sum * p.scale);
    if constexpr (Sums) tail_dq[i] = sum * p.scale;  // read only by this thread before the next barrier
  }
}

// The kernel has 66 lines: its phases share memory, and each barrier separates uses that must not overlap.
template <class L, bool Drop, bool Sums, class Args>
__global__ void __launch_bounds__(L::Threads, L::BlocksPerSm) short_backward_kernel(const Args p) {
  constexpr int D = L::D;
  extern __shared__ __align__(1024) char shared[];
  const L layout = own_layout<L>(p);
  const uint32_t base = shared_address(shared);
  const auto [b, h] = sample_head(p);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int kv_length = p.kv_length(b);
  const bf16* k = head_of<const bf16>(p, p.k, b, h);
  const bf16* v = head_of<const bf16>(p, p.v, b, h);
  const auto load_keys = [&](int key0) {  // rows up to the next multiple of 16; zeros after kv_length
    const int rows = min(L::KB, (kv_length - key0 + 15) / 16 * 16);
    load_tile_async<D, L::Threads>(base + layout.k(), k, p.k.row_stride, key0, rows, key0, kv_length, p.head_size,
                                  p.wide);
    load_tile_async<D, L::Threads>(base + layout.v(), v, p.v.row_stride, key0, rows, key0, kv_length, p.head_size,
                                  p.wide);
    commit_copies();
  };
  load_tile_async<D, L::Threads>(base, head_of<const bf16>(p, p.q, b, h), p.q.row_stride, 0,
                                 layout.query_rows(), 0, p.queries(b), p.head_size, p.wide);
  load_tile_async<D, L::Threads>(base + layout.dout(), head_of<const bf16>(p, p.dout, b, h), p.dout.row_stride,
                                 0, layout.query_rows(), 0, p.queries(b), p.head_size, p.wide);
  load_keys(0);
  Deltas<L> deltas;
  deltas.load(p, b, h);
  load_lse<L::Threads>(reinterpret_cast<float*>(shared + layout.lse()), p, b, h, 0, layout.query_rows());
  float* tail_dq = reinterpret_cast<float*>(shared + layout.tail_dq());
  for (int i = static_cast<int>(threadIdx.x); i < L::KB / 16 * layout.tail_rows * L::P; i += L::Threads) tail_dq[i] = 0;
  constexpr bool kKeySums = Sums && Drop;
  __shared__ __align__(16) float sums[kKeySums ? L::SumFloats : 1];
  if constexpr (kKeySums)
    for (int i = static_cast<int>(threadIdx.x); i < L::SumFloats; i += L::Threads) sums[i] = 0;
  const DropoutMask mask(p, b);
  const int row0 = warp * L::TileRows;
  const RowTile tile{row0, kv_length, p.causal, p.scale * kLog2e, element_row(p, h, row0), p.query_elements};
  wait_copies<0>();
  __syncthreads();
  deltas.reduce(reinterpret_cast<float*>(shared + layout.delta()), shared + layout.dout(), layout.query_rows());
  __syncthreads();
  float dq[L::MT][D / 8][4] = {};
#pragma unroll 1
  for (int key0 = 0; key0 < kv_length; key0 += L::KB) {
    const int keys = min(L::KB, kv_length - key0);
    if (row0 < layout.main_rows) phase1<L, Drop>(layout, shared, dq, key0, keys, tile, mask, p.keep_scale);
    if (layout.tail_rows) phase1_tail<L, Drop>(layout, shared, key0, keys, tile, mask, p, h);
    __syncthreads();  // P and dS are complete; K and V are free
    if (key0 + L::KB < kv_length) load_keys(key0 + L::KB);
    if (keys <= 16) phase2_narrow<L, kKeySums>(base, sums, p, key0, kv_length);
    else phase2<L, kKeySums>(shared, sums, p, key0, keys, kv_length);
    wait_copies<0>();
    __syncthreads();  // the next K and V have arrived; P and dS are free
  }
  const SampleHead own = sample_head(p);
  bf16* dq_head = head_of<bf16>(p, p.dq, own.b, own.h);
  if (row0 < layout.main_rows) {  // Q is not read any more: the warp's rows of dQ replace its rows of Q
    stage_fragments<D>(dq, p.scale, LaneAddress<D>::row_major(base), row0, 0);
    __syncwarp();
    store_tile_rows<D, L::TileRows>(shared, row0, dq_head, p.dq.row_stride, row0, p.queries(own.b), p.head_size,
                                    p.wide);
  }
  store_tail_dq<L, Sums>(layout, tail_dq, dq_head, p);
  zero_rows<L::Threads>(head_of<bf16>(p, p.dk, own.b, own.h), p.dk.row_stride, kv_length, p.keys(own.b), p.head_size);
  zero_rows<L::Threads>(head_of<bf16>(p, p.dv, own.b, own.h), p.dv.row_stride, kv_length, p.keys(own.b), p.head_size);
  if constexpr (Sums) write_column_sums<L, Drop>(shared, sums, dq, p);
}

template <class L, bool Drop, bool Sums, class Args>
bool launch_kernel(const Args& p, cudaStream_t stream) {
  const L layout(p.query_tokens);
  const int bytes = layout.bytes();
  if (layout.tail_rows > 16 || (p.causal && layout.tail_rows)) return false;
  if (bytes + (Sums && Drop ? L::SumBytes : 0) > p.shared_bytes) return false;
  allow_shared_memory(&short_backward_kernel<L, Drop, Sums, Args>, bytes);
  const unsigned blocks = static_cast<unsigned>(p.batch * p.heads);
  short_backward_kernel<L, Drop, Sums, Args><<<blocks, L::Threads, bytes, stream>>>(p);
  BLIPFT_CUDA_LAUNCHED("short attention backward");
  return true;
}

template <class L, bool Drop, class Args>
bool launch(const Args& p, cudaStream_t stream) {
  return p.dbias_partials ? launch_kernel<L, Drop, true>(p, stream) : launch_kernel<L, Drop, false>(p, stream);
}

template <int D, bool Drop, class Args>
bool flat(const Args& p, cudaStream_t stream) {
  return p.query_tokens <= 96 && launch<Layout<D, 6, 1, 96, 1, D <= 80 ? 2 : 1, false>, Drop>(p, stream);
}
template <int D, class Args>
bool tall(const Args& p, cudaStream_t stream) {
  return launch<Layout<D, 8, 2, 64, 2, 1, true>, false>(p, stream);
}

/// Fewer head sizes than without packing, because each is a separate set of kernels.
bool packed_backward(const PackedParams& p, cudaStream_t stream) {
  const int d = p.head_size;
  if (p.query_tokens <= 96) {
    if (d <= 64) return flat<64, false>(p, stream);
    if (d <= 80) return flat<80, false>(p, stream);
    return d <= 96 ? flat<96, false>(p, stream) : flat<128, false>(p, stream);
  }
  if (d <= 64) return tall<64>(p, stream);
  if (d <= 80) return tall<80>(p, stream);
  return d <= 96 && tall<96>(p, stream);
}

}  // namespace

bool mma_backward_short(const Params& p, cudaStream_t stream) {
  if (p.query_tokens > 256 + 16 || p.group > 1) return false;  // a block has the queries of one head
  const int d = p.head_size;
  if (p.dropout && p.starts) return false;
  if (p.dropout) {
    if (d <= 64) return flat<64, true>(p, stream);
    return d <= 96 ? flat<96, true>(p, stream) : flat<128, true>(p, stream);
  }
  if (p.starts) return packed_backward(PackedParams{p}, stream);
  if (p.query_tokens <= 96) {
    if (d <= 32) return flat<32, false>(p, stream);
    if (d <= 64) return flat<64, false>(p, stream);
    if (d <= 80) return flat<80, false>(p, stream);
    if (d <= 96) return flat<96, false>(p, stream);
    return d <= 112 ? flat<112, false>(p, stream) : flat<128, false>(p, stream);
  }
  if (d <= 64) return tall<64>(p, stream);
  if (d <= 80) return tall<80>(p, stream);
  if (d <= 88) return tall<88>(p, stream);
  return d <= 96 && tall<96>(p, stream);
}

}  // namespace blipft::attention
