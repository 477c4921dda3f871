// Attention backward for bf16 with warpgroup products, for any number of tokens, causal or not, head sizes 64 and 128
// (formulas: backward.cuh). wgmma_long.cuh describes the structure (tiles, producer, ring), wgmma_long_packed.cuh that
// for packed samples and grouped heads.
//
// Two kernels compute delta and dQ by tiles of queries, and dK and dV by tiles of keys. They need 7 products where one
// pass would need 5, but add nothing in memory: results are deterministic, and there is no f32 copy of dQ. Both kernels
// compute the A operand of the next product in registers:
//   queries   S = Q K^T, dP = dO V^T, dQ += dS K          64 queries per warpgroup, 64 keys per step, descending
//   keys      S^T = K Q^T, dP^T = V dO^T, dV += P^T dO,   64 keys per warpgroup, 64 queries per step, ascending,
//             dK += dS^T Q                                for one after the other of the heads that use these keys
// Only a warpgroup's first step needs masks (except for keys at and after kv_length in the second kernel: whole rows,
// zeroed at the end). A warpgroup skips the first block of a tile if it sees none of it.
// Each step's last products overlap with the next step's first; the two warpgroups fill each other's idle times.
// Results are stored through the memory of the tile's own operands.
#include <cuda_runtime.h>

#include <climits>
#include <type_traits>

#include "cuda/attention/wgmma_long_packed.cuh"
#include "cuda/device/cuda_check.h"

