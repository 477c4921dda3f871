// Parts of attention forward with warpgroup products (wgmma_forward.cu) other than the products of 256 queries and 256
// keys: shared memory, copies of blocks and queries, the odd query.
#pragma once

#include "cuda/attention/forward.cuh"
#include "cuda/attention/wgmma.cuh"
#include "cuda/vector.cuh"

namespace blipft::attention::vision_forward {

constexpr int kGroups = 4, kThreads = kGroups * 128, kWarps = kThreads / 32;
constexpr int kTokens = 64 * kGroups, kSteps = kTokens / 64;
/// When thread 0 has finished a block, it requests the next head's same block, into the slot of the preceding block.
constexpr int kSlots = kSteps + 1;

/// TMA's view of the operands.
struct ForwardMaps {
  TensorMaps q, k, v, out;
};

/// Byte offsets in shared memory.
template <int D>
struct Layout {
  static constexpr int Q = 0, QTile = Tile<D>::bytes(kTokens);                            // two buffers
  static constexpr int Slots = 2 * QTile, Block = Tile<D>::bytes(64), Slot = 2 * Block;  // K and V of 64 tokens
  // Rows q, k, v of the odd token, with zeros up to a multiple of 16 columns: [buffer][warpgroup][3].
  static constexpr int OddRow = pitch<D> * 2, OddRows = Slots + kSlots * Slot, OddBytes = 2 * kGroups * 3 * OddRow;
  static constexpr int OddShares = OddRows + OddBytes;           // f32 [kWarps][D]: shares of P V
  static constexpr int OddNumbers = OddShares + kWarps * D * 4;  // float2 [kWarps]: base and sum of the shares
  // Barriers, 8 bytes each.
  static constexpr int Full = OddNumbers + kWarps * 8, Free = Full + 8 * kSlots;  // of the slots
  static constexpr int Queries = Free + 8 * kSlots;                               // [buffer][warpgroup]
  static constexpr int SharesMade = Queries + 8 * 2 * kGroups, SharesMerged = SharesMade + 8;
  static constexpr int Bytes = SharesMerged + 8;
  static_assert(QTile % 1024 == 0 && Block % 1024 == 0 && OddRow % 16 == 0 && Full % 8 == 0);
  static_assert(Bytes <= 227 << 10, "one block an SM");
};

#ifdef BLIPFT_WGMMA_CODE

/// Hides the value of x from the compiler: values derived from it are recomputed and occupy no registers in between.
__device__ __forceinline__ int fresh(int x) {
  asm volatile("" : "+r"(x));
  return x;
}
/// Position of a block of keys in the ring: its slot, and how many earlier blocks used this slot.
struct Place {
  int slot, phase;

  __device__ __forceinline__ Place next() const {
    return slot + 1 == kSlots ? Place{0, phase + 1} : Place{slot + 1, phase};
  }
  __device__ __forceinline__ Place before() const {
    return slot == 0 ? Place{kSlots - 1, phase - 1} : Place{slot - 1, phase};
  }
  template <int D>
  __device__ __forceinline__ uint32_t keys(uint32_t shared) const {
    return shared + static_cast<uint32_t>(Layout<D>::Slots + slot * Layout<D>::Slot);
  }
  template <int D>
  __device__ __forceinline__ uint32_t values(uint32_t shared) const {
    return keys<D>(shared) + static_cast<uint32_t>(Layout<D>::Block);
  }
  template <int D>
  __device__ __forceinline__ CopyBarrier full(uint32_t shared) const {
    return {shared + static_cast<uint32_t>(Layout<D>::Full + 8 * slot)};
  }
  template <int D>
  __device__ __forceinline__ ThreadBarrier free(uint32_t shared) const {
    return {shared + static_cast<uint32_t>(Layout<D>::Free + 8 * slot)};
  }
};

struct Head {
  int b, h;
};
__device__ __forceinline__ Head head_of(const Params& p, int number) { return {number / p.heads, number % p.heads}; }

template <int D>
__device__ __forceinline__ CopyBarrier queries_barrier(uint32_t shared, int buffer, int group) {
  return {shared + static_cast<uint32_t>(Layout<D>::Queries + 8 * (buffer * kGroups + group))};
}
/// Returns the offset of a warpgroup's copy of an odd row. row: 0 q, 1 k, 2 v.
template <int D>
__device__ __forceinline__ int odd_row(int buffer, int group, int row) {
  return Layout<D>::OddRows + ((buffer * kGroups + group) * 3 + row) * Layout<D>::OddRow;
}

/// Values that are constant over the kernel.
template <int D>
struct Work {
  const Params& p;
  const ForwardMaps& maps;
  char* memory;      // shared memory
  uint32_t shared;   // its address
  float scale_log2;  // scale * log2(e)
  bool odd;          // true if there is an odd token

