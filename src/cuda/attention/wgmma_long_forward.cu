// Attention forward for bf16 with warpgroup products, for any number of tokens, causal or not, head sizes 64 and 128.
// The frame (tiles, producer, ring) is told in attention_wgmma_long.cuh.
//
// A warpgroup owns 64 queries and takes 128 keys at a time, from the last that its tile sees down to the first: then
// only the first block needs masks; where the warpgroup sees no more than half of that, it takes half. Softmax as in
// attention_forward.cuh. Two things overlap its exponentials with products: the scores of the next keys are asked for
// together with the product of the last ones' probabilities with V, and only the former are waited for; and the
// warpgroups take turns in asking, so that one's products run while the other has exponentials to do. The output leaves
// through the place of the tile's queries.
#include <cuda_runtime.h>

#include "cuda/attention/wgmma_long.cuh"
#include "cuda/device/cuda_check.h"

namespace blipft::attention {
namespace {

using namespace wgmma_long;

constexpr int kKeys = 128, kSlots = 2;

struct ForwardMaps {
  CUtensorMap q, k, v, out;
};

/// Byte offsets in shared memory.
template <int D>
struct Layout {
  static constexpr int Own = tile_bytes<D>(64), Block = tile_bytes<D>(kKeys);
  static constexpr int Q = 0;                                             // [buffer][warpgroup]
  static constexpr int K = 2 * kGroups * Own, V = K + kSlots * Block;     // [slot]
  static constexpr int Full = V + kSlots * Block, Free = Full + 16, Positions = Free + 16;  // Meeting
  static constexpr int KFull = Positions + 8, KFree = KFull + 8 * kSlots;                   // barriers [slot]
  static constexpr int VFull = KFree + 8 * kSlots, VFree = VFull + 8 * kSlots;
  static constexpr int Bytes = VFree + 8 * kSlots;
  static_assert(Own % 1024 == 0 && Block % 1024 == 0 && Bytes <= 227 << 10, "one block an SM");
};

#ifdef BLIPFT_WGMMA_CODE

/// Key blocks that a tile sees; at least one, which may be masked wholly.
__device__ __forceinline__ int key_blocks(const Params& p, const Work& work) {
  const int keys = p.kv_length(work.b), seen = p.causal ? min(keys, work.row0 + kRows) : keys;
  return max(1, (seen + kKeys - 1) / kKeys);
}

/// The producer: one warp.
template <int D>
__device__ __forceinline__ void produce(const Params& p, const ForwardMaps& maps, const Schedule& schedule,
                                        const Meeting& meeting, unsigned* counter, uint32_t shared) {
  using L = Layout<D>;
  Place<kSlots> place;
  produce_tiles(p, schedule, meeting, counter, [&](int buffer, const Work& work) {
    const CopyBarrier queries = meeting.full_at(buffer);
    const bool asks = (fresh_thread() & 31) == 0;
    if (asks) {
      queries.expect(kGroups * L::Own);
#pragma unroll
      for (int group = 0; group < kGroups; ++group)
        start_copy<D, 64>(maps.q, shared + static_cast<uint32_t>(L::Q + (buffer * kGroups + group) * L::Own),
                          work.row0 + 64 * group, work, queries);
    }
#pragma unroll 1
    for (int block = key_blocks(p, work) - 1; block >= 0; --block, place.step()) {
      if (!asks) continue;
      const CopyBarrier k{shared + static_cast<uint32_t>(L::KFull + 8 * place.slot)};
      const CopyBarrier v{shared + static_cast<uint32_t>(L::VFull + 8 * place.slot)};
      ThreadBarrier{shared + static_cast<uint32_t>(L::KFree + 8 * place.slot)}.wait(place.phase - 1);
      k.expect(L::Block);
      start_copy<D, kKeys>(maps.k, shared + static_cast<uint32_t>(L::K + place.slot * L::Block), block * kKeys, work,
                           k);
      ThreadBarrier{shared + static_cast<uint32_t>(L::VFree + 8 * place.slot)}.wait(place.phase - 1);
      v.expect(L::Block);
      start_copy<D, kKeys>(maps.v, shared + static_cast<uint32_t>(L::V + place.slot * L::Block), block * kKeys, work,
                           v);
    }
    __syncwarp();
  });
}

/// The warpgroups' turns in asking for products: each sync is matched by the other's arrive.
__device__ __forceinline__ void take_turn(int group) {
  asm volatile("bar.sync %0, 256;\n" ::"r"(1 + kGroups + group) : "memory");
}
__device__ __forceinline__ void give_turn(int group) {
  asm volatile("bar.arrive %0, 256;\n" ::"r"(1 + kGroups + (group ^ 1)) : "memory");
}

/// What a thread knows about rows g and g + 8 of its warp's 16 queries, as RowState.
struct Softmax {
  float base[2], sum[2];
};

/// Scores to probabilities, relative to the base.
template <int N>
__device__ __forceinline__ void take_exponentials(float (&s)[N][4], Softmax& state, float scale_log2) {
#pragma unroll
  for (int n = 0; n < N; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      s[n][e] = exp2_approx(fmaf(s[n][e], scale_log2, -state.base[e / 2]));
      state.sum[e / 2] += s[n][e];
    }
}

/// Stores lse of this warp's queries, and out = o / sum to the place of the queries; starts storing it from there.
template <int D>
__device__ __forceinline__ void store_queries(const float (&o)[D / 8][4], const Softmax& state, const Params& p,
                                              const ForwardMaps& maps, const Work& work, uint32_t tile, int group) {
  const int thread = fresh_thread(), row0 = work.row0 + thread / 32 * 16 + (thread >> 2 & 7);
  float factor[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = quad_sum(state.sum[half]);
    const int row = row0 + 8 * half;
    factor[half] = sum > 0 ? 1.0f / sum : 0.0f;
    if ((thread & 3) == 0 && row < p.query_tokens)
      p.lse[(static_cast<int64_t>(work.b) * p.heads + work.h) * p.query_tokens + row] =
          sum > 0 ? (state.base[half] + log2f(sum)) * kLn2 : -INFINITY;
  }
  __syncwarp();
  wait_for_warpgroup(group);  // nobody reads these queries any more
  store_tile(tile, o, factor[0], factor[1]);
  publish();
  wait_for_warpgroup(group);
  if (fresh_thread() % 128 == 0) {
    start_tile_store<D>(maps.out, tile, work.row0 + 64 * group, work);
    commit_stores();
  }
  __syncwarp();
}

/// A warpgroup's work on one tile.
template <int D>
struct Consumer {
  using L = Layout<D>;
  const Params& p;
  const uint32_t shared, queries;  // shared address of everything, and of the queries
  const int group;
  Place<kSlots>& place;            // of the key block at hand; at the end, of the next tile's first
  float o[D / 8][4], s[kKeys / 8][4];
  uint32_t a[kKeys / 16][4];       // probabilities of the key block at hand
  Softmax state;