namespace blipft::attention {
namespace {

using namespace wgmma_long;

constexpr int kStep = 64, kSlots = 3;

struct BackwardMaps {
  CUtensorMap q, k, v, dout, dq, dk, dv;
};

/// Byte offsets in shared memory. A tile's own operands: Q and dO (queries) or K and V (keys); a slot has the others.
template <int D>
struct Layout {
  static constexpr int Part = tile_bytes<D>(64);
  static constexpr int Own = 0, Slots = 2 * kGroups * 2 * Part;      // [buffer][warpgroup][2], [slot][2]
  // f32. Tiles of keys: [slot][2][kStep], lse (log2) and delta. Tiles of queries: [warpgroup][64], delta.
  static constexpr int Numbers = Slots + kSlots * 2 * Part;
  static constexpr int Full = Numbers + kSlots * 2 * kStep * 4, Free = Full + 16, Positions = Free + 16;  // Meeting
  static constexpr int SlotFull = Positions + 8, SlotFree = SlotFull + 8 * kSlots;                        // barriers
  static constexpr int Bytes = SlotFree + 8 * kSlots, Table = (Bytes + 15) / 16 * 16;
  template <class Args>
  static constexpr int BytesOf = Args::kPacked ? Table + kTableBytes<Args> : Bytes;
  static_assert(Part % 1024 == 0 && BytesOf<PackedParams> <= 227 << 10, "one block an SM");
};

#ifdef BLIPFT_WGMMA_CODE

/// The steps of a tile.
struct Steps {
  int first, count;  ///< block of kStep tokens of the first step, number of steps of the tile
  int skipped;       ///< number of these, from the first on, that this warpgroup does not see
};
/// Tiles of queries: blocks of keys, descending; at least one.
template <class Args, class AnyWork>
__device__ __forceinline__ Steps key_steps(const Args& p, const AnyWork& work, int group) {
  const int keys = work.keys(p);
  const auto blocks = [&](int g) {
    const int seen = p.causal ? min(keys, work.row0 + 64 * (g + 1)) : keys;
    return max(1, (seen + kStep - 1) / kStep);
  };
  const int count = blocks(kGroups - 1);
  return {count - 1, count, count - blocks(group)};
}
/// Tiles of keys: blocks of queries of a head, ascending; none if no key is valid.
template <class Args, class AnyWork>
__device__ __forceinline__ Steps query_steps(const Args& p, const AnyWork& work, int group) {
  const int first = p.causal ? work.row0 / kStep : 0;
  const int count = work.row0 < work.keys(p) ? (work.rows(p) + kStep - 1) / kStep - first : 0;
  return {first, count, p.causal ? min(group, count) : 0};
}

template <int D>
__device__ __forceinline__ uint32_t slot_tile(uint32_t shared, int slot, int which) {
  return uniform(shared + static_cast<uint32_t>(Layout<D>::Slots + (slot * 2 + which) * Layout<D>::Part));
}
template <int D>
__device__ __forceinline__ CopyBarrier slot_full(uint32_t shared, int slot) {
  return {shared + static_cast<uint32_t>(Layout<D>::SlotFull + 8 * slot)};
}
template <int D>
__device__ __forceinline__ ThreadBarrier slot_free(uint32_t shared, int slot) {
  return {shared + static_cast<uint32_t>(Layout<D>::SlotFree + 8 * slot)};
}

/// The producer, one warp. Keys: tiles are of keys; each lane then also copies lse and delta of two queries, and
/// arrives.
template <int D, bool Keys, class Args, class AnyTiles, class AnyMeeting>
__device__ __forceinline__ void produce(const Args& p, const BackwardMaps& maps, const AnyTiles& tiles,
                                        const AnyMeeting& meeting, unsigned* counter, char* memory) {
  using L = Layout<D>;
  const uint32_t shared = shared_address(memory);
  Place<kSlots> place;
  produce_tiles(p, tiles, meeting, counter, [&](int buffer, const auto& work) {
    const int lane = fresh_thread() & 31;
    if (lane == 0) {
      const CopyBarrier full = meeting.full_at(buffer);
      full.expect(work.has_tokens(p, 1) ? 2 * kGroups * L::Part : 2 * L::Part);
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        if (group > 0 && !work.has_tokens(p, group)) continue;
        const uint32_t own = shared + static_cast<uint32_t>(L::Own + (buffer * kGroups + group) * 2 * L::Part);
        start_copy<D, 64>(Keys ? maps.k : maps.q, own, work.row0 + 64 * group, work.h, work, full);
        start_copy<D, 64>(Keys ? maps.v : maps.dout, own + L::Part, work.row0 + 64 * group, work.h, work, full);
      }
    }
    const Steps steps = Keys ? query_steps(p, work, 0) : key_steps(p, work, 0);
    // Heads of the other side: those that use the keys, or the one that the queries use.
    const int heads = Keys ? p.heads_per_kv() : 1, head0 = Keys ? work.h * heads : p.kv_head(work.h);
#pragma unroll 1
    for (int head = head0; head < head0 + heads; ++head) {
      const int64_t row0 = (static_cast<int64_t>(work.b) * p.heads + head) * p.query_tokens;
#pragma unroll 1
      for (int step = 0; step < steps.count; ++step, place.step()) {
        const int token = kStep * (Keys ? steps.first + step : steps.first - step);
        float lse[2], delta[2];
        if constexpr (Keys) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int row = token + 32 * i + lane;
            lse[i] = row < work.rows(p) ? lse_log2(p.lse[row0 + row]) : INFINITY;
            delta[i] = row < work.rows(p) ? p.delta[row0 + row] : 0.0f;
          }
        }
        slot_free<D>(shared, place.slot).wait(place.phase - 1);  // phase -1 of the first use counts as complete
        const CopyBarrier full = slot_full<D>(shared, place.slot);
        if constexpr (Keys) {
          float* numbers = reinterpret_cast<float*>(memory + L::Numbers) + place.slot * 2 * kStep + lane;
#pragma unroll
          for (int i = 0; i < 2; ++i) numbers[32 * i] = lse[i], numbers[kStep + 32 * i] = delta[i];
          if (lane != 0) ThreadBarrier{full.address}.arrive();
        }
        if (lane == 0) {
          full.expect(2 * L::Part);
          const uint32_t slot = shared + static_cast<uint32_t>(L::Slots + place.slot * 2 * L::Part);
          start_copy<D, 64>(Keys ? maps.q : maps.k, slot, token, head, work, full);
          start_copy<D, 64>(Keys ? maps.dout : maps.v, slot + L::Part, token, head, work, full);
        }
        __syncwarp();
      }
    }
  });
}

