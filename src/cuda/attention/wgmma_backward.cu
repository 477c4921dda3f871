// Attention backward for bf16 with warpgroup products: image patches and a class token, without masks or dropout.
//
// One block of four warpgroups per (sample, head), one block per SM, computes dQ, dK and dV in one pass (formulas:
// backward.cuh). Q and dO of the first 256 tokens stay in shared memory; keys come in blocks of 64, in two stages; the
// layout of tiles is that of TMA (wgmma.cuh).
//   phase 1  warpgroup w, queries from 64 w on: S = Q K^T, dP = dO V^T, P and dS in registers; P and dS to shared
//            memory as bf16; dQ += dS K with dS from registers. dQ stays in registers for the whole kernel.
//   phase 2  dV = P^T dO and dK = dS^T Q of the block's 64 keys, completely: one warpgroup for each part (left, right)
//            of each matrix. They are stored through the memory of the block's K and V, while phase 1 of the next block
//            begins.
// This takes 5 products per key block, the minimum, and no atomics.
//
// A vision tower has 257 tokens: 256 patches and the class token. Padding them to 320 would cost a quarter of the time;
// the odd query and the odd key are processed separately:
//   the odd key: narrow products compute its scores with the 256 queries in the last phase 1; its share of dQ is added
//     to the registers in f32; its dK and dV are computed at the end, from the P and dS of all queries.
//   the odd query: in phase 1, one warpgroup per key block processes it with narrow products and adds to its dQ; in
//     phase 2 its share is added to dK and dV in f32.
//
// Column sums for the bias gradient are computed as in backward_short.cu; those of dK are zero, those of dV are dO's.
#include <cuda_runtime.h>

#include "cuda/attention/wgmma_backward.cuh"
#include "cuda/device/cuda_check.h"