  __device__ __forceinline__ CopyBarrier full(int offset, const Place<kSlots>& at) const {
    return {shared + static_cast<uint32_t>(offset + 8 * at.slot)};
  }
  __device__ __forceinline__ ThreadBarrier free(int offset, const Place<kSlots>& at) const {
    return {shared + static_cast<uint32_t>(offset + 8 * at.slot)};
  }
  __device__ __forceinline__ uint32_t keys(const Place<kSlots>& at) const {
    return uniform(shared + static_cast<uint32_t>(L::K + at.slot * L::Block));
  }
  __device__ __forceinline__ uint32_t values(const Place<kSlots>& at) const {
    return uniform(shared + static_cast<uint32_t>(L::V + at.slot * L::Block));
  }

  /// Starts o += P V with the first `Keys` keys of a block.
  template <int Keys>
  __device__ __forceinline__ void start_output(const Place<kSlots>& at) {
    uint32_t weights[Keys / 16][4];
#pragma unroll
    for (int k = 0; k < Keys / 16; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i) weights[k][i] = a[k][i];
    add_product<D, kKeys>(o, weights, values(at));
    commit_products();
  }

  /// The first block, `block`: its first `Keys` keys, with masks.
  template <int Keys>
  __device__ __forceinline__ void first_block(const Work& work, const Meeting& meeting, int round, int block) {
    const float scale_log2 = p.scale * kLog2e;
    float first[Keys / 8][4];
    full(L::KFull, place).wait(place.phase);
    begin_products();
    multiply_rows_transposed<D, kKeys>(first, queries, keys(place));
    commit_products();
    release_last_buffer(meeting, round);
    clear(o);
    wait_products<0>();
    pin(first);
    arrive_warp(free(L::KFree, place));
    const int thread = fresh_thread(), row = work.row0 + thread / 32 * 16 + (thread >> 2 & 7);
    const int keys_end = p.kv_length(work.b), column0 = block * kKeys + 2 * (thread & 3);
    const int limit[2] = {(p.causal ? min(keys_end, row + 1) : keys_end) - column0,
                          (p.causal ? min(keys_end, row + 9) : keys_end) - column0};
    mask_columns(first, limit);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float top = row_top(first, half, scale_log2);
      state.base[half] = top == -INFINITY ? 0.0f : top;  // a row that sees no key
      state.sum[half] = 0;
    }
    take_exponentials(first, state, scale_log2);
#pragma unroll
    for (int k = 0; k < Keys / 16; ++k) pack_a(a[k], first[2 * k], first[2 * k + 1]);
  }

