// Attention forward for bf16 with warpgroup products, for any number of tokens, causal or not, head sizes 64 and 128.
// wgmma_long.cuh describes the structure (tiles, producer, ring), wgmma_long_packed.cuh that for packed samples and
// grouped heads.
//
// A warpgroup owns 64 queries and processes 128 keys at a time, from the last that its tile sees down to the first:
// then only the first block needs masks; if the warpgroup sees at most half of this block, it processes half. The
// softmax is that of forward.cuh. Two techniques overlap its exponentials with products. The scores of the next keys
// are started together with the product of the last probabilities with V, and only the scores are waited for. The
// warpgroups also take turns in starting products, so that the products of one run during the exponentials of the
// other. The output is stored through the memory of the tile's queries.
#include <cuda_runtime.h>

#include "cuda/attention/wgmma_long_packed.cuh"
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
  static constexpr int Bytes = VFree + 8 * kSlots, Table = (Bytes + 15) / 16 * 16;
  template <class Args>
  static constexpr int BytesOf = Args::kPacked ? Table + kTableBytes<Args> : Bytes;
  static_assert(Own % 1024 == 0 && Block % 1024 == 0 && BytesOf<PackedParams> <= 227 << 10, "one block an SM");
};

#ifdef BLIPFT_WGMMA_CODE

/// Number of keys that a tile sees, and of blocks of them; at least one, which may be completely masked.
template <class Args, class AnyWork>
__device__ __forceinline__ int seen_keys(const Args& p, const AnyWork& work) {
  const int keys = work.keys(p);
  return p.causal ? min(keys, work.row0 + kRows) : keys;
}
template <class Args, class AnyWork>
__device__ __forceinline__ int key_blocks(const Args& p, const AnyWork& work) {
  return max(1, (seen_keys(p, work) + kKeys - 1) / kKeys);
}

/// Starts copying the first `Keys` keys of a block to slot `slot` of K or V.
template <int D, int Keys>
__device__ __forceinline__ void copy_keys(const CUtensorMap& map, uint32_t slot, int token, int h, const auto& work,
                                          const CopyBarrier& barrier) {
  barrier.expect(tile_bytes<D>(Keys));
  start_copy<D, kKeys, Keys>(map, slot, token, h, work, barrier);
}

/// The producer, one warp. For packed samples it skips tokens that do not exist.
template <int D, class Args, class AnyTiles, class AnyMeeting>
__device__ __forceinline__ void produce(const Args& p, const ForwardMaps& maps, const AnyTiles& tiles,
                                        const AnyMeeting& meeting, unsigned* counter, uint32_t shared) {
  using L = Layout<D>;
  Place<kSlots> place;
  produce_tiles(p, tiles, meeting, counter, [&](int buffer, const auto& work) {
    const CopyBarrier queries = meeting.full_at(buffer);
    const bool is_leader = (fresh_thread() & 31) == 0;
    if (is_leader) {
      queries.expect(work.has_tokens(p, 1) ? kGroups * L::Own : L::Own);
#pragma unroll
      for (int group = 0; group < kGroups; ++group)
        if (group == 0 || work.has_tokens(p, group))
          start_copy<D, 64>(maps.q, shared + static_cast<uint32_t>(L::Q + (buffer * kGroups + group) * L::Own),
                            work.row0 + 64 * group, work.h, work, queries);
    }
    const int last = key_blocks(p, work) - 1, kv_head = p.kv_head(work.h);
#pragma unroll 1
    for (int block = last; block >= 0; --block, place.step()) {
      if (!is_leader) continue;
      const CopyBarrier k{shared + static_cast<uint32_t>(L::KFull + 8 * place.slot)};
      const CopyBarrier v{shared + static_cast<uint32_t>(L::VFull + 8 * place.slot)};
      const uint32_t keys = shared + static_cast<uint32_t>(L::K + place.slot * L::Block);
      const uint32_t values = shared + static_cast<uint32_t>(L::V + place.slot * L::Block);
      // No warpgroup processes more than half of such a block (see consume_tile).
      const bool half = Args::kPacked && seen_keys(p, work) - block * kKeys <= kKeys / 2;
      ThreadBarrier{shared + static_cast<uint32_t>(L::KFree + 8 * place.slot)}.wait(place.phase - 1);
      if (half) copy_keys<D, kKeys / 2>(maps.k, keys, block * kKeys, kv_head, work, k);
      else copy_keys<D, kKeys>(maps.k, keys, block * kKeys, kv_head, work, k);
      ThreadBarrier{shared + static_cast<uint32_t>(L::VFree + 8 * place.slot)}.wait(place.phase - 1);
      if (half) copy_keys<D, kKeys / 2>(maps.v, values, block * kKeys, kv_head, work, v);
      else copy_keys<D, kKeys>(maps.v, values, block * kKeys, kv_head, work, v);
    }
    __syncwarp();
  });
}

