// Attention backward for bf16 with warpgroup products, for the arguments of wgmma_wide_forward.cu (formulas:
// backward.cuh). wgmma_wide.cuh describes the structure. After the row sums of backward_long.cuh, two kernels run:
//
//   dkv: like that of backward_wide.cuh, with one warpgroup for the first warps of the pairs and one for the second
//        warps: 64 keys per block, 64 queries per step, 209 KB. dS^T is computed while dV is.
//   dq:  128 queries per block, 64 per warpgroup, 32 keys per step. S and dP are started together with dQ of the
//        preceding step, whose K is kept for it: 209 KB.
#include <cuda_runtime.h>

#include "cuda/attention/backward_wide.cuh"
#include "cuda/attention/wgmma_wide.cuh"

namespace blipft::attention {
namespace {

using namespace wgmma_wide;

constexpr int kStep = 64, kKeys = 64;                 // dkv: queries of a step, keys of a block
constexpr int kQueries = 128, kStepKeys = 32;         // dq: queries of a block, keys of a step
using KvLayout = backward_wide::KvLayout<kStep>;

/// Byte offsets in the shared memory of dq.
struct QLayout {
  static constexpr int Own = tile_bytes(64), Q = 0, Dout = 2 * Own;     // [warpgroup]
  static constexpr int Block = tile_bytes(kStepKeys), K = 4 * Own, V = K + 3 * Block;  // [3], [2]
  static constexpr int Numbers = V + 2 * Block;                         // lse, delta [kQueries]
  static constexpr int Fence = Numbers + 2 * kQueries * 4, Table = Fence + 16;
};

// The kernel has 77 lines for the same reason as in backward_long.cuh.
__global__ void __launch_bounds__(kThreads, 1) wgmma_wide_dkv_kernel(const __grid_constant__ ScoreParams p) {
#ifdef BLIPFT_WGMMA_CODE
  using L = KvLayout;
  extern __shared__ __align__(1024) char memory[];
  const int block0 = static_cast<int>(block_tile<ScoreParams>()) * kKeys, kv_head = block_head<ScoreParams>();
  const int b = static_cast<int>(blockIdx.z), first_head = kv_head * p.heads_per_kv();
  if (block0 >= p.keys(b)) return;
  const int kv_length = p.kv_length(b), queries = p.queries(b), pair = fresh_thread() >> 5 & 3;
  const bool second = warpgroup_number() > 0;
  const int key_row0 = block0 + 16 * pair;
  const uint32_t shared = shared_address(memory);
  float* lse = reinterpret_cast<float*>(memory + L::Lse);
  float* delta = reinterpret_cast<float*>(memory + L::Delta);
  float* table = reinterpret_cast<float*>(memory + L::Table);
  const bf16* q = head_of<const bf16>(p, p.q, b, first_head);
  const bf16* dout = head_of<const bf16>(p, p.dout, b, first_head);
  StepNumbers<kStep> numbers;  // of the step that was requested last
  const auto load_block = [&](int stage, int member, int query0) {
    const uint32_t offset = shared + static_cast<uint32_t>(stage * L::Block);
    const int skip = member * p.head_size;
    load_tile<kStep>(offset + L::Q, q + skip, p.q.row_stride, query0, queries, p.head_size);
    load_tile<kStep>(offset + L::Dout, dout + skip, p.dout.row_stride, query0, queries, p.head_size);
    commit_copies();
    numbers.fetch(p, b, first_head + member, query0);
  };
  load_relative<kThreads>(table, p, first_head);  // no other head uses these keys
  const auto tile = tile_of(p, {0, kv_length, p.causal, p.scale * kLog2e, 0, p.query_elements}, table);
  load_tile<kKeys>(shared + L::K, key_head_of<const bf16>(p, p.k, b, kv_head), p.k.row_stride, block0, kv_length,
                   p.head_size);
  load_tile<kKeys>(shared + L::V, key_head_of<const bf16>(p, p.v, b, kv_head), p.v.row_stride, block0, kv_length,
                   p.head_size);
  const int first = p.causal ? block0 : 0;
  const int end = block0 < kv_length ? min(queries, block0 + kKeys - 1 + p.window) : first;
  const uint32_t own = uniform(shared + static_cast<uint32_t>(second ? L::V : L::K));
  float4* place = reinterpret_cast<float4*>(memory + L::Shared + pair * L::Place);
  Rows64 acc;  // dV or dK
  acc.clear_all();
  int member = 0, query0 = first, stage = 0;
  if (first < end) load_block(0, member, query0);
#pragma unroll 1
  while (query0 < end) {
    numbers.store(lse, delta, stage);
    wait_for_tiles();  // this stage has arrived, the other one and `place` are free
    const uint32_t q_tile = shared + static_cast<uint32_t>(L::Q + stage * L::Block);
    const uint32_t dout_tile = shared + static_cast<uint32_t>(L::Dout + stage * L::Block);
    float s[8][4];
    begin_products();
    multiply_rows_transposed<D, kStep>(s, own, uniform(second ? dout_tile : q_tile));
    commit_products();
    int next_member = member, next = query0 + kStep;
    if (next >= end && member + 1 < p.heads_per_kv()) ++next_member, next = first;
    if (next < end) load_block(stage ^ 1, next_member, next);
    wait_products<0>();
    pin(s);
    if (!second) {
      adjust_scores<true>(reinterpret_cast<float(&)[1][8][4]>(s), tile, key_row0 - query0);
      if (key_row0 + 16 <= tile.limit(query0) && all_in_window(tile, query0 + kStep - 1, key_row0))
        backward_wide::transposed_probabilities<false>(s, place, lse + stage * kStep, key_row0, query0, tile);
      else
        backward_wide::transposed_probabilities<true>(s, place, lse + stage * kStep, key_row0, query0, tile);
      backward_wide::hand_over(1 + pair);
    } else {
      backward_wide::take_over(1 + pair);
      const float* own_delta = delta + stage * kStep + 2 * (fresh_thread() & 3);
      backward_wide::take_gradients(s, place, [&](int n, int e) { return own_delta[8 * n + e % 2]; });
    }
    uint32_t weights[kStep / 16][4];
    pack_rows(weights, s);
    begin_products();
    acc.add<kStep>(weights, uniform(second ? q_tile : dout_tile));
    commit_products();
    wait_products<0>();
    acc.pin_all();
    member = next_member, query0 = next, stage ^= 1;
  }
  wait_copies<0>();
  const View& out = second ? p.dk : p.dv;
  acc.store(second ? p.scale : 1.0f, key_head_of<bf16>(p, out, b, kv_head), out.row_stride, key_row0, p.keys(b),
            p.head_size);
#endif
}

// The kernel has 100 lines: a loop over keys in five parts, like the forward's.
__global__ void __launch_bounds__(kThreads, 1) wgmma_wide_dq_kernel(const __grid_constant__ ScoreParams p) {
#ifdef BLIPFT_WGMMA_CODE
  using L = QLayout;
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
  float* numbers = reinterpret_cast<float*>(memory + L::Numbers);
  float* table = reinterpret_cast<float*>(memory + L::Table);
  load_relative<kThreads>(table, p, h);
  const Fence fence{{shared + L::Fence}};
  fence.init();
  const auto tile = tile_of(p, {row0, kv_length, p.causal, p.scale * kLog2e, 0, p.query_elements}, table);
  const int first = first_block(tile, q0, kStepKeys);
  const int blocks = (tile.limit(q0 + kQueries - 1) + kStepKeys - 1) / kStepKeys;
  // The range of steps in which this warpgroup sees keys.
  const int seen = first_block(tile, group_row0, kStepKeys);
  const int end = group_row0 < queries ? (tile.limit(group_row0 + 63) + kStepKeys - 1) / kStepKeys : 0;
  const auto k_tile = [&](int j) { return shared + static_cast<uint32_t>(L::K + (j - first) % 3 * L::Block); };
  const auto v_tile = [&](int j) { return shared + static_cast<uint32_t>(L::V + (j & 1) * L::Block); };
  const auto load_block = [&](int j) {
    load_tile<kStepKeys>(k_tile(j), k, p.k.row_stride, j * kStepKeys, kv_length, p.head_size);
    load_tile<kStepKeys>(v_tile(j), v, p.v.row_stride, j * kStepKeys, kv_length, p.head_size);
    commit_copies();
  };
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    load_tile<64>(shared + static_cast<uint32_t>(L::Q + i * L::Own), head_of<const bf16>(p, p.q, b, h),
                  p.q.row_stride, q0 + 64 * i, queries, p.head_size);
    load_tile<64>(shared + static_cast<uint32_t>(L::Dout + i * L::Own), head_of<const bf16>(p, p.dout, b, h),
                  p.dout.row_stride, q0 + 64 * i, queries, p.head_size);
  }
  load_block(first);
  load_lse<kThreads>(numbers, p, b, h, q0, kQueries);
  const float* deltas = p.delta + (static_cast<int64_t>(b) * p.heads + h) * p.query_tokens;
  for (int i = static_cast<int>(threadIdx.x); i < kQueries; i += kThreads)
    numbers[kQueries + i] = q0 + i < queries ? deltas[q0 + i] : 0.0f;
  const auto load_next = [&](int j) {
    if (j + 1 < blocks) load_block(j + 1);
  };
  const uint32_t own_q = uniform(shared + static_cast<uint32_t>(L::Q + group * L::Own));
  const uint32_t own_dout = uniform(shared + static_cast<uint32_t>(L::Dout + group * L::Own));
  Rows64 dq;
  dq.clear_all();
  float s[1][kStepKeys / 8][4], dp[1][kStepKeys / 8][4];
  uint32_t ds[kStepKeys / 16][4];  // of the preceding step
  const auto start_scores = [&](int j) {
    begin_products();
    multiply_rows_transposed<D, kStepKeys>(s[0], own_q, uniform(k_tile(j)));
    commit_products();
    multiply_rows_transposed<D, kStepKeys>(dp[0], own_dout, uniform(v_tile(j)));
    commit_products();
  };
  const auto start_dq = [&](int j) {
    dq.add<kStepKeys>(ds, uniform(k_tile(j)));
    commit_products();
  };
  const auto take_probabilities = [&](int j) {
    float row_lse[1][2];
    pin(s[0]);
    row_numbers<1>(row_lse, memory, L::Numbers, row0 - q0);
    adjust_scores<false>(s, tile, j * kStepKeys - row0);
    if (j * kStepKeys + kStepKeys <= tile.limit(row0) && all_in_window(tile, row0 + 15, j * kStepKeys))
      backward_wide::sloped_probabilities<false>(s, row_lse, j * kStepKeys, tile);
    else
      backward_wide::sloped_probabilities<true>(s, row_lse, j * kStepKeys, tile);
    pin(s[0]);
  };
  const auto take_gradients = [&] {
    float row_delta[1][2];
    pin(dp[0]);
    row_numbers<1>(row_delta, memory, L::Numbers + kQueries * 4, row0 - q0);
#pragma unroll
    for (int n = 0; n < kStepKeys / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) s[0][n][e] *= dp[0][n][e] - row_delta[0][e / 2];
    pin(s[0]);
  };
  int j = first;
#pragma unroll 1
  for (; j < seen && j < blocks; ++j) {
    wait_for_tiles();
    load_next(j);
  }
  if (seen < end) {
    wait_for_tiles();  // this step's K and V have arrived; V of the last step and K of the step before it are free
    start_scores(j);
    load_next(j);
    wait_products<1>();
    take_probabilities(j);
    fence.stay_before();
    wait_products<0>();
    take_gradients();
    pack_rows(ds, s[0]);
#pragma unroll 1
    for (++j; j < end; ++j) {
      wait_for_tiles();
      start_scores(j);
      start_dq(j - 1);
      load_next(j);
      wait_products<2>();
      take_probabilities(j);
      fence.stay_before();
      wait_products<1>();
      take_gradients();
      fence.stay_before();
      wait_products<0>();
      dq.pin_all();
      pack_rows(ds, s[0]);
    }
    begin_products();
    start_dq(j - 1);  // its K is kept until the step after the next
    wait_products<0>();
    dq.pin_all();
  }
#pragma unroll 1
  for (; j < blocks; ++j) {
    wait_for_tiles();
    load_next(j);
  }
  wait_copies<0>();
  dq.store(p.scale, head_of<bf16>(p, p.dq, b, h), p.dq.row_stride, row0, queries, p.head_size);
#endif
}

}  // namespace

bool wgmma_wide_backward(const ScoreParams& p, cudaStream_t stream) {
  const int kv = KvLayout::Table + p.table_bytes(), q = QLayout::Table + p.table_bytes();
  if (!fits(p) || std::max(kv, q) > p.shared_bytes) return false;
  backward_long::launch_deltas<D>(PackedParams{static_cast<const Params&>(p)}, stream);
  allow_shared_memory(&wgmma_wide_dkv_kernel, kv);
  wgmma_wide_dkv_kernel<<<grid_of<ScoreParams>((p.kv_tokens + kKeys - 1) / kKeys, p.kv_heads, p.batch), kThreads, kv,
                          stream>>>(p);
  BLIPFT_CUDA_LAUNCHED("wgmma attention dk, dv, wide heads");
  allow_shared_memory(&wgmma_wide_dq_kernel, q);
  wgmma_wide_dq_kernel<<<grid_of<ScoreParams>((p.query_tokens + kQueries - 1) / kQueries, p.heads, p.batch), kThreads,
                         q, stream>>>(p);
  BLIPFT_CUDA_LAUNCHED("wgmma attention dq, wide heads");
  return true;
}

}  // namespace blipft::attention
