// Common code of the attention kernels with warpgroup products for sequences of any length, causal or not
// (wgmma_long_forward.cu, wgmma_long_backward.cu): head sizes 64 and 128, bf16, no dropout.
//
// One block per SM iterates over tiles of kRows tokens of a head: queries (forward, dQ) or keys (dK and dV). Two
// warpgroups own 64 of them each. Another warp, the producer, uses TMA to copy a tile's own operands to the other of
// two buffers while the preceding tile is processed, and the operands of the other side, in blocks, through a ring of
// slots. After the first barrier of the whole block there is no other: `full` barriers signal arrived copies, `free`
// barriers memory that no warp reads any more.
//
// Tiles in shared memory consist of D / 64 consecutive parts of 64 columns, each like the left part of wgmma.cuh (rows
// of 128 bytes, 128-byte swizzle).
//
// Order of the tiles: those with most work first, within a group of heads whose operands fit in the L2 cache. A block
// fetches the next tile when it has requested all operands of the last. Packed samples and grouped heads have kernels
// of their own, selected by Args as elsewhere; wgmma_long_packed.cuh describes their tiles.
#pragma once

#include <algorithm>
#include <type_traits>

#include "cuda/attention/backward.cuh"
#include "cuda/attention/wgmma.cuh"
#include "cuda/kernels.h"

namespace blipft::attention {

// Launchers; each returns false if it does not support the arguments.
bool wgmma_long_forward(const Params&, const LaunchContext&);
/// Runs two deterministic kernels: delta and dQ by tiles of queries, dK and dV by tiles of keys. Writes p.delta.
bool wgmma_long_backward(const Params&, const LaunchContext&);

namespace wgmma_long {

constexpr int kGroups = 2, kRows = 64 * kGroups, kConsumers = 128 * kGroups, kThreads = kConsumers + 128;
constexpr int kConsumerWarps = kConsumers / 32;
constexpr int kBox = 64 * 128;    ///< bytes of 64 rows of a part, the size of one copy
constexpr int64_t kCacheBytes = 32 << 20;  ///< bytes of the other side's operands that should stay in the L2 cache
constexpr int kMinTokens = 64;  ///< minimum average length of a sample, so that tiles are not mostly empty
constexpr int kMaxSamples = 256; ///< packed or grouped: capacity of the table of samples in shared memory

/// True if the kernels support these arguments, apart from the head size, and are faster than those with mma.sync.
inline bool fits(const Params& p) {
  return p.wgmma && p.wide && !p.dropout && p.query_tokens == p.kv_tokens && p.rows >= kMinTokens * p.batch &&
         !(p.packed_or_grouped() && p.batch > kMaxSamples);
}

/// Calls `launch` with the head size as an integral constant, and with Params or PackedParams. Returns false if the
/// kernels do not support the arguments.
template <class Launch>
bool with_instance(const Params& p, const Launch& launch) {
  if (!fits(p) || (p.head_size != 64 && p.head_size != 128)) return false;
  const auto with_args = [&](auto size) {
    if (p.packed_or_grouped()) launch(size, PackedParams{p});
    else launch(size, p);
  };
  if (p.head_size == 64) with_args(std::integral_constant<int, 64>());
  else with_args(std::integral_constant<int, 128>());
  return true;
}

/// Returns TMA's view of 64 columns of a matrix's heads, in boxes of 64 tokens. Packed samples are one sample in it.
inline CUtensorMap map_of(const Params& p, const View& view, int heads) {
  return make_tensor_maps(view, {p.head_size, p.starts ? p.rows : p.query_tokens, heads, p.starts ? 1 : p.batch}).left;
}

/// Returns the bytes of `rows` rows of D columns.
template <int D>
constexpr int tile_bytes(int rows) { return rows * D * 2; }

/// The tiles and their order.
struct Schedule {
  int heads, tiles;  ///< heads of all samples, tiles of a head
  int group;         ///< heads that are processed together
  bool last_first;   ///< the last tile of a head has most work; else the first