  /// The output of the block at hand, of which `Keys` keys count, and the probabilities of the next.
  template <int Keys>
  __device__ __forceinline__ void next_block() {
    const float scale_log2 = p.scale * kLog2e;
    const Place<kSlots> old = place;
    place.step();
    full(L::VFull, old).wait(old.phase);
    full(L::KFull, place).wait(place.phase);
    take_turn(group);
    begin_products();
    multiply_rows_transposed<D, kKeys>(s, queries, keys(place));
    commit_products();
    start_output<Keys>(old);
    give_turn(group);
    wait_products<1>();
    pin(s);
    arrive_warp(free(L::KFree, place));
    float shrink[2] = {1, 1};
    const float top[2] = {row_top(s, 0, scale_log2), row_top(s, 1, scale_log2)};
    const bool raise = __any_sync(0xffffffffu, top[0] > state.base[0] + kSlack || top[1] > state.base[1] + kSlack);
    if (raise) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float now = fmaxf(state.base[half], top[half]);
        shrink[half] = exp2_approx(state.base[half] - now);
        state.base[half] = now;
        state.sum[half] *= shrink[half];
      }
    }
    take_exponentials(s, state, scale_log2);
    pin(s);
    stay_before(full(L::VFull, old), old.phase);
    wait_products<0>();
    pin(o);
    arrive_warp(free(L::VFree, old));
    if (raise) {
#pragma unroll
      for (int n = 0; n < D / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) o[n][e] *= shrink[e / 2];
    }
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) pack_a(a[k], s[2 * k], s[2 * k + 1]);
  }

  template <int Keys>
  __device__ __forceinline__ void last_output() {
    full(L::VFull, place).wait(place.phase);
    begin_products();
    start_output<Keys>(place);
    wait_products<0>();
    pin(o);
    arrive_warp(free(L::VFree, place));
    place.step();
  }

  /// The first two of `blocks` key blocks, `First` keys of the first of them.
  template <int First>
  __device__ __forceinline__ void start_tile(const Work& work, const Meeting& meeting, int round, int blocks) {
    first_block<First>(work, meeting, round, blocks - 1);
    if (blocks > 1) next_block<First>();
    else last_output<First>();
  }
};

