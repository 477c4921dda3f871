// Attention forward for bf16 with warpgroup products: image patches and a class token, without masks or dropout.
//
// One block of four warpgroups per SM iterates over (sample, head) pairs. A warpgroup owns 64 of the 256 main queries
// and processes 64 keys at a time; the softmax is that of forward.cuh. TMA moves everything but lse and the odd output:
//   K, V   in blocks of 64 tokens through a ring of kSlots slots, one head after the other; thread 0 requests them. All
//          warps read every slot, which is refilled when all warps have arrived at its `free` barrier. There is no
//          barrier of the whole block, and warpgroups may be several steps apart
//   Q      each warpgroup requests its rows of the next head while it processes this one, in the other of two buffers
//   out    is written to the memory of this head's Q and stored from there while the next head is processed
//
// A vision tower has 257 tokens: 256 patches and the class token. A tile for one more query, or 8 columns for one more
// key, would cost up to a quarter of the time. Instead,
//   the odd key (the last) starts the softmax of every query: one narrow product gives its score, its V row starts o;
//   the odd query (the last) is multiplied with every warp's 16 keys by mma.sync, warpgroup g's keys being in block g;
//   the first warpgroup merges the warps' shares after the next head has begun.
// Each warpgroup has its own copy of the odd rows, which is copied with its Q. Without an odd token it is zeros.
#include <cuda_runtime.h>

#include <algorithm>
#include <type_traits>

#include "cuda/attention/wgmma_forward.cuh"
#include "cuda/kernels.h"

namespace blipft::attention {
namespace {

using namespace vision_forward;

#ifdef BLIPFT_WGMMA_CODE

/// The softmax state of a warp's 16 queries, like RowState.
template <int D>
struct Softmax {
  RowAccumulator<D> o;
  float base[2], sum[2];
};

/// Addresses of the parts of a warpgroup's rows of Q.
struct Queries {
  uint32_t left, right;
};
template <int D>
__device__ __forceinline__ Queries queries_of(uint32_t shared, int buffer, int group) {
  const uint32_t tile = shared + static_cast<uint32_t>(Layout<D>::Q + buffer * Layout<D>::QTile);
  return {uniform(tile + static_cast<uint32_t>(64 * group * 128)),
          uniform(tile + static_cast<uint32_t>(Tile<D>::right(kTokens) + 64 * group * 64))};
}

/// Starts, asynchronously, s = Q K^T of the warpgroup and a block of keys.
template <int D>
__device__ __forceinline__ void start_scores(float (&s)[8][4], const Queries& queries, uint32_t keys) {
  const uint32_t k = uniform(keys);
  multiply_transposed<D, 8>(s, queries.left, queries.right, k, k + static_cast<uint32_t>(Tile<D>::right(64)));
}

/// Waits for a head's Q and first block of keys, starts the softmax of this warp's queries with the odd key, if there
/// is one, and computes the scores of the first block.
template <int D>
__device__ __forceinline__ void start_head(const Work<D>& work, Softmax<D>& state, float (&s)[8][4], const Place& place,
                                           int round) {
  const int buffer = round & 1, group = warpgroup_number();
  queries_barrier<D>(work.shared, buffer, group).wait(round >> 1);
  place.full<D>(work.shared).wait(place.phase);
  const Queries queries = queries_of<D>(work.shared, buffer, group);
  const int t = static_cast<int>(threadIdx.x) & 3;
  float first[1][4];
  begin_products();
  multiply_row<D>(first, queries.left, queries.right,
                  uniform(work.shared + static_cast<uint32_t>(odd_row<D>(buffer, group, 1))));
  start_scores<D>(s, queries, place.keys<D>(work.shared));
  commit_products();
  wait_products<0>();
  pin(first);
  pin(s);
  const uint32_t* row = reinterpret_cast<const uint32_t*>(work.memory + odd_row<D>(buffer, group, 2)) + t;
#pragma unroll
  for (int n = 0; n < D / 8; ++n) {
    const float2 v = unpack(row[4 * n]);
    float(&o)[4] = state.o.tile(n);
    o[0] = o[2] = v.x;
    o[1] = o[3] = v.y;
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    // Column 0 is the key; lane 0 of each quad holds it.
    const float score = __shfl_sync(0xffffffffu, first[0][2 * half], static_cast<int>(threadIdx.x) & 28);
    state.base[half] = work.odd ? score * work.scale_log2 : -INFINITY;
    state.sum[half] = work.odd && t == 0 ? 1.0f : 0.0f;
  }
  state.o.pin_all();  // without this, ptxas serializes the loop's products
}

/// Adds 64 more keys to the softmax: converts s to their probabilities, as A fragments.
template <int D>
__device__ __forceinline__ void take_scores(uint32_t (&a)[4][4], Softmax<D>& state, float (&s)[8][4],
                                            float scale_log2) {
  float top[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) top[half] = row_top(s, half, scale_log2);
  if (__any_sync(0xffffffffu, top[0] > state.base[0] + kSlack || top[1] > state.base[1] + kSlack)) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float now = fmaxf(state.base[half], top[half]), shrink = exp2_approx(state.base[half] - now);
      state.base[half] = now;
      state.sum[half] *= shrink;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        state.o.tile(n)[2 * half] *= shrink;
        state.o.tile(n)[2 * half + 1] *= shrink;
      }
    }
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int n = 2 * k; n < 2 * k + 2; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        s[n][e] = exp2_approx(fmaf(s[n][e], scale_log2, -state.base[e / 2]));
        state.sum[e / 2] += s[n][e];
      }
    pack_a(a[k], s[2 * k], s[2 * k + 1]);
  }
}