  /// Every tile of a head reads two operands of the other side. of_keys: tiles are of keys.
  static Schedule make(const Params& p, [[maybe_unused]] bool of_keys, bool last_first) {
    const int64_t head_bytes = int64_t{2} * p.kv_tokens * p.head_size * 2;
    return {p.batch * p.heads, static_cast<int>(ceil_div(p.query_tokens, kRows)),
            static_cast<int>(std::clamp<int64_t>(kCacheBytes / head_bytes, 1, int64_t{p.batch} * p.heads)), last_first};
  }
  unsigned grid(const Params&, const LaunchContext& context) const {
    return static_cast<unsigned>(std::min<int64_t>(int64_t{heads} * tiles, context.sm_count));
  }
};

#ifdef BLIPFT_WGMMA_CODE

/// One tile: tokens row0 to row0 + kRows - 1 of a head, which are queries, or keys and values if tiles are of keys.
struct Work {
  int b, h, row0;

  __device__ __forceinline__ int rows(const Params& p) const { return p.query_tokens; }
  __device__ __forceinline__ int keys(const Params& p) const { return p.kv_length(b); }  ///< seen by queries
  /// Position of the sample in the view of map_of: its first token, and its index.
  static __device__ __forceinline__ constexpr int map_token() { return 0; }
  __device__ __forceinline__ int map_sample() const { return b; }
  /// has_tokens: true if the warpgroup has tokens that exist. stores_whole: true if TMA may store all its tokens (it
  /// skips tokens after the end of the matrix).
  static __device__ __forceinline__ constexpr bool has_tokens(const Params&, int) { return true; }
  static __device__ __forceinline__ constexpr bool stores_whole(const Params&, int) { return true; }
};

/// The tiles of samples of equal length with one key head per query head, for the loops below. A tile is posted as its
/// position in the schedule.
struct Tiles {
  const Schedule& schedule;

  /// Returns the memory for posted tiles: [2].
  static __device__ __forceinline__ int* posted(char* place) { return reinterpret_cast<int*>(place); }
  __device__ __forceinline__ int total() const { return schedule.heads * schedule.tiles; }
  __device__ __forceinline__ void post(const Params&, int& posted, int position) const { posted = position; }
  /// read() and own() return the tile argument of the other functions: for a consumer, and for the thread that posted
  /// it.
  static __device__ __forceinline__ int read(const int& posted) {
    return static_cast<int>(uniform(static_cast<uint32_t>(posted)));
  }
  static __device__ __forceinline__ int own(const int&, int position) { return position; }
  __device__ __forceinline__ bool is_end(int position) const { return position >= total(); }
  __device__ __forceinline__ Work work(const Params& p, int position) const {
    const int group = position / (schedule.group * schedule.tiles), first = group * schedule.group;
    const int heads = min(schedule.group, schedule.heads - first), within = position - first * schedule.tiles;
    const int level = within / heads, head = first + within - level * heads;
    const int tile = schedule.last_first ? schedule.tiles - 1 - level : level;
    return {head / p.heads, head % p.heads, tile * kRows};
  }
};

/// Synchronization of the producer and the consumers: barriers of the two buffers of a tile's own operands, and the
/// posted tiles (or the information that there are no more).
template <class Posted>
struct Meeting {
  uint32_t full, free;  ///< shared addresses of 2 barriers each
  Posted* posted;       ///< [2], in shared memory