  /// Barriers, used once per head: all warps' shares of the odd query are stored; the shares have been merged.
  __device__ __forceinline__ ThreadBarrier shares_made() const { return {shared + Layout<D>::SharesMade}; }
  __device__ __forceinline__ ThreadBarrier shares_merged() const { return {shared + Layout<D>::SharesMerged}; }
};

/// One of the heads that a block processes: every stride-th; this one is the round-th. more: another one follows.
struct Turn {
  int number, stride, round;
  bool more;
};

/// Starts copying a block of K and V. Called by one thread.
template <int D>
__device__ __forceinline__ void load_block(const Work<D>& work, const Head& head, int block, const Place& place) {
  const CopyBarrier full = place.full<D>(work.shared);
  full.expect(Layout<D>::Slot);
  start_load<D>(work.maps.k, place.keys<D>(work.shared), 64, 0, 64 * block, head.h, head.b, full);
  start_load<D>(work.maps.v, place.values<D>(work.shared), 64, 0, 64 * block, head.h, head.b, full);
}

/// Starts copying a warpgroup's rows of Q and its copy of the odd rows. Called by one thread.
template <int D>
__device__ __forceinline__ void load_queries(const Work<D>& work, const Head& head, int buffer, int group) {
  using L = Layout<D>;
  const Params& p = work.p;
  const CopyBarrier there = queries_barrier<D>(work.shared, buffer, group);
  there.expect(Tile<D>::bytes(64) + (work.odd ? 3 * 2 * D : 0));
  start_load<D>(work.maps.q, work.shared + static_cast<uint32_t>(L::Q + buffer * L::QTile), kTokens, 64 * group,
                64 * group, head.h, head.b, there);
  if (!work.odd) return;
#pragma unroll
  for (int row = 0; row < 3; ++row) {
    const View view = row == 0 ? p.q : (row == 1 ? p.k : p.v);
    start_row(view.head<const bf16>(head.b, head.h, D) + kTokens * view.row_stride,
              work.shared + static_cast<uint32_t>(odd_row<D>(buffer, group, row)), 2 * D, there);
  }
}

/// Stores a warp's share of the odd query in shared memory: its output, base and sum over 16 keys of a block.
template <int D>
__device__ __forceinline__ void share_odd_query(const Work<D>& work, const Place& place, const char* query_row) {
  using L = Layout<D>;
  const uint32_t keys = place.keys<D>(work.shared), values = place.values<D>(work.shared);
  const float scale_log2 = work.scale_log2;
  const int warp = fresh_thread() / 32, lane = fresh_thread() & 31, row0 = 16 * (warp & 3);
  const uint32_t* query = reinterpret_cast<const uint32_t*>(query_row) + lane;
  const bool first_row = lane < 4;  // the query is row 0 of A, which lanes 0 to 3 hold
  float s[2][4] = {};
#pragma unroll
  for (int k = 0; k < pitch<D> / 16; ++k) {
    uint32_t b[4];
    ldmatrix4(b, keys + Tile<D>::offset(64, row0 + (lane & 7) + (lane >> 4) * 8, 2 * k + (lane >> 3 & 1)));
    const uint32_t a[4] = {first_row ? query[8 * k] : 0, 0, first_row ? query[8 * k + 4] : 0, 0};
    mma(s[0], a, b[0], b[1]);
    mma(s[1], a, b[2], b[3]);
  }
  const float base = quad_max(fmaxf(fmaxf(s[0][0], s[0][1]), fmaxf(s[1][0], s[1][1]))) * scale_log2;
  float sum = 0;
#pragma unroll
  for (int n = 0; n < 2; ++n)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      s[n][e] = exp2_approx(fmaf(s[n][e], scale_log2, -base));
      sum += s[n][e];
    }
  sum = quad_sum(sum);
  const uint32_t a[4] = {first_row ? pack(s[0][0], s[0][1]) : 0, 0, first_row ? pack(s[1][0], s[1][1]) : 0, 0};
  float2* out = reinterpret_cast<float2*>(work.memory + L::OddShares + warp * D * 4) + lane;
#pragma unroll
  for (int d = 0; d < pitch<D> / 16; ++d) {
    uint32_t v[4];
    float o[2][4] = {};
    ldmatrix4_trans(v, values + Tile<D>::offset(64, row0 + (lane & 15), 2 * d + (lane >> 4)));
    mma(o[0], a, v[0], v[1]);
    if (first_row) out[8 * d] = make_float2(o[0][0], o[0][1]);
    if (16 * d + 8 >= D) continue;
    mma(o[1], a, v[2], v[3]);
    if (first_row) out[8 * d + 4] = make_float2(o[1][0], o[1][1]);
  }
  if (lane == 0) reinterpret_cast<float2*>(work.memory + L::OddNumbers)[warp] = make_float2(base, sum);
}