template <int D>
__device__ __forceinline__ void consume_tile(const Params& p, const ForwardMaps& maps, const Work& work,
                                             const Meeting& meeting, int round, Place<kSlots>& place, uint32_t shared,
                                             int group) {
  const uint32_t queries = uniform(
      shared + static_cast<uint32_t>(Layout<D>::Q + ((round & 1) * kGroups + group) * Layout<D>::Own));
  Consumer<D> consumer{p, shared, queries, group, place};
  const int blocks = key_blocks(p, work), keys = p.kv_length(work.b);
  const int seen = p.causal ? min(keys, work.row0 + 64 * (group + 1)) : keys;
  if (seen - (blocks - 1) * kKeys <= kKeys / 2) consumer.template start_tile<kKeys / 2>(work, meeting, round, blocks);
  else consumer.template start_tile<kKeys>(work, meeting, round, blocks);
#pragma unroll 1
  for (int left = blocks - 2; left > 0; --left) consumer.template next_block<kKeys>();
  if (blocks > 1) consumer.template last_output<kKeys>();
  store_queries<D>(consumer.o, consumer.state, p, maps, work, queries, group);
}

#endif  // BLIPFT_WGMMA_CODE

template <int D>
__global__ void __launch_bounds__(kThreads, 1)
    wgmma_long_forward_kernel(const __grid_constant__ Params p, const __grid_constant__ ForwardMaps maps,
                              const Schedule schedule, unsigned* counter) {
#ifdef BLIPFT_WGMMA_CODE
  using L = Layout<D>;
  extern __shared__ __align__(1024) char memory[];
  const uint32_t shared = shared_address(memory);
  const Meeting meeting{shared + L::Full, shared + L::Free, reinterpret_cast<int*>(memory + L::Positions)};
  if (fresh_thread() == 0) {
    init_meeting(meeting);
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      CopyBarrier{shared + L::KFull + 8 * i}.init();
      CopyBarrier{shared + L::VFull + 8 * i}.init();
      ThreadBarrier{shared + L::KFree + 8 * i}.init(kConsumerWarps);
      ThreadBarrier{shared + L::VFree + 8 * i}.init(kConsumerWarps);
    }
    publish_barriers();
  }
  if (fresh_thread() == kConsumers) {
    prefetch_map(maps.q);
    prefetch_map(maps.k);
    prefetch_map(maps.v);
  }
  __syncthreads();
  const int group = warpgroup_number();
  if (group == kGroups) {
    give_registers();
    if (fresh_thread() < kConsumers + 32) produce<D>(p, maps, schedule, meeting, counter, shared);
    return;
  }
  take_registers();
  if (group == 1) give_turn(1);  // warpgroup 0 begins
  Place<kSlots> place;
  consume_tiles(p, schedule, meeting, [&](int round, const Work& work) {
    consume_tile<D>(p, maps, work, meeting, round, place, shared, group);
  });
  if (group == 0) take_turn(0);  // the last turn that warpgroup 1 gave
  if (fresh_thread() % 128 == 0) wait_stores_read();  // shared memory outlives what reads it
#endif
}

template <int D>
void launch(const Params& p, const LaunchContext& context) {
  const ForwardMaps maps{map_of(p, p.q), map_of(p, p.k), map_of(p, p.v), map_of(p, p.out)};
  const Schedule schedule = Schedule::make(p, p.causal);
  allow_shared_memory(&wgmma_long_forward_kernel<D>, Layout<D>::Bytes);
  wgmma_long_forward_kernel<D>
      <<<schedule.grid(context), kThreads, Layout<D>::Bytes, context.stream>>>(p, maps, schedule, context.counters);
  BLIPFT_CUDA_LAUNCHED("wgmma attention forward, long");
}

}  // namespace

bool wgmma_long_forward(const Params& p, const LaunchContext& context) {
  return with_head_size(p, [&](auto size) { launch<decltype(size)::value>(p, context); });
}

}  // namespace blipft::attention