/// Skips the first `count` slots, which this warpgroup does not need.
template <int D>
__device__ __forceinline__ void skip_slots(uint32_t shared, Place<kSlots>& place, int count) {
#pragma unroll 1
  for (; count > 0; --count, place.step()) {
    slot_full<D>(shared, place.slot).wait(place.phase);
    arrive_warp(slot_free<D>(shared, place.slot));
  }
}

/// dQ of a warpgroup's 64 queries. Q and dO stay in registers, which leaves more shared-memory bandwidth for K and V.
template <int D>
struct QueryTile {
  using L = Layout<D>;
  const uint32_t shared;
  Place<kSlots>& place;  // of the current step; at the end, of the next tile's first
  const float scale_log2;
  float dq[D / 8][4], s[8][4], dp[8][4], lse[2], delta[2];  // lse and delta of rows g and g + 8
  uint32_t q[D / 16][4], dout[D / 16][4], ds[4][4];

  /// Loads lse, Q and dO before the first step. row: this lane's row g in the sample.
  template <class Args, class AnyWork>
  __device__ __forceinline__ void load(const Args& p, const AnyWork& work, int row, uint32_t own) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t first = (static_cast<int64_t>(work.b) * p.heads + work.h) * p.query_tokens;
      lse[half] = row + 8 * half < work.rows(p) ? lse_log2(p.lse[first + row + 8 * half]) : INFINITY;
    }
    load_fragments<D>(q, own);
    load_fragments<D>(dout, own + L::Part);
  }
  __device__ __forceinline__ void start_scores() {
    slot_full<D>(shared, place.slot).wait(place.phase);
    begin_products();
    multiply_held_transposed<D, kStep>(s, q, slot_tile<D>(shared, place.slot, 0));
    commit_products();
    multiply_held_transposed<D, kStep>(dp, dout, slot_tile<D>(shared, place.slot, 1));
    commit_products();
  }
  /// Starts dQ += dS K of the preceding step.
  __device__ __forceinline__ void start_dq() {
    add_product<D, kStep>(dq, ds, slot_tile<D>(shared, place.last_slot(), 0));
    commit_products();
  }
  __device__ __forceinline__ void end_dq() {
    wait_products<0>();
    pin(dq);
    arrive_warp(slot_free<D>(shared, place.last_slot()));
  }
  /// Called when S is complete; waits for dP and computes dS. Unless First, dQ of the preceding step runs meanwhile.
  template <bool First>
  __device__ __forceinline__ void end_step() {
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) s[n][e] = exp2_approx(fmaf(s[n][e], scale_log2, -lse[e / 2]));
    pin(s);
    stay_before(slot_full<D>(shared, place.slot), place.phase);
    wait_products<First ? 0 : 1>();
    pin(dp);
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) s[n][e] *= dp[n][e] - delta[e / 2];
    if constexpr (!First) {
      pin(s);
      stay_before(slot_full<D>(shared, place.slot), place.phase);
      end_dq();
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) pack_a(ds[k], s[2 * k], s[2 * k + 1]);
    place.step();
  }
  __device__ __forceinline__ void next_step() {
    start_scores();
    start_dq();
    wait_products<2>();
    pin(s);
    end_step<false>();
  }
};

/// Skips a tile of `count` slots, for a warpgroup that has no tokens in it.
template <int D, class AnyMeeting>
__device__ __forceinline__ void skip_tile(const AnyMeeting& meeting, int round, uint32_t shared, Place<kSlots>& place,
                                          int count, int group) {
  release_last_buffer(meeting, round);
  skip_slots<D>(shared, place, count);
  wait_for_warpgroup(group);  // all threads have read what they need of this tile
}