/// Merges the shares of the odd query with its own key and stores its row; done by the first warps, one column per
/// thread. odd_rows: q, k, v.
template <int D>
__device__ __forceinline__ void store_odd_query(const Work<D>& work, const Head& head, const char* odd_rows) {
  using L = Layout<D>;
  const Params& p = work.p;
  const float scale_log2 = work.scale_log2;
  const int column = fresh_thread(), lane = column & 31;
  if (column / 32 > (D - 1) / 32) return;
  constexpr int kRow = L::OddRow / 2;
  const bf16* rows = reinterpret_cast<const bf16*>(odd_rows);
  float score = 0;
#pragma unroll
  for (int d = 0; d < D; d += 32)
    if (d + lane < D) score = fmaf(__bfloat162float(rows[d + lane]), __bfloat162float(rows[kRow + d + lane]), score);
  score = warp_sum(score);
  if (column >= D) return;
  const float2* numbers = reinterpret_cast<const float2*>(work.memory + L::OddNumbers);
  const float* shares = reinterpret_cast<const float*>(work.memory + L::OddShares) + column;
  float base = score * scale_log2;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) base = fmaxf(base, numbers[w].x);
  float sum = exp2_approx(fmaf(score, scale_log2, -base)), out = sum * __bfloat162float(rows[2 * kRow + column]);
#pragma unroll 4
  for (int w = 0; w < kWarps; ++w) {
    const float factor = exp2_approx(numbers[w].x - base);
    sum = fmaf(numbers[w].y, factor, sum);
    out = fmaf(shares[w * D], factor, out);
  }
  p.out.head<bf16>(head.b, head.h, D)[kTokens * p.out.row_stride + column] = __float2bfloat16_rn(out / sum);
  if (column == 0)
    p.lse[(static_cast<int64_t>(head.b) * p.heads + head.h) * p.query_tokens + kTokens] = (base + log2f(sum)) * kLn2;
}

#endif  // BLIPFT_WGMMA_CODE

}  // namespace blipft::attention::vision_forward
