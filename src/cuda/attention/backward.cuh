// Attention backward on tensor cores, the part that both mma.sync kernel families share: probabilities and score
// gradients of one warp's tile.
//
// With P = exp(scale q k^T - lse), M the dropout mask over (1 - p), dP = (dO V^T) * M, delta = rowsum(dO * O):
//   dS = P * (dP - delta),  dQ = scale dS K,  dK = scale dS^T Q,  dV = (P * M)^T dO      (Dao et al. 2022, appendix B)
// lse is stored as lse * log2(e), and as +inf for rows that do not exist or see no key: their P is exp2(-inf) = 0.
#pragma once

#include "cuda/attention/forward.cuh"

namespace blipft::attention {

/// Returns lse of a query in the exp2 domain; +inf makes the row's probabilities zero.
__device__ __forceinline__ float lse_log2(float lse) { return lse == -INFINITY ? INFINITY : lse * kLog2e; }

/// Loads 8 columns of a row of a head; columns at and after head_size are zeros.
__device__ __forceinline__ uint4 load8(const bf16* source, int column, int head_size, bool wide) {
  if (wide) return *reinterpret_cast<const uint4*>(source);
  const uint2 low = *reinterpret_cast<const uint2*>(source);
  const uint2 high = column + 4 < head_size ? *reinterpret_cast<const uint2*>(source + 4) : uint2{0, 0};
  return {low.x, low.y, high.x, high.y};
}

/// Returns the sum of the products of 8 bf16 pairs.
__device__ __forceinline__ float dot8(const uint4& x, const uint4& y) {
  const uint32_t xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
  float sum = 0;
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    sum = fmaf(__uint_as_float(xs[e] << 16), __uint_as_float(ys[e] << 16), sum);
    sum = fmaf(__uint_as_float(xs[e] & 0xffff0000u), __uint_as_float(ys[e] & 0xffff0000u), sum);
  }
  return sum;
}

/// Computes delta of rows [row0, row0 + rows) of a head with half a warp per row and 8 of 128 columns per lane. Rows
/// that do not exist give 0.
template <int Threads, int Columns = 128, class Args>
__device__ __forceinline__ void compute_deltas(float* delta, const Args& p, int b, int h, int row0, int rows) {
  constexpr int kGroups = Threads / 16;
  const int lane = static_cast<int>(threadIdx.x) & 15, group = static_cast<int>(threadIdx.x) / 16;
  const bf16* out = head_of<const bf16>(p, p.out, b, h) + lane * 8;
  const bf16* dout = head_of<const bf16>(p, p.dout, b, h) + lane * 8;
  const bool has_chunk = lane * 8 < p.head_size;
  const int existing = p.queries(b);
#pragma unroll 4
  for (int i = group; i < (rows + kGroups - 1) / kGroups * kGroups; i += kGroups) {
    const int row = row0 + i;
    float sum = 0;
    if (has_chunk && i < rows && row < existing) {
      const uint4 x = load8(out + row * p.out.row_stride, lane * 8, p.head_size, p.wide);
      const uint4 y = load8(dout + row * p.dout.row_stride, lane * 8, p.head_size, p.wide);
      sum = dot8(x, y);
      if constexpr (Columns > 128) {
        static_assert(Columns == 256, "a lane takes one or two chunks");
        if (lane * 8 + 128 < p.head_size)
          sum += dot8(load8(out + row * p.out.row_stride + 128, lane * 8 + 128, p.head_size, p.wide),
                      load8(dout + row * p.dout.row_stride + 128, lane * 8 + 128, p.head_size, p.wide));
      }
    }
#pragma unroll
    for (int o = 8; o; o /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, o);
    if (lane == 0 && i < rows) delta[i] = sum;
  }
}

