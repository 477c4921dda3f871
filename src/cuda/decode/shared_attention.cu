// Attention of slots that see mostly the same cache positions, such as the beams of a text: each position is read once
// for all of them. Also used for many short texts.
//
// A block processes the slots of one text and kWarps key heads (or parts of their query heads). First it lists the
// cache rows that any of the slots sees, with a bit for each of these slots: a row that is shared, such as the
// prompt's, is listed once. Then each warp processes the list for its head, kKeys entries at a time, while the next
// entries are copied to its shared memory. It multiplies on tensor cores, with one row for each slot and query head of
// the key head, and keeps a running softmax (Dao et al., "FlashAttention-2", 2023) that masks what a row does not see.
// The result of a text depends only on its own slots.
#include <cfloat>

#include "cuda/attention/mma.cuh"
#include "cuda/attention/params.cuh"
#include "cuda/decode/attention.cuh"
#include "cuda/device/overlap.cuh"

namespace blipft {
namespace {

using namespace attention;

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr int kKeys = 16;           // entries that a warp multiplies at a time
constexpr int kStages = 2;          // number of such groups of entries in shared memory
constexpr int kRows = 16;           // rows of a matrix product
constexpr int kMaxShared = 8;      // maximum number of slots
constexpr int64_t kMaxEntries = 2048;
constexpr int64_t kFewPositions = 128;  // maximum number of positions of a slot if none are shared
constexpr int64_t kWarpsOfProcessor = 4;  // with fewer warps of work, splitting long texts over blocks is faster

/// The cache rows that slots of a text see, with their positions and bits for the slots that see them.
struct PositionList {
  int32_t* rows;
  uint32_t* seen;                   ///< position << kMaxShared | bits of slots
  int32_t* warps;                   ///< [kWarps], scratch

  /// Fills the list, ordered by position and then slot, and returns the number of entries. The whole block must call
  /// it.
  __device__ __forceinline__ int fill(const DecodeArgs& args, int64_t first_slot, int slots) const {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    int first[kMaxShared], end[kMaxShared], low = INT_MAX, high = 0, count = 0;
#pragma unroll
    for (int b = 0; b < kMaxShared; ++b) {
      end[b] = b < slots ? args.lengths[first_slot + b] : 0;
      first[b] = args.first_position(end[b]);
      if (end[b] > 0) low = min(low, first[b]), high = max(high, end[b]);
    }
    for (int base = low; base < high; base += kThreads) {
      const int j = base + static_cast<int>(threadIdx.x);
      int source[kMaxShared], own = 0;
      uint32_t bits[kMaxShared];   // at a source's first slot: the slots with this source
#pragma unroll
      for (int b = 0; b < kMaxShared; ++b) {
        source[b] = -1, bits[b] = 0;
        if (j >= first[b] && j < end[b])
          source[b] = args.sources ? args.sources[(first_slot + b) * args.positions + j] : static_cast<int>(first_slot) + b;
      }
#pragma unroll
      for (int b = 0; b < kMaxShared; ++b) {
        bool is_first = source[b] >= 0;
#pragma unroll
        for (int before = 0; before < b; ++before) is_first = is_first && source[before] != source[b];
#pragma unroll
        for (int other = b; other < kMaxShared; ++other)
          if (is_first && source[other] == source[b]) bits[b] |= 1u << other;
        own += is_first;
      }
      int through = own;            // entries of this warp's threads up to this one
#pragma unroll
      for (int offset = 1; offset < 32; offset *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, through, offset);
        if (lane >= offset) through += other;
      }
      if (lane == 31) warps[warp] = through;
      __syncthreads();
      int at = count + through - own;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        if (w < warp) at += warps[w];
        count += warps[w];
      }
#pragma unroll
      for (int b = 0; b < kMaxShared; ++b) {
        if (bits[b] == 0) continue;
        rows[at] = source[b] * static_cast<int>(args.positions) + j;
        seen[at++] = static_cast<uint32_t>(j) << kMaxShared | bits[b];
      }
      __syncthreads();              // before `warps` is overwritten and the list is read
    }
    return count;
  }
};

/// One of the two rows of a warp's products that a lane holds: a slot and a query head.
struct DecodeRow {
  int64_t slot;
  int head, end;
  uint32_t bit;                     ///< of the slot in PositionList::seen; 0: the row does not exist
};

/// A warp's attention over the list for its head.
template <int D>
struct HeadOfText {
  static constexpr uint32_t kTileBytes = kKeys * pitch<D> * 2;
  static constexpr int kSteps = pitch<D> / 16;