/// Processes one tile of a warpgroup.
template <int D, class Args, class AnyWork, class AnyMeeting>
__device__ __forceinline__ void take_queries(const Args& p, const BackwardMaps& maps, const AnyWork& work,
                                             const AnyMeeting& meeting, int round, Place<kSlots>& place, char* memory,
                                             int group) {
  using L = Layout<D>;
  const uint32_t shared = shared_address(memory);
  const int buffer = round & 1, own = L::Own + (buffer * kGroups + group) * 2 * L::Part;
  const int row = fresh_thread() / 32 * 16 + (fresh_thread() >> 2 & 7);  // in the tile
  const Steps steps = key_steps(p, work, group);
  if (!work.has_tokens(p, group)) return skip_tile<D>(meeting, round, shared, place, steps.count, group);
  QueryTile<D> tile{shared, place, p.scale * kLog2e};
  Deltas<D> deltas;
  tile.load(p, work, work.row0 + row, shared + static_cast<uint32_t>(own));
  deltas.load(p, work, work.row0 + 64 * group);
  skip_slots<D>(shared, place, steps.skipped);
  tile.start_scores();
  release_last_buffer(meeting, round);
  float* numbers = reinterpret_cast<float*>(memory + L::Numbers);
  deltas.make(p, work, work.row0 + 64 * group, memory + own + L::Part, numbers + 64 * group);
  tile.delta[0] = numbers[row];
  tile.delta[1] = numbers[row + 8];
  clear(tile.dq);
  wait_products<1>();
  pin(tile.s);
  {
    const int keys = work.keys(p), column0 = (steps.first - steps.skipped) * kStep + 2 * (fresh_thread() & 3);
    const int limit[2] = {(p.causal ? min(keys, work.row0 + row + 1) : keys) - column0,
                          (p.causal ? min(keys, work.row0 + row + 9) : keys) - column0};
    mask_columns(tile.s, limit);
  }
  tile.template end_step<true>();
#pragma unroll 1
  for (int left = steps.count - steps.skipped - 1; left > 0; --left) tile.next_step();
  begin_products();
  tile.start_dq();
  tile.end_dq();
  wait_for_warpgroup(group);  // all warps have read these queries
  const uint32_t out = uniform(shared + static_cast<uint32_t>(own));
  store_tile(out, tile.dq, p.scale, p.scale);
  publish();
  const bool whole = work.stores_whole(p, group);  // read before the last barrier: see release_last_buffer
  wait_for_warpgroup(group);
  if (!whole) {
    store_own<D>(p.dq, memory + own, p, work, work.row0 + 64 * group);
    wait_for_warpgroup(group);
  } else if (fresh_thread() % 128 == 0) {
    start_tile_store<D>(maps.dq, out, work.row0 + 64 * group, work);
    commit_stores();
  }
  __syncwarp();
}
/// dK and dV of a warpgroup's 64 keys. S, P, dP and dS are transposed: rows are keys.
template <int D>
struct KeyTile {
  using L = Layout<D>;
  char* const memory;
  const uint32_t shared, k, v;  // shared addresses of all memory, K and V
  Place<kSlots>& place;         // as in QueryTile
  const float scale_log2;
  float dk[D / 8][4], dv[D / 8][4], s[8][4], dp[8][4];
  uint32_t weights[4][4], ds[4][4];  // P and dS