/// Stores lse (in the exp2 domain) of rows [row0, row0 + rows) in shared memory; +inf for rows that do not exist (a
/// packed sample has no lse in memory for these).
template <int Threads, class Args>
__device__ __forceinline__ void load_lse(float* target, const Args& p, int b, int h, int row0, int rows) {
  const float* lse = p.lse + (static_cast<int64_t>(b) * p.heads + h) * p.query_tokens;
  const int existing = p.queries(b);
  for (int i = static_cast<int>(threadIdx.x); i < rows; i += Threads)
    target[i] = row0 + i < existing ? lse_log2(lse[row0 + i]) : INFINITY;
}

/// Prefetches lse (in the exp2 domain) and delta of a step's queries to shared memory, lse [2][Queries] and delta
/// [2][Queries], one number per thread. They are loaded when the copies of the step's tiles start and stored when the
/// step begins, so that no thread waits for them in between.
template <int Queries>
struct StepNumbers {
  float number;

  template <class Args>
  __device__ __forceinline__ void fetch(const Args& p, int b, int h, int query0) {
    const int i = fresh_thread(), row = query0 + i % Queries;
    if (i >= 2 * Queries) return;
    const float* numbers = i < Queries ? p.lse : p.delta;
    number = row < p.queries(b) ? numbers[(static_cast<int64_t>(b) * p.heads + h) * p.query_tokens + row]
                                : (i < Queries ? -INFINITY : 0.0f);
  }
  __device__ __forceinline__ void store(float* lse, float* delta, int stage) const {
    const int i = fresh_thread();
    if (i < Queries) lse[stage * Queries + i] = lse_log2(number);
    else if (i < 2 * Queries) delta[stage * Queries + i - Queries] = number;
  }
};

/// Loads lse or delta of this lane's rows (g and g + 8 of each 16 from row0 on) in each step, because registers are
/// scarce.
template <int MT>
__device__ __forceinline__ void row_numbers(float (&x)[MT][2], const char* shared, int offset, int row0) {
  const int g = (static_cast<int>(threadIdx.x) & 31) >> 2;
#pragma unroll
  for (int m = 0; m < MT; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      x[m][half] = reinterpret_cast<const float*>(shared + offset)[row0 + 16 * m + 8 * half + g];
}

/// Returns KeptKeys or KeptQueries if the kernel uses them.
template <bool Drop, int N, class Tile>
__device__ __forceinline__ auto kept_keys(const Tile& tile, const DropoutMask& mask, uint64_t element) {
  if constexpr (Drop && Tile::kScores) return KeptKeys<N>(mask, element, tile.query_elements % 8 == 0);
  else return 0;
}
template <bool Drop, int N, class Tile>
__device__ __forceinline__ auto kept_queries(const Tile& tile, const DropoutMask& mask, uint64_t element) {
  if constexpr (Drop && Tile::kScores) return KeptQueries<N>(mask, element, tile.query_elements);
  else return 0;
}

/// Converts s = q k^T (adjusted) and dp = dO V^T (C fragments, rows = queries) into the dropped probabilities (in s)
/// and dS of the scores before a cap (in dp). lse and delta are those of this lane's rows g, g + 8 of each 16.
template <int MT, int NT, bool Masked, bool Drop, class Tile>
__device__ __forceinline__ void score_gradients(float (&s)[MT][2 * NT][4], float (&dp)[MT][2 * NT][4],
                                                const float (&lse)[MT][2], const float (&delta)[MT][2], int key0,
                                                const Tile& tile, const DropoutMask& mask, float keep_scale) {
  const int lane = static_cast<int>(threadIdx.x) & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
  for (int m = 0; m < MT; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int limit = Masked ? tile.limit(tile.row0 + 16 * m + 8 * half + g) - key0 - 2 * t : 0;
      int first_key = 0;                   // a window excludes earlier keys
      if constexpr (Masked && Tile::kWindow) first_key = tile.first(tile.row0 + 16 * m + 8 * half + g) - key0 - 2 * t;
      const uint64_t keep_row = static_cast<uint64_t>(16 * m + 8 * half + g) * tile.query_elements;
      [[maybe_unused]] const auto kept = kept_keys<Drop, 2 * NT>(tile, mask, tile.element_row0 + keep_row + key0);
#pragma unroll
      for (int n = 0; n < 2 * NT; ++n) {
        uint32_t keep = 3;
        if constexpr (Drop && Tile::kScores) {
          keep = kept.pair(n);
        } else if (Drop) {
          const uint64_t row = static_cast<uint64_t>(16 * m + 8 * half + g) * tile.query_elements;
          keep = mask.keep_pair(tile.element_row0 + row + key0 + 8 * n + 2 * t);
        }
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s[m][n][2 * half + e];
          float& y = dp[m][n][2 * half + e];
          float probability = exp2_approx(fmaf(x, tile.scale_log2, -lse[m][half]));
          if (Masked && 8 * n + e >= limit) probability = 0;
          if (Masked && Tile::kWindow && 8 * n + e < first_key) probability = 0;
          const float factor = Drop ? (keep >> e & 1 ? keep_scale : 0.0f) : 1.0f;
          y = probability * (Drop ? fmaf(y, factor, -delta[m][half]) : y - delta[m][half]);
          if constexpr (Tile::kScores) y *= tile.slope(x);
          x = Drop ? probability * factor : probability;
        }
      }
    }
}