/// Stores lse of this warp's queries, and starts storing out = o / sum through this buffer of Q.
template <int D>
__device__ __forceinline__ void store_queries(const Work<D>& work, Softmax<D>& state, const Head& head, int buffer) {
  const Params& p = work.p;
  const int thread = fresh_thread(), row0 = thread / 32 * 16, group = warpgroup_number();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = quad_sum(state.sum[half]), factor = 1.0f / sum;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      state.o.tile(n)[2 * half] *= factor;
      state.o.tile(n)[2 * half + 1] *= factor;
    }
    if ((thread & 3) == 0)
      p.lse[(static_cast<int64_t>(head.b) * p.heads + head.h) * p.query_tokens + row0 + 8 * half + (thread >> 2 & 7)] =
          (state.base[half] + log2f(sum)) * kLn2;
  }
  __syncwarp();
  wait_for_warpgroup(group);  // all warps have read these rows of Q
  const uint32_t tile = work.shared + static_cast<uint32_t>(Layout<D>::Q + buffer * Layout<D>::QTile);
  const uint32_t right = tile + static_cast<uint32_t>(Tile<D>::right(kTokens));
  store_part<128>(tile, row0, state.o.left, 1.0f);
  if constexpr (Tile<D>::kHasRight) store_part<64>(right, row0, state.o.right, 1.0f);
  publish();
  wait_for_warpgroup(group);
  if (fresh_thread() % 128 == 0) {
    start_store<false>(work.maps.out, tile + static_cast<uint32_t>(64 * group * 128), 64 * group, head.h, head.b);
    if constexpr (Tile<D>::kHasRight)
      start_store<true>(work.maps.out, right + static_cast<uint32_t>(64 * group * 64), 64 * group, head.h, head.b);
    commit_stores();
  }
  __syncwarp();
}

/// Initializes the barriers, zeroes the odd rows (see Layout), and starts copying the first head.
template <int D>
__device__ __forceinline__ void start_block(const Work<D>& work, int number) {
  using L = Layout<D>;
  const uint32_t shared = work.shared;
  if (fresh_thread() == 32) {
    prefetch(work.maps.q);
    prefetch(work.maps.k);
    prefetch(work.maps.v);
  }
  if (fresh_thread() == 0) {
    for (int slot = 0; slot < kSlots; ++slot) {
      Place{slot, 0}.full<D>(shared).init();
      Place{slot, 0}.free<D>(shared).init(kWarps);
    }
    for (int i = 0; i < 2 * kGroups; ++i) queries_barrier<D>(shared, 0, i).init();
    work.shares_made().init(kWarps);
    work.shares_merged().init(1);
    publish_barriers();
  }
  for (int i = fresh_thread(); i < L::OddBytes / 16; i += kThreads)
    reinterpret_cast<uint4*>(work.memory + L::OddRows)[i] = uint4{0, 0, 0, 0};
  publish();
  __syncthreads();
  if (fresh_thread() % 128 == 0) load_queries(work, head_of(work.p, number), 0, fresh_thread() / 128);
  if (fresh_thread() == 0)
    for (int step = 0; step < kSteps; ++step) load_block(work, head_of(work.p, number), step, Place{step, 0});
  __syncwarp();
}

/// Processes a block of keys with scores s: softmax, product with V and, together with it unless Last, the scores of
/// the next block. Returns the position of the next block.
template <bool Last, int D>
__device__ __forceinline__ Place take_block(const Work<D>& work, Softmax<D>& state, float (&s)[8][4],
                                            const Place& place, int round) {
  const Place next = place.next();
  uint32_t a[4][4];
  take_scores<D>(a, state, s, work.scale_log2);
  if (!Last) next.full<D>(work.shared).wait(next.phase);
  begin_products();  // the product with V, and with it the next scores
  const uint32_t values = uniform(place.values<D>(work.shared));
#pragma unroll
  for (int k = 0; k < 4; ++k)
    state.o.add(a[k], Operand::left(values), Operand::right(values + static_cast<uint32_t>(Tile<D>::right(64))), k);
  if (!Last)
    start_scores<D>(s, queries_of<D>(work.shared, fresh(round) & 1, warpgroup_number()), next.keys<D>(work.shared));
  commit_products();
  wait_products<0>();
  state.o.pin_all();
  if (!Last) pin(s);
  return next;
}