  __device__ __forceinline__ CopyBarrier full_at(int buffer) const {
    return {full + static_cast<uint32_t>(8 * buffer)};
  }
  __device__ __forceinline__ ThreadBarrier free_at(int buffer) const {
    return {free + static_cast<uint32_t>(8 * buffer)};
  }
};

/// The producer warp's loop: calls body(buffer, work) when the buffer is free; in it lane 0 announces on
/// full_at(buffer) the bytes that it copies. Each block starts with one tile and then fetches the next from `counter`,
/// which is 0 before and after the kernel: it is incremented `total` times in all.
template <class Args, class AnyTiles, class AnyMeeting, class Body>
__device__ __forceinline__ void produce_tiles(const Args& p, const AnyTiles& tiles, const AnyMeeting& meeting,
                                              unsigned* counter, Body&& body) {
  const int total = tiles.total(), lane = fresh_thread() & 31;
  int position = static_cast<int>(blockIdx.x);
#pragma unroll 1
  for (int round = 0;; ++round) {
    const int buffer = round & 1;
    meeting.free_at(buffer).wait((round >> 1) - 1);  // phase -1 of the first use counts as complete
    if (lane == 0) tiles.post(p, meeting.posted[buffer], position);
    if (position >= total) {
      if (lane == 0) ThreadBarrier{meeting.full_at(buffer).address}.arrive();
      return;
    }
    int ticket = 0;
    if (lane == 0) {
      ticket = static_cast<int>(atomicAdd(counter, 1u));
      if (ticket == total - 1) *counter = 0;  // this was the last increment
    }
    __syncwarp();
    body(buffer, tiles.work(p, tiles.own(meeting.posted[buffer], position)));
    position = static_cast<int>(gridDim.x) + __shfl_sync(0xffffffffu, ticket, 0);
  }
}
/// A consumer's loop: calls body(round, work) when the operands have arrived.
template <class Args, class AnyTiles, class AnyMeeting, class Body>
__device__ __forceinline__ void consume_tiles(const Args& p, const AnyTiles& tiles, const AnyMeeting& meeting,
                                              Body&& body) {
#pragma unroll 1
  for (int round = 0;; ++round) {
    meeting.full_at(round & 1).wait(round >> 1);
    const auto tile = tiles.read(meeting.posted[round & 1]);
    if (tiles.is_end(tile)) return;
    body(round, tiles.work(p, tile));
  }
}
/// Frees the buffer of the preceding round once its stores have read it; one thread of each warpgroup does so. After
/// the last barrier of a round, only this thread may therefore access the round's tile or the posted data about it.
template <class AnyMeeting>
__device__ __forceinline__ void release_last_buffer(const AnyMeeting& meeting, int round) {
  if (round > 0 && fresh_thread() % 128 == 0) {
    wait_stores_read();
    meeting.free_at((round & 1) ^ 1).arrive();
  }
  __syncwarp();
}
/// Called by one thread, before a barrier of the block.
template <class AnyMeeting>
__device__ __forceinline__ void init_meeting(const AnyMeeting& meeting) {
#pragma unroll
  for (int buffer = 0; buffer < 2; ++buffer) {
    meeting.full_at(buffer).init();
    meeting.free_at(buffer).init(kGroups);
  }
}

/// Moves registers from the producer's warpgroup to the consumers; all threads start with 168.
__device__ __forceinline__ void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 240;\n"); }
__device__ __forceinline__ void give_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 24;\n"); }

/// Position in a ring of `Slots` slots: use i is of slot i % Slots, for the (i / Slots)-th time.
template <int Slots>
struct Place {
  int slot = 0, phase = 0;

  __device__ __forceinline__ void step() {
    if (++slot == Slots) slot = 0, ++phase;
  }
  __device__ __forceinline__ int last_slot() const { return slot == 0 ? Slots - 1 : slot - 1; }
};

__device__ __forceinline__ void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];\n" ::"l"(&map) : "memory");
}
/// Starts copying the first `Copied` of `Rows` tokens of head h, from the sample's `token` on, to a tile. Tokens after
/// the end of the matrix give zeros and count as copied bytes; tokens after a packed sample belong to the next one.
/// Called by one thread.
template <int D, int Rows, int Copied = Rows, class AnyWork>
__device__ __forceinline__ void start_copy(const CUtensorMap& map, uint32_t tile, int token, int h, const AnyWork& work,
                                           const CopyBarrier& barrier) {
#pragma unroll
  for (int part = 0; part < D / 64; ++part)
#pragma unroll
    for (int row = 0; row < Copied; row += 64)
      asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                   "[%0], [%1, {%2, %3, %4, %5}], [%6];\n" ::"r"(
                       tile + static_cast<uint32_t>(part * Rows * 128 + row * 128)), "l"(&map),
                   "r"(64 * part), "r"(work.map_token() + token + row), "r"(h), "r"(work.map_sample()),
                   "r"(barrier.address) : "memory");
}
/// Starts storing a tile of 64 rows of the work's head, from the sample's `token` on; tokens after the end of the
/// matrix are skipped. Called by one thread, after publish() by the writers and a barrier.
template <int D, class AnyWork>
__device__ __forceinline__ void start_tile_store(const CUtensorMap& map, uint32_t tile, int token,
                                                 const AnyWork& work) {
#pragma unroll
  for (int part = 0; part < D / 64; ++part)
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3, %4}], [%5];\n" ::"l"(
                     &map),
                 "r"(64 * part), "r"(work.map_token() + token), "r"(work.h), "r"(work.map_sample()),
                 "r"(tile + static_cast<uint32_t>(part * kBox))
                 : "memory");
}
/// Returns the work's head in device memory.
template <class T, int D, class AnyWork>
__device__ __forceinline__ T* head_of_work(const View& view, const AnyWork& work) {
  return view.head<T>(work.map_sample(), work.h, D) + work.map_token() * view.row_stride;
}
/// Stores the existing rows of a tile of 64 to the work's head, from the sample's `token` on, for samples with fewer
/// than 64 rows left, where TMA would overwrite the next sample. Called by a warpgroup, between two of its barriers.
template <int D, class Args, class AnyWork>
__device__ __forceinline__ void store_own(const View& view, const char* tile, const Args& p, const AnyWork& work,
                                          int token) {
  const int rows = work.rows(p) - token;
  constexpr int kChunks = D / 8, kRowsAtOnce = 128 / kChunks;
  const int thread = fresh_thread() % 128, chunk = thread % kChunks;
  bf16* target = head_of_work<bf16, D>(view, work) + token * view.row_stride + chunk * 8;
#pragma unroll 4
  for (int row = thread / kChunks; row < rows; row += kRowsAtOnce)
    *reinterpret_cast<uint4*>(target + row * view.row_stride) = *reinterpret_cast<const uint4*>(
        tile + chunk / 8 * kBox + row * 128 + ((chunk % 8 ^ (row & 7)) << 4));
}