/// Converts s = k q^T (adjusted) and dp = v dO^T (rows = keys from key_row0, columns = queries from query0) into P^T
/// and dS^T. lse and delta are those of this block's queries, in shared memory.
template <int NT, bool Masked, bool Drop, class Tile>
__device__ __forceinline__ void transposed_gradients(float (&s)[1][2 * NT][4], float (&dp)[1][2 * NT][4],
                                                     const float* lse, const float* delta, int key_row0, int query0,
                                                     const Tile& tile, const DropoutMask& mask, float keep_scale) {
  const int lane = static_cast<int>(threadIdx.x) & 31, g = lane >> 2, t = lane & 3;
  const uint64_t first = tile.element_row0 + static_cast<uint64_t>(query0 + 2 * t) * tile.query_elements + key_row0 + g;
  [[maybe_unused]] const auto kept = kept_queries<Drop, 2 * NT>(
      tile, mask, tile.element_row0 + static_cast<uint64_t>(query0) * tile.query_elements + key_row0);
#pragma unroll
  for (int n = 0; n < 2 * NT; ++n) {
    const float2 row_lse = *reinterpret_cast<const float2*>(lse + 8 * n + 2 * t);
    const float2 row_delta = *reinterpret_cast<const float2*>(delta + 8 * n + 2 * t);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int query = query0 + 8 * n + 2 * t + e;
      const int limit = Masked ? tile.limit(query) : 0;
      int first_key = 0;                   // a window excludes earlier keys
      if constexpr (Masked && Tile::kWindow) first_key = tile.first(query);
      const float l = e ? row_lse.y : row_lse.x, d = e ? row_delta.y : row_delta.x;
      uint32_t keep = 0;
      if constexpr (Drop && Tile::kScores) keep = kept.column(n, e);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int key = key_row0 + 8 * half + g;
        float& x = s[0][n][2 * half + e];
        float& y = dp[0][n][2 * half + e];
        float probability = exp2_approx(fmaf(x, tile.scale_log2, -l));
        if (Masked && key >= limit) probability = 0;
        if (Masked && Tile::kWindow && key < first_key) probability = 0;
        float factor = 1;
        if constexpr (Drop && Tile::kScores) {
          factor = keep >> 8 * half & 1 ? keep_scale : 0.0f;
        } else if (Drop) {
          const uint64_t element = first + static_cast<uint64_t>(8 * n + e) * tile.query_elements + 8 * half;
          factor = mask.keep(element) ? keep_scale : 0.0f;
        }
        y = probability * (Drop ? fmaf(y, factor, -d) : y - d);
        if constexpr (Tile::kScores) y *= tile.slope(x);
        x = Drop ? probability * factor : probability;
      }
    }
  }
}