/// Called once a head has begun: the first warpgroup completes the odd query of the preceding head, and each warpgroup
/// requests its Q of the next head. Both use the other buffer.
template <int D>
__device__ __forceinline__ void change_queries(const Work<D>& work, const Turn& turn) {
  const int buffer = (fresh(turn.round) & 1) ^ 1, group = warpgroup_number();
  if (work.odd && group == 0 && turn.round > 0) {
    work.shares_made().wait(turn.round - 1);
    store_odd_query(work, head_of(work.p, fresh(turn.number) - turn.stride), work.memory + odd_row<D>(buffer, 0, 0));
    __syncwarp();
    wait_for_warpgroup(0);  // the odd rows and the shares have been read
    if (fresh_thread() == 0) work.shares_merged().arrive();
  }
  if (turn.more && fresh_thread() % 128 == 0) {
    wait_stores_read();  // of the preceding head, from the same buffer
    load_queries(work, head_of(work.p, fresh(turn.number) + turn.stride), buffer, group);
  }
  __syncwarp();
}

/// Processes the odd query with this warp's keys of a block; called by the warpgroup that owns this block.
template <int D>
__device__ __forceinline__ void take_odd_query(const Work<D>& work, const Place& place, int step, int round) {
  if (round > 0) work.shares_merged().wait(round - 1);
  share_odd_query(work, place, work.memory + odd_row<D>(fresh(round) & 1, step, 0));
  arrive_warp(work.shares_made());
}

/// Marks a block as finished by this warp. Thread 0 requests the next head's same block, into the preceding slot.
template <int D>
__device__ __forceinline__ void leave_block(const Work<D>& work, const Turn& turn, const Place& place, int step) {
  arrive_warp(place.free<D>(work.shared));
  if (turn.more && fresh_thread() == 0) {
    const Place old = place.before();
    old.free<D>(work.shared).wait(old.phase);  // phase -1 of the first use counts as complete
    load_block(work, head_of(work.p, fresh(turn.number) + turn.stride), step, old);
  }
  __syncwarp();
}

#endif  // BLIPFT_WGMMA_CODE

template <int D>
__global__ void __launch_bounds__(kThreads, 1)
    wgmma_forward_kernel(const Params p, const __grid_constant__ ForwardMaps maps) {
#ifdef BLIPFT_WGMMA_CODE
  extern __shared__ __align__(1024) char memory[];
  const uint32_t shared = shared_address(memory);
  const Work<D> work{p, maps, memory, shared, p.scale * kLog2e, p.query_tokens > kTokens};
  const int heads = p.batch * p.heads, stride = static_cast<int>(gridDim.x);
  int number = static_cast<int>(blockIdx.x);
  start_block(work, number);

  Place place{0, 0};
#pragma unroll 1
  for (int round = 0; number < heads; ++round, number += stride) {
    const Turn turn{number, stride, round, number + stride < heads};
    Softmax<D> state;
    float s[8][4];
    start_head(work, state, s, place, round);
    const auto take = [&](auto is_last, int step) {
      const Place next = take_block<decltype(is_last)::value>(work, state, s, place, round);
      if (step == 0) change_queries(work, turn);
      if (work.odd && warpgroup_number() == step) take_odd_query(work, place, step, round);
      leave_block(work, turn, place, step);
      place = next;
    };
#pragma unroll 1
    for (int step = 0; step + 1 < kSteps; ++step) take(std::false_type{}, step);
    take(std::true_type{}, kSteps - 1);
    store_queries(work, state, head_of(p, fresh(number)), fresh(round) & 1);
    if (!turn.more && work.odd && warpgroup_number() == 0) {
      work.shares_made().wait(round);
      store_odd_query(work, head_of(p, fresh(number)), memory + odd_row<D>(fresh(round) & 1, 0, 0));
    }
  }
  if (fresh_thread() % 128 == 0) wait_stores_read();
#endif
}

template <int D>
bool launch(const Params& p, const LaunchContext& context) {
  const int blocks = std::min(p.batch * p.heads, context.sm_count);
  const MapShape shape{p.head_size, p.query_tokens, p.heads, p.batch};
  const ForwardMaps maps{make_tensor_maps(p.q, shape), make_tensor_maps(p.k, shape), make_tensor_maps(p.v, shape),
                         make_tensor_maps(p.out, shape)};
  allow_shared_memory(&wgmma_forward_kernel<D>, Layout<D>::Bytes);
  wgmma_forward_kernel<D><<<static_cast<unsigned>(blocks), kThreads, Layout<D>::Bytes, context.stream>>>(p, maps);
  BLIPFT_CUDA_LAUNCHED("wgmma attention forward");
  return true;
}

}  // namespace

bool wgmma_forward(const Params& p, const LaunchContext& context) {
  if (!fits_wgmma(p)) return false;
  switch (p.head_size) {
    case 64: return launch<64>(p, context);
    case 80: return launch<80>(p, context);
    case 88: return launch<88>(p, context);
    case 96: return launch<96>(p, context);
    default: return false;
  }
}

}  // namespace blipft::attention