namespace blipft::attention {
namespace {

using namespace vision_backward;

/// TMA's view of the operands.
struct Maps {
  TensorMaps q, k, v, dout, dq, dk, dv;
};

#ifdef BLIPFT_WGMMA_CODE

/// Barriers of all warps: weights_made: P and dS of a key block are stored and K has been read; weights_read: P and dS
/// have been read. They replace barriers of the block, so that a warpgroup stores dK or dV and begins its next products
/// without waiting for the others.
template <int D>
__device__ __forceinline__ ThreadBarrier weights_made(uint32_t shared) {
  return {shared + static_cast<uint32_t>(Layout<D>::WeightsMade)};
}
template <int D>
__device__ __forceinline__ ThreadBarrier weights_read(uint32_t shared) {
  return {shared + static_cast<uint32_t>(Layout<D>::WeightsRead)};
}

/// Starts copying key block `block` into its stage. Called by one thread.
template <int D>
__device__ __forceinline__ void load_keys(const Maps& maps, const Task& task, uint32_t shared, int block) {
  using L = Layout<D>;
  const uint32_t stage = shared + static_cast<uint32_t>(L::Stages + (block & 1) * L::Stage);
  const CopyBarrier barrier{shared + static_cast<uint32_t>(L::Barriers + (block & 1) * 8)};
  start_load<D>(maps.k, stage, kKeys, 0, block * kKeys, task.h, task.b, barrier);
  start_load<D>(maps.v, stage + L::KeyTile, kKeys, 0, block * kKeys, task.h, task.b, barrier);
}

/// Announces the bytes that load_head() copies. Called by one thread.
template <int D>
__device__ __forceinline__ void expect_head(const Task& task, uint32_t shared) {
  using L = Layout<D>;
  const CopyBarrier first{shared + L::Barriers}, second{shared + L::Barriers + 8};
  first.init();
  second.init();
  weights_made<D>(shared).init(kWarps);
  weights_read<D>(shared).init(kWarps);
  first.expect(2 * L::QueryTile + L::Stage + (task.odd ? kOddRows * D * 2 : 0));
  second.expect(L::Stage);
  publish_barriers();
}

/// Starts copying Q, dO, the first key block and the odd token's rows. Called by one thread of each warpgroup; they
/// divide the work because each copy instruction takes its thread some time. The second key block is copied after these
/// have arrived, and O goes to registers, because a head's work starts with a wait for its copies.
template <int D>
__device__ __forceinline__ void load_head(const Params& p, const Maps& maps, const Task& task, uint32_t shared,
                                          int warpgroup) {
  using L = Layout<D>;
  const CopyBarrier first{shared + L::Barriers};
  const int row = warpgroup * 64;
  start_load<D>(maps.dout, shared + L::DOut, kQueries, row, row, task.h, task.b, first);
  start_load<D>(maps.q, shared + L::Q, kQueries, row, row, task.h, task.b, first);
  if (warpgroup == 0) load_keys<D>(maps, task, shared, 0);
  if (task.odd && warpgroup == 2) {
#pragma unroll
    for (int i = 0; i < kOddRows; ++i) {
      const View view = i == kOddQ ? p.q : i == kOddK ? p.k : i == kOddV ? p.v : i == kOddOut ? p.out : p.dout;
      start_row(view.head<const bf16>(task.b, task.h, D) + kQueries * view.row_stride,
                shared + static_cast<uint32_t>(L::OddRows + i * L::OddRow), D * 2, first);
    }
  }
}

/// Phase 1 of a warpgroup's 64 queries for one key block.
// The function has 71 lines: a product is in flight while the results of the preceding one are processed; the parts
// overlap.
template <int D>
__device__ __forceinline__ void phase1(RowAccumulator<D>& dq, const Task& task, char* memory, int block) {
  using L = Layout<D>;
  using A = Addresses<D>;
  const uint32_t shared = shared_address(memory);
  float s[8][4];
  uint32_t ds[4][4];
  begin_products();
  {
    const uint32_t k = A::keys(shared, block);
    multiply_transposed<D, 8>(s, A::rows(shared, L::Q), A::rows_right(shared, L::Q), k, k + Tile<D>::right(kKeys));
  }
  commit_products();
  wait_products<0>();
  pin(s);
#pragma unroll
  for (int part = 0; part < 2; ++part) {  // dP of 32 keys at a time, to save registers
    float dp[4][4];
    begin_products();
    {
      const uint32_t v = A::keys(shared, block) + L::KeyTile;
      multiply_transposed<D, 4>(dp, A::rows(shared, L::DOut), A::rows_right(shared, L::DOut), v + part * 32 * 128,
                                v + Tile<D>::right(kKeys) + part * 32 * 64);
    }
    commit_products();
    const int lane = fresh_thread() & 31, row = fresh_thread() / 32 * 16 + (lane & 15);
    const float* numbers = floats(memory, L::Lse) + fresh_thread() / 32 * 16 + (lane >> 2);
    const uint32_t p_row = shared + static_cast<uint32_t>(L::P + row * 128);
    const uint32_t place = static_cast<uint32_t>(((lane >> 4) ^ (row & 7)) << 4);
    if (part == 0) {
      const float lse0 = numbers[0], lse1 = numbers[8];
      weights_read<D>(shared).wait(block - 1);  // phase -1 of the first use counts as complete
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int n = 2 * i; n < 2 * i + 2; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e) s[n][e] = exp2_approx(fmaf(s[n][e], task.scale_log2, -(e < 2 ? lse0 : lse1)));
        uint32_t a[4];
        pack_a(a, s[2 * i], s[2 * i + 1]);
        stmatrix4(p_row + (place ^ static_cast<uint32_t>(i << 5)), a);
      }
    }
    const float delta0 = numbers[(L::Delta - L::Lse) / 4], delta1 = numbers[(L::Delta - L::Lse) / 4 + 8];
    wait_products<0>();
    pin(dp);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int i = 2 * part + j;
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) s[2 * i + n][e] *= dp[2 * j + n][e] - (e < 2 ? delta0 : delta1);
      pack_a(ds[i], s[2 * i], s[2 * i + 1]);
      stmatrix4(p_row + (L::DS - L::P) + (place ^ static_cast<uint32_t>(i << 5)), ds[i]);
    }
  }
  begin_products();
  {
    const uint32_t k = A::keys(shared, block);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      dq.add(ds[i], Operand::left(k), Operand::right(k + Tile<D>::right(kKeys)), i);
  }
  commit_products();
  publish();
  wait_stores_read();  // those of the preceding block
  wait_products<0>();
  dq.pin_all();
  arrive_warp(weights_made<D>(shared));
}