/// Starts c = A B^T for the 64 rows of the tile at a and the first 8 * N of the `Rows` rows of the tile at b.
template <int D, int Rows, int N>
__device__ __forceinline__ void multiply_rows_transposed(float (&c)[N][4], uint32_t a, uint32_t b) {
#pragma unroll
  for (int part = 0; part < D / 64; ++part) {
    const Operand x = Operand::left(a + static_cast<uint32_t>(part * kBox));
    const Operand y = Operand::left(b + static_cast<uint32_t>(part * Rows * 128));
#pragma unroll
    for (int k = 0; k < 4; ++k) Wgmma<8 * N>::template ss<0, 0>(c, x.at(32 * k), y.at(32 * k), part + k > 0);
  }
}
/// Loads a warpgroup's 64 rows of a tile as A operands into registers: 16 rows per warp, 16 columns per step.
template <int D>
__device__ __forceinline__ void load_fragments(uint32_t (&a)[D / 16][4], uint32_t tile) {
  const int lane = fresh_thread() & 31, row = (fresh_thread() >> 5 & 3) * 16 + (lane & 15);
  const uint32_t base = tile + static_cast<uint32_t>(row * 128);
#pragma unroll
  for (int k = 0; k < D / 16; ++k)
    ldmatrix4(a[k], base + static_cast<uint32_t>(k / 4 * kBox + (((k % 4 * 2 + (lane >> 4)) ^ (row & 7)) << 4)));
}
/// Like multiply_rows_transposed with A in registers, which saves shared-memory reads.
template <int D, int Rows, int N>
__device__ __forceinline__ void multiply_held_transposed(float (&c)[N][4], const uint32_t (&a)[D / 16][4],
                                                         uint32_t b) {
#pragma unroll
  for (int k = 0; k < D / 16; ++k)
    Wgmma<8 * N>::template rs<0>(c, a[k], Operand::left(b + static_cast<uint32_t>(k / 4 * Rows * 128)).at(k % 4 * 32),
                                 k > 0);
}
/// Starts c += A B for A of 64 x 16 * K in registers and the first 16 * K of the `Rows` rows of the tile at b. B is
/// MN-major: the descriptor's "leading" offset is the distance between parts of 64 columns.
template <int D, int Rows, int K>
__device__ __forceinline__ void add_product(float (&c)[D / 8][4], const uint32_t (&a)[K][4], uint32_t b) {
  constexpr uint32_t kPart = Rows * 128;
  const Operand rows{b >> 4 | (kPart >> 4) << 16, 1024 >> 4 | 1u << 30};
#pragma unroll
  for (int k = 0; k < K; ++k) Wgmma<D>::template rs<1>(c, a[k], rows.at(k * kLeftRows16), 1);
}