  const DecodeArgs& args;
  const PositionList& list;
  int count, kv_head;
  uint32_t tiles;                   ///< kStages tiles of keys and values
  DecodeRow row[2];                 ///< rows lane / 4 and lane / 4 + 8
  uint32_t q[kSteps][4];
  float o[1][D / 8][4] = {}, max[2] = {-FLT_MAX, -FLT_MAX}, sum[2] = {};  // maximum in units of log2

  __device__ __forceinline__ void load_queries() {
    const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const bf16* const from = static_cast<const bf16*>(args.q) + row[h].slot * args.q_stride + row[h].head * args.d;
#pragma unroll
      for (int k = 0; k < kSteps; ++k)
#pragma unroll
        for (int right = 0; right < 2; ++right) {
          const int column = 16 * k + 8 * right + 2 * t;
          q[k][2 * right + h] = row[h].bit && column < args.d ? *reinterpret_cast<const uint32_t*>(from + column) : 0;
        }
    }
  }

  /// Starts copying the entries from `base` on; missing entries become zeros.
  __device__ __forceinline__ void fetch(int base) const {
    constexpr int kChunks = pitch<D> / 8;
    const uint32_t keys = tiles + static_cast<uint32_t>(base / kKeys % kStages) * 2 * kTileBytes;
    const auto row_size = static_cast<int64_t>(args.kv_heads) * args.d;
#pragma unroll
    for (int i = static_cast<int>(threadIdx.x) % 32; i < kKeys * kChunks; i += 32) {
      const int r = i / kChunks, c = i - r * kChunks;
      const bool there = base + r < count && c * 8 < args.d;
      const int64_t from = there ? list.rows[base + r] * row_size + kv_head * args.d + c * 8 : 0;
      copy16_async(keys + tile_offset<D>(r, c), static_cast<const bf16*>(args.keys) + from, there);
      copy16_async(keys + kTileBytes + tile_offset<D>(r, c), static_cast<const bf16*>(args.values) + from, there);
    }
    asm volatile("cp.async.commit_group;\n" ::: "memory");
  }

  /// Returns the score, in units of log2, of an entry for a row that sees it.
  __device__ __forceinline__ float score(float product, const DecodeRow& of, uint32_t seen) const {
    float x = product * args.scale;
    if (args.cap > 0) x = args.cap * tanhf(x / args.cap);
    if (args.relative) x += args.relative_score(of.head, static_cast<int>(seen >> kMaxShared) + 1 - of.end);
    return x * kLog2E;
  }

  /// Processes the entries from `base` on, which must have arrived in shared memory.
  __device__ __forceinline__ void take(int base) {
    const int t = static_cast<int>(threadIdx.x) % 4;
    const uint32_t keys = tiles + static_cast<uint32_t>(base / kKeys % kStages) * 2 * kTileBytes;
    float s[2][4] = {};
    const auto key_rows = LaneAddress<D>::chunk_major(keys);
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      uint32_t b[4];
      ldmatrix4(b, key_rows.at(0, k));
      mma(s[0], q[k], b[0], b[1]);
      mma(s[1], q[k], b[2], b[3]);
    }
    float larger[2] = {max[0], max[1]};
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int entry = base + 8 * n + 2 * t + e % 2;
        const uint32_t seen = entry < count ? list.seen[entry] : 0;
        const DecodeRow& of = row[e / 2];
        s[n][e] = seen & of.bit ? score(s[n][e], of, seen) : -INFINITY;
        larger[e / 2] = fmaxf(larger[e / 2], s[n][e]);
      }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      larger[h] = quad_max(larger[h]);
      const float factor = exp2_approx(max[h] - larger[h]);
      max[h] = larger[h];
      sum[h] *= factor;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) o[0][n][2 * h] *= factor, o[0][n][2 * h + 1] *= factor;
    }
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) sum[e / 2] += s[n][e] = exp2_approx(s[n][e] - max[e / 2]);
    uint32_t weights[1][4];
    pack_a(weights[0], s[0], s[1]);
    multiply_rows<D, 1>(o, weights, LaneAddress<D>::row_major(keys + kTileBytes), 0);
  }

  __device__ __forceinline__ void write() {
    const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float total = quad_sum(sum[h]), factor = total > 0 ? 1 / total : 0;
      bf16* const to = static_cast<bf16*>(args.out) + (row[h].slot * args.heads + row[h].head) * args.d;
#pragma unroll
      for (int n = 0; n < D / 8; ++n)
        if (row[h].bit && 8 * n < args.d)
          *reinterpret_cast<uint32_t*>(to + 8 * n + 2 * t) = attention::pack(o[0][n][2 * h] * factor, o[0][n][2 * h + 1] * factor);
    }
  }
};