/// Phase 2 of a warpgroup: computes a part of dK or dV.
template <int D, bool Right>
__device__ __forceinline__ void phase2(const Params& p, const Maps& maps, const Task& task, char* memory,
                                       int warpgroup, bool is_dk, int block) {
  using L = Layout<D>;
  constexpr int kTiles = Right ? Tile<D>::kRightColumns / 8 : 8;
  const uint32_t shared = shared_address(memory);
  const uint32_t weights = shared + (is_dk ? L::DS : L::P);
  const uint32_t rows = shared + (is_dk ? L::Q : L::DOut) + (Right ? Tile<D>::right(kQueries) : 0);
  float acc[kTiles][4];
  begin_products();
#pragma unroll
  for (int k = 0; k < kQueries / 16; ++k)
    Wgmma<8 * kTiles>::template ss<1, 1>(
        acc, Operand::left(weights).at(k * kLeftRows16),
        Right ? Operand::right(rows).at(k * kRightRows16) : Operand::left(rows).at(k * kLeftRows16), k > 0);
  commit_products();
  wait_products<0>();
  pin(acc);
  if (task.odd)
    add_odd_rows<kTiles>(acc, floats(memory, is_dk ? L::QueryDS : L::QueryP),
                         odd_row<D>(memory, is_dk ? kOddQ : kOddDOut) + (Right ? 64 : 0));
  arrive_warp(weights_read<D>(shared));
  const uint32_t part = shared + static_cast<uint32_t>(L::Stages + (block & 1) * L::Stage) + (is_dk ? 0 : L::KeyTile) +
                        (Right ? Tile<D>::right(kKeys) : 0);
  store_part<Right ? 64 : 128, kTiles>(part, (fresh_thread() >> 5 & 3) * 16, acc, is_dk ? p.scale : 1.0f);
  publish();
  wait_for_warpgroup(warpgroup);
  if ((fresh_thread() & 127) == 0) {
    start_store<Right>(is_dk ? maps.dk : maps.dv, part, block * kKeys, task.h, task.b);
    commit_stores();
  }
}

/// Stores dQ of a warpgroup's queries through the memory of P and dS.
template <int D>
__device__ __forceinline__ void store_dq(const RowAccumulator<D>& dq, const Params& p, const Maps& maps,
                                         const Task& task, uint32_t shared, int warpgroup) {
  using L = Layout<D>;
  const uint32_t left = shared + L::P + static_cast<uint32_t>(warpgroup * 64 * 128);
  const uint32_t right = shared + L::P + static_cast<uint32_t>(Tile<D>::right(kQueries) + warpgroup * 64 * 64);
  const int row0 = (fresh_thread() >> 5 & 3) * 16;
  store_part<128, 8>(left, row0, dq.left, p.scale);
  store_part<64, Tile<D>::kRightColumns / 8>(right, row0, dq.right, p.scale);
  publish();
  wait_for_warpgroup(warpgroup);
  if ((fresh_thread() & 127) == 0) {
    start_store<false>(maps.dq, left, warpgroup * 64, task.h, task.b);
    start_store<true>(maps.dq, right, warpgroup * 64, task.h, task.b);
    commit_stores();
  }
}

#endif  // BLIPFT_WGMMA_CODE