/// The warpgroups' turns in starting products: each sync is matched by the other's arrive.
__device__ __forceinline__ void take_turn(int group) {
  asm volatile("bar.sync %0, 256;\n" ::"r"(1 + kGroups + group) : "memory");
}
__device__ __forceinline__ void give_turn(int group) {
  asm volatile("bar.arrive %0, 256;\n" ::"r"(1 + kGroups + (group ^ 1)) : "memory");
}

/// The softmax state of rows g and g + 8 of a warp's 16 queries, like RowState.
struct Softmax {
  float base[2], sum[2];
};

/// Converts scores to probabilities relative to the base.
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

/// Stores lse of this warp's queries; writes out = o / sum to the memory of the queries, at `tile`, and starts storing
/// it from there.
template <int D, class Args, class AnyWork>
__device__ __forceinline__ void store_queries(const float (&o)[D / 8][4], const Softmax& state, const Args& p,
                                              const ForwardMaps& maps, const AnyWork& work, uint32_t tile,
                                              const char* memory, int group) {
  const int thread = fresh_thread(), row0 = work.row0 + thread / 32 * 16 + (thread >> 2 & 7);
  float factor[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = quad_sum(state.sum[half]);
    const int row = row0 + 8 * half;
    factor[half] = sum > 0 ? 1.0f / sum : 0.0f;
    if ((thread & 3) == 0 && row < work.rows(p))
      p.lse[(static_cast<int64_t>(work.b) * p.heads + work.h) * p.query_tokens + row] =
          sum > 0 ? (state.base[half] + log2f(sum)) * kLn2 : -INFINITY;
  }
  __syncwarp();
  wait_for_warpgroup(group);  // all warps have read these queries
  store_tile(tile, o, factor[0], factor[1]);
  publish();
  const bool whole = work.stores_whole(p, group);  // read before the last barrier: see release_last_buffer
  wait_for_warpgroup(group);
  if (!whole) {
    store_own<D>(p.out, memory + (tile - shared_address(memory)), p, work, work.row0 + 64 * group);
    wait_for_warpgroup(group);
  } else if (fresh_thread() % 128 == 0) {
    start_tile_store<D>(maps.out, tile, work.row0 + 64 * group, work);
    commit_stores();
  }
  __syncwarp();
}

/// The work of a warpgroup on one tile.
template <int D, class Args>
struct Consumer {
  using L = Layout<D>;
  const Args& p;
  const uint32_t shared, queries;  // shared address of all memory, and of the queries
  const int group;
  Place<kSlots>& place;            // of the current key block; at the end, of the next tile's first
  float o[D / 8][4], s[kKeys / 8][4];
  uint32_t a[kKeys / 16][4];       // probabilities of the current key block
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

  /// Starts o += P V for the first `Keys` keys of a block.
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

  /// Processes the first block, `block`: its first `Keys` keys, with masks.
  template <int Keys, class AnyWork, class AnyMeeting>
  __device__ __forceinline__ void first_block(const AnyWork& work, const AnyMeeting& meeting, int round, int block) {
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
    const int keys_end = work.keys(p), column0 = block * kKeys + 2 * (thread & 3);
    const int limit[2] = {(p.causal ? min(keys_end, row + 1) : keys_end) - column0,
                          (p.causal ? min(keys_end, row + 9) : keys_end) - column0};
    mask_columns(first, limit);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float top = row_top(first, half, scale_log2);
      state.base[half] = top == -INFINITY ? 0.0f : top;  // the row sees no key
      state.sum[half] = 0;
    }
    take_exponentials(first, state, scale_log2);
#pragma unroll
    for (int k = 0; k < Keys / 16; ++k) pack_a(a[k], first[2 * k], first[2 * k + 1]);
  }

  /// Computes the output of the current block, whose first `Keys` keys count, and the probabilities of the next.
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

  /// Processes the first two of `blocks` key blocks; only `First` keys of the first of them.
  template <int First, class AnyWork, class AnyMeeting>
  __device__ __forceinline__ void start_tile(const AnyWork& work, const AnyMeeting& meeting, int round, int blocks) {
    first_block<First>(work, meeting, round, blocks - 1);
    if (blocks > 1) next_block<First>();
    else last_output<First>();
  }
  /// Skips a tile's key blocks, for a warpgroup that has no queries in the tile.
  __device__ __forceinline__ void skip_blocks(int blocks) {
#pragma unroll 1
    for (int left = blocks; left > 0; --left, place.step()) {
      full(L::KFull, place).wait(place.phase);
      arrive_warp(free(L::KFree, place));
      if (left < blocks) {  // the turn of next_block
        take_turn(group);
        give_turn(group);
      }
      full(L::VFull, place).wait(place.phase);
      arrive_warp(free(L::VFree, place));
    }
  }
};

