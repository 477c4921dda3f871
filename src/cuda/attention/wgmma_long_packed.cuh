// Tiles of the long warpgroup kernels (see wgmma_long.cuh) for packed samples, and their order; also used for grouped
// heads of samples with equal length.
//
// The samples' lengths are in device memory, and a captured launch must work for other samples of the same shapes. So
// each block builds a table when it starts: the samples sorted by their number of tiles, most tiles first. The list of
// tiles is sorted by work, most work first: all tiles with W blocks of the other side, then those with W - 1, ...; the
// samples that have such a tile are at the start of the table. As many heads are processed together as have operands
// that fit in the L2 cache. The positions of a block's tiles in this list ascend: its producer keeps a cursor into the
// list and posts each tile, with the data of its sample, for the consumers.
#pragma once

#include "cuda/attention/wgmma_long.cuh"

namespace blipft::attention::wgmma_long {

/// The order of the tiles, as far as the host knows it.
struct PackedSchedule {
  int heads, heads_at_once;  ///< number of query heads, or of key heads if tiles are of keys
  bool last_first;           ///< a sample's last tile has most work; else its first

  /// Every tile of a head reads two operands of the other side. of_keys: tiles are of keys.
  static PackedSchedule make(const Params& p, bool of_keys, bool last_first) {
    const int64_t kv_head_bytes = int64_t{2} * p.rows * p.head_size * 2, other_bytes = kv_head_bytes * p.group;
    const auto at_once = static_cast<int>(
        std::clamp<int64_t>(kCacheBytes / (of_keys ? other_bytes : kv_head_bytes), 1, p.kv_heads));
    return {of_keys ? p.kv_heads : p.heads, of_keys ? at_once : at_once * p.group, last_first};
  }
  /// Returns the number of blocks, for any samples of this shape.
  unsigned grid(const Params& p, const LaunchContext& context) const {
    const int64_t maximum = int64_t{heads} * (p.rows / kRows + p.batch);
    return static_cast<unsigned>(std::min<int64_t>(maximum, context.sm_count));
  }
};

/// One tile, like Work. It is in shared memory, from which the consumers reload it.
struct PackedWork {
  int b, h, row0;                // b: -1: there are no more tiles
  int sample_rows, sample_keys;  // rows of the sample, and number of its keys that its queries see
  int token, sample;             // map_token(), map_sample()

  __device__ __forceinline__ int rows(const Params&) const { return sample_rows; }
  __device__ __forceinline__ int keys(const Params&) const { return sample_keys; }
  __device__ __forceinline__ int map_token() const { return token; }
  __device__ __forceinline__ int map_sample() const { return sample; }
  __device__ __forceinline__ bool has_tokens(const Params&, int group) const { return row0 + 64 * group < sample_rows; }
  __device__ __forceinline__ bool stores_whole(const Params& p, int group) const {
    return !p.starts || row0 + 64 * (group + 1) <= sample_rows;
  }
};

/// The table in shared memory.
struct alignas(16) PackedTable {
  uint32_t samples[kMaxSamples];  ///< tiles << 16 | 0xffff - sample, descending
  PackedWork posted[2];            ///< Meeting::posted
  int total;                       ///< tiles of a head, over all samples
  // The producer's cursor: number of tiles before this level; blocks of work per tile at this level; number of samples
  // with such a tile; first of the heads that are processed together.
  int before, level, count, head0;