// The kernel has 68 lines: the order of barriers, copies and phases, which are functions.
template <int D, bool Sums>
__global__ void __launch_bounds__(kThreads, 1)
    wgmma_backward_kernel(const __grid_constant__ Params p, const __grid_constant__ Maps maps) {
#ifdef BLIPFT_WGMMA_CODE
  using L = Layout<D>;
  extern __shared__ __align__(1024) char memory[];
  const uint32_t shared = shared_address(memory);
  const int thread = static_cast<int>(threadIdx.x);
  const Task task{static_cast<int>(blockIdx.x) / p.heads, static_cast<int>(blockIdx.x) % p.heads,
                  p.query_tokens > kQueries, p.scale * kLog2e};
  if (thread == 0) expect_head<D>(task, shared);
  if (thread == 32) {
    prefetch(maps.dout);
    prefetch(maps.q);
    prefetch(maps.k);
    prefetch(maps.v);
  }
  const OutRows<D> out = load_out<D>(p, task);
  __syncthreads();
  const int warpgroup = static_cast<int>(Addresses<D>::warpgroup());
  if ((thread & 127) == 0) load_head<D>(p, maps, task, shared, warpgroup);
  if (thread < p.query_tokens)
    floats(memory, L::Lse)[thread] =
        lse_log2(p.lse[(static_cast<int64_t>(task.b) * p.heads + task.h) * p.query_tokens + thread]);
  if (D < pitch<D> && thread < kOddRows * 8)  // zeros after the odd token's rows
    odd_row<D>(memory, static_cast<OddRow>(thread / 8))[D + thread % 8] = __float2bfloat16_rn(0.0f);
  publish();
  __syncthreads();
  CopyBarrier{shared + L::Barriers}.wait(0);
  if (thread == 0) load_keys<D>(maps, task, shared, 1);
  make_deltas<D>(task, out, memory);
  __syncthreads();
  RowAccumulator<D> dq;
  dq.clear();
#pragma unroll 1
  for (int block = 0; block < kBlocks; ++block) {
    CopyBarrier{shared + static_cast<uint32_t>(L::Barriers + (block & 1) * 8)}.wait(block >> 1);
    if (task.odd && warpgroup == block) {
      weights_read<D>(shared).wait(block - 1);
      take_odd_query<D>(task, memory, warpgroup, block);
    }
    phase1<D>(dq, task, memory, block);
    if (task.odd && block + 1 == kBlocks) phase1_odd_key<D>(dq, task, memory);
    weights_made<D>(shared).wait(block);  // also: the other stage is free
    if (thread == 0 && block > 0 && block + 1 < kBlocks) {
      CopyBarrier{shared + static_cast<uint32_t>(L::Barriers + ((block + 1) & 1) * 8)}.expect(L::Stage);
      load_keys<D>(maps, task, shared, block + 1);
    }
    if (warpgroup < 2) phase2<D, false>(p, maps, task, memory, warpgroup, warpgroup == 1, block);
    else phase2<D, true>(p, maps, task, memory, warpgroup, warpgroup == 3, block);
  }
  __syncthreads();
  store_dq<D>(dq, p, maps, task, shared, warpgroup);
  if (Sums || task.odd) reduce_odd_key<D, Sums>(task, memory);
  if constexpr (Sums) sum_columns<D>(dq, p, memory);
  if (Sums || task.odd) {
    __syncthreads();
    if (task.odd) store_odd_token<D>(p, task, memory);
    if constexpr (Sums) {
      if (task.odd) __syncthreads();
      store_column_sums<D>(p, task, memory);
    }
  }
  wait_stores_read();  // the block must not exit while its stores read shared memory
#endif
}

template <int D, bool Sums>
bool launch_kernel(const Params& p, cudaStream_t stream) {
  const auto maps_of = [&](const View& view) {
    return make_tensor_maps(view, {p.head_size, p.query_tokens, p.heads, p.batch});
  };
  const Maps maps{maps_of(p.q),  maps_of(p.k),  maps_of(p.v), maps_of(p.dout),
                  maps_of(p.dq), maps_of(p.dk), maps_of(p.dv)};
  allow_shared_memory(&wgmma_backward_kernel<D, Sums>, Layout<D>::Bytes);
  wgmma_backward_kernel<D, Sums>
      <<<static_cast<unsigned>(p.batch * p.heads), kThreads, Layout<D>::Bytes, stream>>>(p, maps);
  BLIPFT_CUDA_LAUNCHED("wgmma attention backward");
  return true;
}

template <int D>
bool launch(const Params& p, cudaStream_t stream) {
  return p.dbias_partials ? launch_kernel<D, true>(p, stream) : launch_kernel<D, false>(p, stream);
}

}  // namespace

bool wgmma_backward(const Params& p, cudaStream_t stream) {
  if (!fits_wgmma(p)) return false;
  switch (p.head_size) {
    case 80: return launch<80>(p, stream);
    case 88: return launch<88>(p, stream);
    case 96: return launch<96>(p, stream);
    default: return false;
  }
}

}  // namespace blipft::attention