  /// Starts dK += dS^T Q of the preceding step.
  __device__ __forceinline__ void start_dk() {
    add_product<D, kStep>(dk, ds, slot_tile<D>(shared, place.last_slot(), 0));
    commit_products();
  }
  __device__ __forceinline__ void end_dk() {
    wait_products<0>();
    pin(dk);
    arrive_warp(slot_free<D>(shared, place.last_slot()));
  }
  /// Processes one step; masked: its queries are the warpgroup's own tokens. The exponentials overlap with dK of the
  /// preceding step, dS with dV.
  template <bool First>
  __device__ __forceinline__ void take_step(bool masked) {
    slot_full<D>(shared, place.slot).wait(place.phase);
    begin_products();
    multiply_rows_transposed<D, kStep>(s, k, slot_tile<D>(shared, place.slot, 0));
    commit_products();
    if constexpr (!First) start_dk();
    wait_products<First ? 0 : 1>();
    pin(s);
    if (First && masked) mask_later_keys();
    const float2* numbers = reinterpret_cast<const float2*>(memory + L::Numbers) + place.slot * kStep +
                            (fresh_thread() & 3);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 lse = numbers[4 * n];
#pragma unroll
      for (int e = 0; e < 4; ++e) s[n][e] = exp2_approx(fmaf(s[n][e], scale_log2, -(e & 1 ? lse.y : lse.x)));
    }
    if constexpr (!First) {
      pin(s);
      stay_before(slot_full<D>(shared, place.slot), place.phase);
      end_dk();
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) pack_a(weights[i], s[2 * i], s[2 * i + 1]);
    begin_products();
    multiply_rows_transposed<D, kStep>(dp, v, slot_tile<D>(shared, place.slot, 1));
    commit_products();
    add_product<D, kStep>(dv, weights, slot_tile<D>(shared, place.slot, 1));
    commit_products();
    wait_products<1>();
    pin(dp);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 delta = numbers[kStep / 2 + 4 * n];
#pragma unroll
      for (int e = 0; e < 4; ++e) s[n][e] *= dp[n][e] - (e & 1 ? delta.y : delta.x);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) pack_a(ds[i], s[2 * i], s[2 * i + 1]);
    wait_products<0>();
    pin(dv);
    place.step();
  }
  /// Sets scores to -inf if the key (row) comes after the query (column), both counted from the same token.
  __device__ __forceinline__ void mask_later_keys() {
    const int row = (fresh_thread() >> 5 & 3) * 16 + (fresh_thread() >> 2 & 7) - 2 * (fresh_thread() & 3);
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (8 * n + (e & 1) < row + 8 * (e / 2)) s[n][e] = -INFINITY;
  }
};

