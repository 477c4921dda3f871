// Attention of few queries (at most 32) over many keys, bf16 on tensor cores: common code of forward and backward.
//
// One block per (sample, head); K and V of the head are completely in shared memory. The warps divide the keys, 32 at a
// time, and each warp processes all queries for its keys: with 32 queries, one warp per 16 queries would leave the
// multiprocessor nearly idle. Sums over keys (P V in forward, dS K in backward) are not merged from partial sums of the
// warps. Instead the weights of all keys go to shared memory as bf16, and each warp then computes some columns of the
// result over all keys, in a fixed order. This moves fewer bytes, needs few registers, and is deterministic.
//
// There are nine warps: 257 keys (256 patches and the class token) are 8 * 32 + 1, and the ninth warp has the last key.
//
// Dropout: the mask of a head covers elements [h * query_tokens * kv_tokens, ...), a contiguous range. The block
// computes it once as a bit string in shared memory, one byte per Philox call, while K and V are in flight. A row's
// bits may start anywhere in a word, hence the funnel shift.
#pragma once

#include <type_traits>

#include "cuda/attention/mma.cuh"
#include "cuda/attention/params.cuh"

namespace blipft::attention {

/// Launchers; they return false for unsupported arguments. Supported are at most 32 queries, 64 to 576 keys (as far as
/// they fit into shared memory), no causal mask, no bias gradient, no packed samples (whose query and key counts are
/// equal), one key head per query head, and with dropout contiguous elements of a head.
bool mma_few_queries_forward(const Params&, cudaStream_t);
bool mma_few_queries_backward(const Params&, cudaStream_t);

namespace few_queries {

constexpr int kWarps = 9, kThreads = kWarps * 32;
constexpr int kQueries = 32;                // rows of the Q tile; those at and after query_tokens are zeros
constexpr int kPairKeys = 32;               // a "pair" is two steps of 16 keys, the work of a warp at a time
constexpr int kMinKeys = 64, kMaxKeys = 2 * kWarps * kPairKeys;

inline bool fits(const Params& p) {
  if (p.dropout && p.query_elements != p.kv_tokens) return false;
  return !p.causal && !p.dbias_partials && !p.packed_or_grouped() && p.query_tokens <= kQueries &&
         p.kv_tokens >= kMinKeys && p.kv_tokens <= kMaxKeys;
}

/// Calls `launch` with the template arguments of the kernels as integral constants: the head size, rounded up to a
/// supported one, rounds of keys, dropout. Returns false if the arguments are unsupported.
template <class Launch>
bool with_instance(const Params& p, const Launch& launch) {
  const auto with_dropout = [&](auto size, auto rounds) {
    return p.dropout ? launch(size, rounds, std::true_type()) : launch(size, rounds, std::false_type());
  };
  const auto with_rounds = [&](auto size) {
    return p.kv_tokens <= kWarps * kPairKeys ? with_dropout(size, std::integral_constant<int, 1>())
                                             : with_dropout(size, std::integral_constant<int, 2>());
  };
  if (!fits(p)) return false;
  if (p.head_size <= 32) return with_rounds(std::integral_constant<int, 32>());
  if (p.head_size <= 64) return with_rounds(std::integral_constant<int, 64>());
  if (p.head_size <= 80) return with_rounds(std::integral_constant<int, 80>());
  if (p.head_size <= 96) return with_rounds(std::integral_constant<int, 96>());
  return with_rounds(std::integral_constant<int, 128>());
}

/// Starts copying rows [0, rows), at most MaxRows, of head h of a view into a tile; rows at and after `valid` and
/// columns at and after head_size become zeros. Like load_tile_async, but each thread copies one chunk of the columns
/// and the loop is unrolled, which takes few instructions per copy. An invalid copy reads nothing, so its address does
/// not matter.
template <int D, int MaxRows>
__device__ __forceinline__ void load_rows(uint32_t tile, const Params& p, const View& view, int b, int h, int rows,
                                          int valid) {
  constexpr int kChunks = D / 8, kRows = kThreads / kChunks, kPasses = (MaxRows + kRows - 1) / kRows;
  const int first = static_cast<int>(threadIdx.x) / kChunks, chunk = static_cast<int>(threadIdx.x) - first * kChunks;
  if (first >= kRows) return;  // 288 threads are not a multiple of 10 chunks
  const bf16* source = view.head<const bf16>(b, h, p.head_size) + first * view.row_stride + chunk * 8;
  if (chunk * 8 >= p.head_size) valid = 0;
  if (p.wide) {
#pragma unroll 8
    for (int i = 0; i < kPasses; ++i, source += kRows * view.row_stride) {
      const int row = first + i * kRows;
      if (row < rows) copy16_async(tile + tile_offset<D>(row, chunk), source, row < valid);
    }
  } else {
    const int valid_second = chunk * 8 + 4 < p.head_size ? valid : 0;
#pragma unroll 1
    for (int row = first; row < rows; row += kRows, source += kRows * view.row_stride) {
      const uint32_t target = tile + tile_offset<D>(row, chunk);
      copy8_async(target, source, row < valid);
      copy8_async(target + 8, source + 4, row < valid_second);
    }
  }
}

/// The elements of a head's probabilities that dropout keeps: bit (offset + query * kv_tokens + key) of a bit string.
struct KeepBits {
  const uint32_t* words;
  uint32_t offset;  // index of the head's first element in its dropout block
  int kv_tokens;