  /// Fills the table. All threads of the block must call it, before a barrier.
  __device__ __forceinline__ void fill(const PackedParams& p, const PackedSchedule& schedule) {
    static_assert(kMaxSamples <= kThreads && kMaxSamples < 0xffff);
    const int thread = fresh_thread();
    uint32_t own = 0;
    if (thread < p.batch)
      own = static_cast<uint32_t>((p.queries(thread) + kRows - 1) / kRows) << 16 |
            (0xffffu - static_cast<uint32_t>(thread));
    if (thread < kMaxSamples) samples[thread] = own;
    __syncthreads();
    int place = 0, tiles = 0;
    if (thread < p.batch)
      for (int i = 0; i < p.batch; i += 4) {  // entries after the last sample are 0
        const uint4 x = *reinterpret_cast<const uint4*>(samples + i);
        place += (x.x > own) + (x.y > own) + (x.z > own) + (x.w > own);
        tiles += static_cast<int>((x.x >> 16) + (x.y >> 16) + (x.z >> 16) + (x.w >> 16));
      }
    __syncthreads();
    if (thread < p.batch) samples[place] = own;
    if (thread == 0) {
      total = tiles;
      before = count = 0, level = 1, head0 = -schedule.heads_at_once;  // move_to() advances to the first level
    }
  }
  __device__ __forceinline__ int tiles_at(int place) const { return static_cast<int>(samples[place] >> 16); }

  /// Moves the cursor to the level of `position`, which must be in the list and must not decrease. Called by one
  /// thread.
  __device__ __forceinline__ void move_to(const PackedParams& p, const PackedSchedule& schedule, int position) {
    while (true) {
      const int width = min(schedule.heads_at_once, schedule.heads - head0) * count;
      if (position < before + width) return;
      before += width;
      if (--level == 0) level = tiles_at(0), count = 0, head0 += schedule.heads_at_once;
      while (count < p.batch && tiles_at(count) >= level) ++count;
    }
  }
};

template <class Args>
constexpr int kTableBytes = Args::kPacked ? static_cast<int>(sizeof(PackedTable)) : 0;
template <class Args>
using ScheduleOf = std::conditional_t<Args::kPacked, PackedSchedule, Schedule>;

#ifdef BLIPFT_WGMMA_CODE

/// The tiles for the loops of wgmma_long.cuh. A tile is posted as a PackedWork.
struct PackedTiles {
  const PackedSchedule& schedule;
  PackedTable* table;

  __device__ __forceinline__ PackedWork* posted(char*) const { return table->posted; }
  __device__ __forceinline__ int total() const { return table->total * schedule.heads; }
  __device__ __forceinline__ void post(const PackedParams& p, PackedWork& posted, int position) const {
    if (position >= total()) {
      posted.b = -1;
      return;
    }
    table->move_to(p, schedule, position);
    const int heads = min(schedule.heads_at_once, schedule.heads - table->head0), index = position - table->before;
    const int place = index / heads, tiles = table->tiles_at(place);
    const int b = static_cast<int>(0xffffu - (table->samples[place] & 0xffffu));
    posted.b = b;
    posted.h = table->head0 + index - place * heads;
    posted.row0 = (schedule.last_first ? table->level - 1 : tiles - table->level) * kRows;
    posted.sample_rows = p.queries(b);
    posted.sample_keys = p.kv_length(b);
    posted.token = p.starts ? p.starts[b] : 0;
    posted.sample = p.starts ? 0 : b;
  }
  static __device__ __forceinline__ const PackedWork* read(const PackedWork& posted) { return &posted; }
  static __device__ __forceinline__ const PackedWork* own(const PackedWork& posted, int) { return &posted; }
  static __device__ __forceinline__ bool is_end(const PackedWork* work) {
    return static_cast<int>(uniform(static_cast<uint32_t>(work->b))) < 0;
  }
  static __device__ __forceinline__ const PackedWork& work(const PackedParams&, const PackedWork* work) {
    return *work;
  }
};

/// Returns the tiles of a kernel. All threads of the block must call it, before a barrier; `table` has
/// kTableBytes<Args>.
__device__ __forceinline__ Tiles make_tiles(const Params&, const Schedule& schedule, char*) { return {schedule}; }
__device__ __forceinline__ PackedTiles make_tiles(const PackedParams& p, const PackedSchedule& schedule, char* table) {
  PackedTiles tiles{schedule, reinterpret_cast<PackedTable*>(table)};
  tiles.table->fill(p, schedule);
  return tiles;
}

#endif  // BLIPFT_WGMMA_CODE

}  // namespace blipft::attention::wgmma_long