/// Zeroes rows of C fragments at and after `rows`, counted from this lane's row g; their values may be undefined.
template <int N>
__device__ __forceinline__ void zero_rows_from(float (&c)[N][4], int rows) {
#pragma unroll
  for (int n = 0; n < N; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (8 * (e / 2) >= rows) c[n][e] = 0;
}

/// Processes one tile of a warpgroup.
template <int D, class Args, class AnyWork, class AnyMeeting>
__device__ __forceinline__ void take_keys(const Args& p, const BackwardMaps& maps, const AnyWork& work,
                                          const AnyMeeting& meeting, int round, Place<kSlots>& place, char* memory,
                                          int group) {
  using L = Layout<D>;
  const uint32_t shared = shared_address(memory);
  const int own = L::Own + ((round & 1) * kGroups + group) * 2 * L::Part;
  const uint32_t k = uniform(shared + static_cast<uint32_t>(own)), v = k + static_cast<uint32_t>(L::Part);
  const Steps steps = query_steps(p, work, group);
  if (!work.has_tokens(p, group))
    return skip_tile<D>(meeting, round, shared, place, steps.count * p.heads_per_kv(), group);
  KeyTile<D> tile{memory, shared, k, v, place, p.scale * kLog2e};
  clear(tile.dk);
  clear(tile.dv);
#pragma unroll 1
  for (int member = 0; member < p.heads_per_kv(); ++member) {  // query heads
    skip_slots<D>(shared, place, steps.skipped);
    if (member == 0) release_last_buffer(meeting, round);
    if (steps.skipped >= steps.count) continue;
    tile.template take_step<true>(p.causal);
#pragma unroll 1
    for (int left = steps.count - steps.skipped - 1; left > 0; --left) tile.template take_step<false>(false);
    begin_products();
    tile.start_dk();
    tile.end_dk();
  }
  const int keys = work.keys(p) - work.row0 - 64 * group;
  if (keys < 64) {
    const int rows = keys - (fresh_thread() >> 5 & 3) * 16 - (fresh_thread() >> 2 & 7);
    zero_rows_from(tile.dk, rows);
    zero_rows_from(tile.dv, rows);
  }
  wait_for_warpgroup(group);  // all warps have read these keys and values
  store_tile(k, tile.dk, p.scale, p.scale);
  store_tile(v, tile.dv, 1.0f, 1.0f);
  publish();
  const bool whole = work.stores_whole(p, group);  // as in take_queries
  wait_for_warpgroup(group);
  if (!whole) {
    store_own<D>(p.dk, memory + own, p, work, work.row0 + 64 * group);
    store_own<D>(p.dv, memory + own + L::Part, p, work, work.row0 + 64 * group);
    wait_for_warpgroup(group);
  } else if (fresh_thread() % 128 == 0) {
    start_tile_store<D>(maps.dk, k, work.row0 + 64 * group, work);
    start_tile_store<D>(maps.dv, v, work.row0 + 64 * group, work);
    commit_stores();
  }
  __syncwarp();
}

#endif  // BLIPFT_WGMMA_CODE

/// Keys: dK and dV by tiles of keys; otherwise dQ by tiles of queries.
template <int D, bool Keys, class Args>
__global__ void __launch_bounds__(kThreads, 1)
    wgmma_long_backward_kernel(const __grid_constant__ Args p, const __grid_constant__ BackwardMaps maps,
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
    for (int slot = 0; slot < kSlots; ++slot) {
      ThreadBarrier{slot_full<D>(shared, slot).address}.init(Keys ? 32 : 1);
      slot_free<D>(shared, slot).init(kConsumerWarps);
    }
    publish_barriers();
  }
  if (fresh_thread() == kConsumers) {
    prefetch_map(maps.q);
    prefetch_map(maps.k);
    prefetch_map(maps.v);
    prefetch_map(maps.dout);
  }
  __syncthreads();
  const int group = warpgroup_number();
  if (group == kGroups) {
    give_registers();
    if (fresh_thread() < kConsumers + 32) produce<D, Keys>(p, maps, tiles, meeting, counter, memory);
    return;
  }
  take_registers();
  Place<kSlots> place;
  consume_tiles(p, tiles, meeting, [&](int round, const auto& work) {
    if constexpr (Keys) take_keys<D>(p, maps, work, meeting, round, place, memory, group);
    else take_queries<D>(p, maps, work, meeting, round, place, memory, group);
  });
  if (fresh_thread() % 128 == 0) wait_stores_read();  // the block must not exit while its stores read shared memory
#endif
}

template <int D, bool Keys, class Args>
void launch_kernel(const Args& p, const BackwardMaps& maps, const LaunchContext& context) {
  const auto schedule = ScheduleOf<Args>::make(p, Keys, p.causal && !Keys);
  constexpr int kBytes = Layout<D>::template BytesOf<Args>;
  allow_shared_memory(&wgmma_long_backward_kernel<D, Keys, Args>, kBytes);
  wgmma_long_backward_kernel<D, Keys, Args>
      <<<schedule.grid(p, context), kThreads, kBytes, context.stream>>>(p, maps, schedule, context.counters);
  BLIPFT_CUDA_LAUNCHED("wgmma attention backward, long");
}

template <int D, class Args>
void launch(const Args& p, const LaunchContext& context) {
  const BackwardMaps maps{map_of(p, p.q, p.heads),     map_of(p, p.k, p.kv_heads), map_of(p, p.v, p.kv_heads),
                          map_of(p, p.dout, p.heads),  map_of(p, p.dq, p.heads),   map_of(p, p.dk, p.kv_heads),
                          map_of(p, p.dv, p.kv_heads)};
  launch_kernel<D, false>(p, maps, context);  // computes delta
  launch_kernel<D, true>(p, maps, context);
}

}  // namespace

bool wgmma_long_backward(const Params& p, const LaunchContext& context) {
  return with_instance(p, [&](auto size, const auto& args) { launch<decltype(size)::value>(args, context); });
}

}  // namespace blipft::attention