  /// Bytes in shared memory for the maximum number of keys n of a kernel, a multiple of 128. keys() reads up to word n
  /// + 1: its first bit is at most 7 + 31 * n + (n - 1).
  template <int Rounds>
  static constexpr int kBytes = (4 * (Rounds * kWarps * kPairKeys + 2) + 127) / 128 * 128;

  /// The block's threads compute the bits; they may be read after a barrier.
  static __device__ __forceinline__ KeepBits make(char* place, const DropoutMask& mask, const Params& p, int h) {
    static_assert(kDropoutBlock == 8);  // one bit of a byte each
    const uint64_t first = element_row(p, h, 0);
    const uint32_t offset = static_cast<uint32_t>(first) % kDropoutBlock;
    const int bytes = (static_cast<int>(offset) + p.query_tokens * p.kv_tokens + 7) / 8;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < bytes; i += kThreads) {
      const DropoutBlock block = mask.block(first + 8 * static_cast<uint32_t>(i));
      uint32_t bits = 0;
#pragma unroll
      for (int e = 0; e < 8; ++e) bits |= block.keeps(e, mask.threshold) ? 1u << e : 0u;
      reinterpret_cast<uint8_t*>(place)[i] = static_cast<uint8_t>(bits);
    }
    return {reinterpret_cast<const uint32_t*>(place), offset, p.kv_tokens};
  }

  /// Returns the bits of (query, key0 + j), j = 0 to 31. Bits of keys and queries that do not exist are undefined.
  __device__ __forceinline__ uint32_t keys(int query, int key0) const {
    const uint32_t bit = offset + static_cast<uint32_t>(query * kv_tokens + key0);
    return __funnelshift_r(words[bit >> 5], words[(bit >> 5) + 1], bit & 31);
  }
};

/// Computes sum (C fragments, 16 queries x 16 columns) over `steps` steps of 16 keys: left(a, s) gives the A fragment
/// (16 queries x 16 keys) of step s; B is columns from 16 * column16 on of tile rows from 16 * s on (`rows` is
/// row_major).
template <int D, class Left>
__device__ __forceinline__ void sum_over_keys(float (&sum)[1][2][4], const Left& left, const LaneAddress<D>& rows,
                                              int column16, int steps) {
  constexpr int kBatch = 4;
  float part[2][2][4] = {};  // even and odd steps: two chains of mma
  int s = 0;
#pragma unroll 1
  for (; s + kBatch <= steps; s += kBatch) {
    uint32_t a[kBatch][4], b[kBatch][4];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      left(a[j], s + j);
      ldmatrix4_trans(b[j], rows.at(16 * (s + j), column16));
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      mma(part[j & 1][0], a[j], b[j][0], b[j][1]);
      mma(part[j & 1][1], a[j], b[j][2], b[j][3]);
    }
  }
#pragma unroll 1
  for (; s < steps; ++s) {
    uint32_t a[4], b[4];
    left(a, s);
    ldmatrix4_trans(b, rows.at(16 * s, column16));
    mma(part[0][0], a, b[0], b[1]);
    mma(part[0][1], a, b[2], b[3]);
  }
#pragma unroll
  for (int n = 0; n < 2; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) sum[0][n][e] = part[0][n][e] + part[1][n][e];
}

}  // namespace few_queries
}  // namespace blipft::attention