/// Stores C fragments of 16 * M rows, times factor, in rows [row0, ...) < `rows` of a head, from column0 on.
template <int M, int N>
__device__ __forceinline__ void store_fragments(const float (&acc)[M][N][4], float factor, bf16* head,
                                                int64_t row_stride, int row0, int rows, int column0, int head_size) {
  const int lane = static_cast<int>(threadIdx.x) & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row0 + 16 * m + 8 * half + g;
      if (row >= rows) continue;
      uint32_t* target = reinterpret_cast<uint32_t*>(head + row * row_stride + column0) + t;
#pragma unroll
      for (int n = 0; n < N; ++n)
        if (column0 + 8 * n + 2 * t < head_size)
          target[4 * n] = pack(acc[m][n][2 * half] * factor, acc[m][n][2 * half + 1] * factor);
    }
}

/// Stores C fragments of 16 * M rows, times factor, as bf16 in a shared-memory tile: rows from `row` on, columns from
/// 16 * column16 on. `tile` is row_major. An odd last n8 tile is followed by 8 columns of zeros.
template <int D, int M, int N>
__device__ __forceinline__ void stage_fragments(const float (&acc)[M][N][4], float factor, const LaneAddress<D>& tile,
                                                int row, int column16) {
#pragma unroll
  for (int c = 0; c < (N + 1) / 2; ++c) {
    if (column16 + c >= pitch<D> / 16) continue;
#pragma unroll
    for (int m = 0; m < M; ++m) {
      uint32_t a[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int n = 2 * c + i / 2, e = i % 2 * 2;
        a[i] = n < N ? pack(acc[m][n < N ? n : 0][e] * factor, acc[m][n < N ? n : 0][e + 1] * factor) : 0u;
      }
      stmatrix4(tile.at(row + 16 * m, column16 + c), a);
    }
  }
}

/// One warp copies rows [tile_row, tile_row + Rows) of a shared-memory tile to rows [row0, ...) < `rows` of a head;
/// consecutive lanes copy consecutive chunks of a row. A store directly from fragments accesses 8 rows with 16 bytes
/// each and occupies the load/store unit several times as long.
template <int D, int Rows>
__device__ __forceinline__ void store_tile_rows(const char* tile, int tile_row, bf16* head, int64_t row_stride,
                                                int row0, int rows, int head_size, bool wide) {
  constexpr int kChunks = pitch<D> / 8, kRounds = Rows * kChunks / 32, kBatch = 4;  // reads in flight at a time
  static_assert(Rows * kChunks % 32 == 0, "whole warps");
  const int lane = static_cast<int>(threadIdx.x) & 31;
#pragma unroll 1
  for (int first = lane; first < Rows * kChunks; first += 32 * kBatch) {
    uint4 x[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int i = first + 32 * j, r = i / kChunks;
      if (kRounds % kBatch == 0 || i < Rows * kChunks)
        x[j] = *reinterpret_cast<const uint4*>(tile + tile_offset<D>(tile_row + r, i - r * kChunks));
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int i = first + 32 * j, r = i / kChunks, column = (i - r * kChunks) * 8;
      if (row0 + r >= rows || column >= head_size || (kRounds % kBatch != 0 && i >= Rows * kChunks)) continue;
      bf16* target = head + (row0 + r) * row_stride + column;
      if (wide) {
        *reinterpret_cast<uint4*>(target) = x[j];
      } else {
        *reinterpret_cast<uint2*>(target) = uint2{x[j].x, x[j].y};
        if (column + 4 < head_size) *reinterpret_cast<uint2*>(target + 4) = uint2{x[j].z, x[j].w};
      }
    }
  }
}

/// Zeroes rows [begin, end) of a head: keys that no query may see have no gradient.
template <int Threads>
__device__ __forceinline__ void zero_rows(bf16* head, int64_t row_stride, int begin, int end, int head_size) {
  const int pieces = head_size / 4;
  for (int i = static_cast<int>(threadIdx.x); i < (end - begin) * pieces; i += Threads)
    *reinterpret_cast<uint2*>(head + (begin + i / pieces) * row_stride + i % pieces * 4) = uint2{0, 0};
}

}  // namespace blipft::attention