template <int D, class Args, class AnyWork, class AnyMeeting>
__device__ __forceinline__ void consume_tile(const Args& p, const ForwardMaps& maps, const AnyWork& work,
                                             const AnyMeeting& meeting, int round, Place<kSlots>& place, char* memory,
                                             int group) {
  const uint32_t shared = shared_address(memory);
  const uint32_t queries = uniform(
      shared + static_cast<uint32_t>(Layout<D>::Q + ((round & 1) * kGroups + group) * Layout<D>::Own));
  Consumer<D, Args> consumer{p, shared, queries, group, place};
  const int blocks = key_blocks(p, work), keys = work.keys(p);
  if (!work.has_tokens(p, group)) {
    release_last_buffer(meeting, round);
    consumer.skip_blocks(blocks);
    wait_for_warpgroup(group);  // all threads have read what they need of this tile
    return;
  }
  const int seen = p.causal ? min(keys, work.row0 + 64 * (group + 1)) : keys;
  if (seen - (blocks - 1) * kKeys <= kKeys / 2) consumer.template start_tile<kKeys / 2>(work, meeting, round, blocks);
  else consumer.template start_tile<kKeys>(work, meeting, round, blocks);
#pragma unroll 1
  for (int left = blocks - 2; left > 0; --left) consumer.template next_block<kKeys>();
  if (blocks > 1) consumer.template last_output<kKeys>();
  store_queries<D>(consumer.o, consumer.state, p, maps, work, queries, memory, group);
}

#endif  // BLIPFT_WGMMA_CODE

template <int D, class Args>
__global__ void __launch_bounds__(kThreads, 1)
    wgmma_long_forward_kernel(const __grid_constant__ Args p, const __grid_constant__ ForwardMaps maps,
                              const ScheduleOf<Args> schedule, unsigned* counter) {
#ifdef BLIPFT_WGMMA_CODE
  using L = Layout<D>;
  extern __shared__ __align__(1024) char memory[];
  const uint32_t shared = shared_address(memory);
  const auto tiles = make_tiles(p, schedule, memory + L::Table);
  const Meeting meeting{shared + L::Full, shared + L::Free, tiles.posted(memory + L::Positions)};
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
    if (fresh_thread() < kConsumers + 32) produce<D>(p, maps, tiles, meeting, counter, shared);
    return;
  }
  take_registers();
  if (group == 1) give_turn(1);  // warpgroup 0 begins
  Place<kSlots> place;
  consume_tiles(p, tiles, meeting, [&](int round, const auto& work) {
    consume_tile<D>(p, maps, work, meeting, round, place, memory, group);
  });
  if (group == 0) take_turn(0);  // the last turn that warpgroup 1 gave
  if (fresh_thread() % 128 == 0) wait_stores_read();  // the block must not exit while its stores read shared memory
#endif
}

template <int D, class Args>
void launch(const Args& p, const LaunchContext& context) {
  using L = Layout<D>;
  const ForwardMaps maps{map_of(p, p.q, p.heads), map_of(p, p.k, p.kv_heads), map_of(p, p.v, p.kv_heads),
                         map_of(p, p.out, p.heads)};
  const auto schedule = ScheduleOf<Args>::make(p, false, p.causal);
  constexpr int kBytes = L::template BytesOf<Args>;
  allow_shared_memory(&wgmma_long_forward_kernel<D, Args>, kBytes);
  wgmma_long_forward_kernel<D, Args>
      <<<schedule.grid(p, context), kThreads, kBytes, context.stream>>>(p, maps, schedule, context.counters);
  BLIPFT_CUDA_LAUNCHED("wgmma attention forward, long");
}

}  // namespace

bool wgmma_long_forward(const Params& p, const LaunchContext& context) {
  return with_instance(p, [&](auto size, const auto& args) { launch<decltype(size)::value>(args, context); });
}

}  // namespace blipft::attention