template <int N>
__device__ __forceinline__ void clear(float (&c)[N][4]) {
#pragma unroll
  for (int n = 0; n < N; ++n) c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0;
  pin(c);  // in registers before the loop: otherwise ptxas serializes the loop's products
}

/// Stores this warp's 16 rows of C fragments, times a factor for rows g and one for rows g + 8, in a tile of 64 rows,
/// as bf16.
template <int N>
__device__ __forceinline__ void store_tile(uint32_t tile, const float (&c)[N][4], float factor0, float factor1) {
  const int lane = fresh_thread() & 31, row = (fresh_thread() >> 5 & 3) * 16 + (lane & 15);
  const uint32_t base = tile + static_cast<uint32_t>(row * 128);
#pragma unroll
  for (int n = 0; n < N; n += 2) {
    uint32_t x[4];
    x[0] = pack(c[n][0] * factor0, c[n][1] * factor0);
    x[1] = pack(c[n][2] * factor1, c[n][3] * factor1);
    x[2] = pack(c[n + 1][0] * factor0, c[n + 1][1] * factor0);
    x[3] = pack(c[n + 1][2] * factor1, c[n + 1][3] * factor1);
    stmatrix4(base + static_cast<uint32_t>(n / 8 * kBox + (((n % 8 + (lane >> 4)) ^ (row & 7)) << 4)), x);
  }
}

/// Sets scores of columns at and after a row's `limit` to -inf; the limits are those of this lane's rows g and g + 8,
/// relative to its first column.
template <int N>
__device__ __forceinline__ void mask_columns(float (&s)[N][4], const int (&limit)[2]) {
#pragma unroll
  for (int n = 0; n < N; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (8 * n + (e & 1) >= limit[e / 2]) s[n][e] = -INFINITY;
}

/// Called before a wait for products, to keep earlier arithmetic before this wait so that both overlap: ptxas moves
/// arithmetic behind waits for products, but not behind this wait for copies, which arrived long ago.
__device__ __forceinline__ void stay_before(const CopyBarrier& arrived, int phase) { arrived.wait(phase); }

/// Computes delta = rowsum(dO * O) of a warp's 16 queries: dO from the tile's own operands, O from device memory, D / 8
/// lanes per row.
template <int D>
struct Deltas {
  static constexpr int kLanes = D / 8, kRowsAtOnce = 32 / kLanes, kLoads = 16 / kRowsAtOnce;
  uint4 out[kLoads];

  /// Returns the tile row of this lane's i-th load.
  static __device__ __forceinline__ int row(int i) {
    return (fresh_thread() >> 5 & 3) * 16 + i * kRowsAtOnce + (fresh_thread() & 31) / kLanes;
  }
  static __device__ __forceinline__ int chunk() { return fresh_thread() % kLanes; }

  /// token0: the warpgroup's first query.
  template <class Args, class AnyWork>
  __device__ __forceinline__ void load(const Args& p, const AnyWork& work, int token0) {
    const bf16* head = head_of_work<const bf16, D>(p.out, work) + chunk() * 8;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int token = token0 + row(i);
      out[i] = token < work.rows(p) ? *reinterpret_cast<const uint4*>(head + token * p.out.row_stride) : uint4{};
    }
  }
  /// Stores delta in this warpgroup's `numbers` [64] in shared memory and in p.delta.
  template <class Args, class AnyWork>
  __device__ __forceinline__ void make(const Args& p, const AnyWork& work, int token0, const char* dout,
                                       float* numbers) const {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int place = chunk() / 8 * kBox + row(i) * 128 + ((chunk() % 8 ^ (row(i) & 7)) << 4);
      float sum = dot8(out[i], *reinterpret_cast<const uint4*>(dout + place));
#pragma unroll
      for (int o = kLanes / 2; o; o /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, o);
      if (chunk() == 0) numbers[row(i)] = sum;
    }
    __syncwarp();
    const int lane = fresh_thread() & 31, mine = (fresh_thread() >> 5 & 3) * 16 + lane;
    if (lane < 16 && token0 + mine < work.rows(p))
      p.delta[(static_cast<int64_t>(work.b) * p.heads + work.h) * p.query_tokens + token0 + mine] = numbers[mine];
  }
};

#endif  // BLIPFT_WGMMA_CODE

}  // namespace wgmma_long
}  // namespace blipft::attention