template <int D>
constexpr uint32_t tiles_bytes = kWarps * kStages * 2 * HeadOfText<D>::kTileBytes;

/// blockIdx.x: text, and kWarps tasks of it (a key head has `parts` tasks).
template <int D>
__global__ void __launch_bounds__(kThreads) shared_decode_kernel(DecodeArgs args, int room) {
  extern __shared__ __align__(128) char shared[];  // tiles, then the list
  __shared__ int32_t warps[kWarps];
  join_chain();
  const int slots = args.sharing, heads_of_warp = min(args.group, kRows / slots);
  const int tasks = args.kv_heads * args.parts, blocks = (tasks + kWarps - 1) / kWarps;
  const int64_t first_slot = int64_t{blockIdx.x / static_cast<unsigned>(blocks)} * slots;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int task = static_cast<int>(blockIdx.x) % blocks * kWarps + warp;
  const PositionList list{reinterpret_cast<int32_t*>(shared + tiles_bytes<D>),
                       reinterpret_cast<uint32_t*>(shared + tiles_bytes<D>) + room, warps};
  const int count = list.fill(args, first_slot, slots);
  if (task >= tasks) return;

  HeadOfText<D> head{args, list, count, task / args.parts};
  head.tiles = static_cast<uint32_t>(__cvta_generic_to_shared(shared)) +
               static_cast<uint32_t>(warp * kStages) * 2 * HeadOfText<D>::kTileBytes;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int r = static_cast<int>(threadIdx.x) % 32 / 4 + 8 * h, slot = r / heads_of_warp;
    const int of_group = task % args.parts * heads_of_warp + r % heads_of_warp;
    const bool there = slot < slots && of_group < args.group;
    head.row[h] = {first_slot + slot, head.kv_head * args.group + of_group, there ? args.lengths[first_slot + slot] : 0,
                   there ? 1u << slot : 0};
  }
  head.fetch(0);
  head.load_queries();
  for (int base = 0; base < count; base += kKeys) {
    head.fetch(base + kKeys);
    asm volatile("cp.async.wait_group %0;\n" ::"n"(kStages - 1) : "memory");
    __syncwarp();
    head.take(base);
    __syncwarp();
  }
  head.write();
}

template <int D>
void launch(DecodeArgs args, int64_t blocks, int64_t room, const LaunchContext& launch) {
  const auto bytes = static_cast<int>(tiles_bytes<D> + static_cast<uint32_t>(room) * 8);
  allow_shared_memory(shared_decode_kernel<D>, bytes);
  launch_overlapped(shared_decode_kernel<D>, blocks_of(blocks), kThreads, static_cast<size_t>(bytes), launch, args,
                    static_cast<int>(room));
}

}  // namespace

bool launch_shared_decode(const AttentionDecode& op, const LaunchContext& context) {
  const int64_t d = op.head_size, slots = op.sharing;
  if (slots > kMaxShared || (slots == 1 && op.cache.positions > kFewPositions) || op.q.dtype != DType::bf16 || d % 8 != 0 || d > 128) return false;
  if (!all_aligned16(op.cache.keys, op.cache.values, op.out) || op.q.row_stride % 2 != 0 ||
      reinterpret_cast<uintptr_t>(op.q.data) % 4 != 0 || op.cache.keys.rows() > INT32_MAX)
    return false;
  DecodeArgs args = decode_args(op);
  args.parts = static_cast<int>(ceil_div(args.group, std::min<int64_t>(args.group, kRows / slots)));
  const int64_t texts = op.q.rows() / slots, tasks = op.kv_heads * args.parts;
  const int64_t room = slots * (op.window > 0 ? std::min(op.window, op.cache.positions) : op.cache.positions);
  if (room > kMaxEntries || texts * tasks < kWarpsOfProcessor * context.sm_count) return false;
  const int64_t blocks = texts * ceil_div(tasks, kWarps);
  if (d <= 64) launch<64>(args, blocks, room, context);
  else if (d <= 80) launch<80>(args, blocks, room, context);
  else launch<128>(args, blocks, room, context);
  return true;
}

}  // namespace blipft
