// Attention forward on tensor cores, the work of one warp: a tile of 16 * MT queries against steps of keys in shared
// memory.
//
// Scores stay in registers (C fragments), the softmax is online and in the exp2 domain, and the probabilities become A
// fragments of the product with V without leaving registers. Exponents are relative to `base`, the running row maximum
// times scale * log2(e), which is updated only if a step exceeds it by more than kSlack. Until then probabilities may
// reach 2^kSlack, which f32 sums and bf16 (relative precision) represent without loss. The rescaling of the output
// tile, the largest overhead of online softmax, thus happens about once per row.
#pragma once

#include "cuda/attention/keep_bits.cuh"
#include "cuda/attention/mma.cuh"
#include "cuda/attention/params.cuh"

namespace blipft::attention {

constexpr float kSlack = 8;

template <int D, int MT>
struct RowState {
  float o[MT][D / 8][4];   // output tile, C fragments
  float base[MT][2];       // of rows g and g + 8 of each 16
  float sum[MT][2];        // this thread's share of the softmax denominator

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int m = 0; m < MT; ++m) {
#pragma unroll
      for (int n = 0; n < D / 8; ++n) o[m][n][0] = o[m][n][1] = o[m][n][2] = o[m][n][3] = 0;
      base[m][0] = base[m][1] = -INFINITY;
      sum[m][0] = sum[m][1] = 0;
    }
  }
};

/// A fragments of a query tile, loaded from global memory into registers.
template <int D, int MT>
struct RegisterQueries {
  uint32_t a[MT][pitch<D> / 16][4];

  __device__ __forceinline__ void load(const bf16* head, int64_t row_stride, int row0, int rows, int head_size) {
    const int lane = static_cast<int>(threadIdx.x) & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = row0 + 16 * m + 8 * half + g;
        const uint32_t* source = reinterpret_cast<const uint32_t*>(head + row * row_stride) + t;
#pragma unroll
        for (int k = 0; k < pitch<D> / 16; ++k) {
          a[m][k][half] = row < rows && 16 * k + 2 * t < head_size ? source[8 * k] : 0u;
          a[m][k][half + 2] = row < rows && 16 * k + 8 + 2 * t < head_size ? source[8 * k + 4] : 0u;
        }
      }
  }
  __device__ __forceinline__ void get(uint32_t (&fragment)[4], int m, int k) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) fragment[i] = a[m][k][i];
  }
};

/// A fragments of a query tile, loaded from shared memory at each use.
template <int D>
struct SharedQueries {
  LaneAddress<D> address;  // row_major
  int row;

  __device__ __forceinline__ void get(uint32_t (&fragment)[4], int m, int k) const {
    ldmatrix4(fragment, address.at(row + 16 * m, k));
  }
};

/// A warp's tile of queries.
struct RowTile {
  int row0;                // first query
  int kv_length;
  bool causal;
  float scale_log2;        // scale * log2(e)
  uint64_t element_row0;   // dropout element of (row0, key 0)
  int query_elements;      // stride between queries

  /// Returns one past the last visible key of a query.
  __device__ __forceinline__ int limit(int row) const { return causal ? min(kv_length, row + 1) : kv_length; }

  static constexpr bool kWindow = false, kScores = false;
};

/// A tile of queries with a window.
struct WindowTile : RowTile {
  int window;

  static constexpr bool kWindow = true;
  /// Returns the first visible key of a query; it may be negative.
  __device__ __forceinline__ int first(int row) const { return row + 1 - window; }
};

/// A tile of queries whose scores change between the product and the softmax. With a cap, products x become tanh(x
/// scale / cap), and scale_log2 converts these to capped scores; with relative positions, they become x scale log2(e) +
/// relative log2(e), and scale_log2 is 1.
struct ScoreTile : WindowTile {
  bool capped, relative;
  float factor;            // factor of products: 2 log2(e) scale / cap, or scale * log2(e)
  const float* center;     // in shared memory: relative * log2(e) at offset 0; offsets from -behind to ahead
  int behind, ahead;

  static constexpr bool kScores = true;
  /// Returns d(capped score) / d(scaled product) for the score x of adjust_scores().
  __device__ __forceinline__ float slope(float x) const { return capped ? fmaf(-x, x, 1.0f) : 1.0f; }
};

/// A tile of queries of which rows of pictures see each other.
struct LastKeyTile : ScoreTile {
  const int32_t* last_keys;  // of the queries of the sample
  int queries;

  __device__ __forceinline__ int limit(int row) const { return min(kv_length, last_keys[min(row, queries - 1)] + 1); }
};

/// Returns the tile type for a kernel's Args. `table`: the head's relative scores, stored by load_relative(); b: sample.
template <class Args>
__device__ __forceinline__ auto tile_of(const Args& p, const RowTile& tile,
                                        [[maybe_unused]] const float* table = nullptr, [[maybe_unused]] int b = 0) {
  if constexpr (Args::kScores) {
    ScoreTile scored{{tile, p.window}, p.cap > 0, p.relative != nullptr, p.scale * kLog2e, table + p.behind, p.behind,
                     p.ahead};
    if (scored.capped) scored.factor = 2 * kLog2e * p.scale / p.cap, scored.scale_log2 = p.cap * kLog2e;
    else if (scored.relative) scored.scale_log2 = 1;
    if constexpr (Args::kLastKeys) return LastKeyTile{scored, p.last_keys_of(b), p.queries(b)};
    else return scored;
  } else if constexpr (Args::kWindow) {
    return WindowTile{tile, p.window};
  } else {
    return tile;
  }
}
/// Starts copying `Rows` rows of a head from row0 on to tile row 0 and on.
template <class Args, int D, int Threads, int Rows>
__device__ __forceinline__ void load_rows(uint32_t tile, const bf16* head, int64_t row_stride, int row0, int valid,
                                          const Args& p) {
  if constexpr (Args::kScores)
    load_rows_async<D, Threads, Rows>(tile, head, row_stride, row0, valid, p.head_size, p.wide);
  else load_tile_async<D, Threads>(tile, head, row_stride, row0, Rows, row0, valid, p.head_size, p.wide);
}
/// Block indices of a grid of tiles x heads x samples. For ScoreParams heads come first: all heads of a sample process
/// the tiles with most work before the others, so that no long tile is among the last.
template <class Args>
__device__ __forceinline__ unsigned block_tile() { return Args::kScores ? blockIdx.y : blockIdx.x; }
template <class Args>
__device__ __forceinline__ unsigned grid_tiles() { return Args::kScores ? gridDim.y : gridDim.x; }
template <class Args>
__device__ __forceinline__ int block_head() { return static_cast<int>(Args::kScores ? blockIdx.x : blockIdx.y); }
template <class Args>
dim3 grid_of(int tiles, int heads, int batch) {
  const unsigned x = static_cast<unsigned>(tiles), y = static_cast<unsigned>(heads);
  return Args::kScores ? dim3(y, x, static_cast<unsigned>(batch)) : dim3(x, y, static_cast<unsigned>(batch));
}
/// Copies the relative scores of head h to shared memory.
template <int Threads, class Args>
__device__ __forceinline__ void load_relative(float* table, const Args& p, int h) {
  if (!p.relative) return;
  const float* row = p.relative + static_cast<int64_t>(h) * p.columns();
  for (int i = static_cast<int>(threadIdx.x); i < p.columns(); i += Threads) table[i] = row[i] * kLog2e;
}
/// Converts products (C fragments, rows = queries, or keys if Transposed) as described at ScoreTile. offset: first key
/// minus first query.
template <bool Transposed, int M, int N, class Tile>
__device__ __forceinline__ void adjust_scores(float (&s)[M][N][4], const Tile& tile, int offset) {
  if constexpr (Tile::kScores) {
    if (tile.capped) {
#pragma unroll
      for (int m = 0; m < M; ++m)
#pragma unroll
        for (int n = 0; n < N; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e)
            s[m][n][e] = fmaf(-2.0f, reciprocal(exp2_approx(s[m][n][e] * tile.factor) + 1.0f), 1.0f);
    } else if (tile.relative) {
      const int lane = static_cast<int>(threadIdx.x) & 31, skew = (lane >> 2) - 2 * (lane & 3);
      const int own = Transposed ? offset + skew : offset - skew;
#pragma unroll
      for (int m = 0; m < M; ++m)
#pragma unroll
        for (int n = 0; n < N; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int row = 16 * m + e / 2 * 8, column = 8 * n + e % 2;
            const int at = own + (Transposed ? row - column : column - row);
            s[m][n][e] = fmaf(s[m][n][e], tile.factor, tile.center[min(max(at, -tile.behind), tile.ahead)]);
          }
    }
  }
}
/// Returns a multiple of `size`, at most key0, from which on queries of sample b see keys from key0 on.
template <class Args>
__device__ __forceinline__ int first_query(const Args& p, [[maybe_unused]] int b, int key0, [[maybe_unused]] int size) {
  if constexpr (Args::kLastKeys) return p.first_query(b, key0, size);
  else return p.causal ? key0 : 0;
}
/// True if no query before `end` sees a key from key0 on.
template <class Args, class Tile>
__device__ __forceinline__ bool before_keys(const Args& p, [[maybe_unused]] const Tile& tile, int end, int key0) {
  if constexpr (Args::kLastKeys) return tile.limit(end - 1) <= key0;
  else return p.causal && end <= key0;
}
/// Returns the first block of `size` keys that this query or a later one sees.
template <class Tile>
__device__ __forceinline__ int first_block(const Tile& tile, int row, int size) {
  if constexpr (Tile::kWindow) return max(0, tile.first(row)) / size;
  else return 0;
}
/// True if the window excludes no keys at and after `key0` for queries up to `last`.
template <class Tile>
__device__ __forceinline__ bool all_in_window(const Tile& tile, int last, int key0) {
  if constexpr (Tile::kWindow) return key0 >= tile.first(last);
  else return true;
}
/// True if the window excludes all keys before `end` for queries from `row` on.
template <class Tile>
__device__ __forceinline__ bool before_window(const Tile& tile, int row, int end) {
  if constexpr (Tile::kWindow) return end <= tile.first(row);
  else return false;
}

/// Computes s = q k^T for 16 * NT keys whose rows start at tile row `key_row`.
template <int D, int MT, int NT, class Queries>
__device__ __forceinline__ void scores(float (&s)[MT][2 * NT][4], const Queries& q, const LaneAddress<D>& keys,
                                       int key_row) {
#pragma unroll
  for (int m = 0; m < MT; ++m)
#pragma unroll
    for (int n = 0; n < 2 * NT; ++n) s[m][n][0] = s[m][n][1] = s[m][n][2] = s[m][n][3] = 0;
#pragma unroll
  for (int k = 0; k < pitch<D> / 16; ++k) {
    uint32_t a[MT][4];
#pragma unroll
    for (int m = 0; m < MT; ++m) q.get(a[m], m, k);
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      uint32_t b[4];
      ldmatrix4(b, keys.at(key_row + 16 * n, k));
#pragma unroll
      for (int m = 0; m < MT; ++m) {
        if (16 * k + 8 < D) {
          mma(s[m][2 * n], a[m], b[0], b[1]);
          mma(s[m][2 * n + 1], a[m], b[2], b[3]);
        } else {
          mma_k8(s[m][2 * n], a[m][0], a[m][1], b[0]);
          mma_k8(s[m][2 * n + 1], a[m][0], a[m][1], b[2]);
        }
      }
    }
  }
}

/// Returns the maximum over 8 * N scores of one of this thread's two rows, in the exp2 domain.
template <int N>
__device__ __forceinline__ float row_top(const float (&s)[N][4], int half, float scale_log2) {
  float x = -INFINITY;
#pragma unroll
  for (int n = 0; n < N; ++n) x = fmaxf(x, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
  return quad_max(x) * scale_log2;
}

/// Updates `base` of rows where a step exceeds it by more than kSlack, and rescales their sums and outputs.
template <int D, int MT, int NT>
__device__ __forceinline__ void raise_base(RowState<D, MT>& state, const float (&s)[MT][2 * NT][4], float scale_log2) {
  float top[MT][2];
  bool raise = false;
#pragma unroll
  for (int m = 0; m < MT; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      top[m][half] = row_top(s[m], half, scale_log2);
      raise = raise || top[m][half] > state.base[m][half] + kSlack;
    }
  if (!__any_sync(0xffffffffu, raise)) return;
#pragma unroll
  for (int m = 0; m < MT; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float old = state.base[m][half], now = fmaxf(old, top[m][half]);
      const float shrink = now == -INFINITY ? 1.0f : exp2_approx(old - now);
      state.base[m][half] = now;
      state.sum[m][half] *= shrink;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        state.o[m][n][2 * half] *= shrink;
        state.o[m][n][2 * half + 1] *= shrink;
      }
    }
}

/// Sets scores of keys from `key0` on that a query does not see to -inf.
template <int MT, int NT, class Tile>
__device__ __forceinline__ void mask_scores(float (&s)[MT][2 * NT][4], const Tile& tile, int key0) {
  const int lane = static_cast<int>(threadIdx.x) & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
  for (int m = 0; m < MT; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int limit = tile.limit(tile.row0 + 16 * m + 8 * half + g) - key0 - 2 * t;
#pragma unroll
      for (int n = 0; n < 2 * NT; ++n) {
        if (8 * n >= limit) s[m][n][2 * half] = -INFINITY;
        if (8 * n + 1 >= limit) s[m][n][2 * half + 1] = -INFINITY;
      }
      if constexpr (Tile::kWindow) {
        const int first = tile.first(tile.row0 + 16 * m + 8 * half + g) - key0 - 2 * t;
#pragma unroll
        for (int n = 0; n < 2 * NT; ++n) {
          if (8 * n < first) s[m][n][2 * half] = -INFINITY;
          if (8 * n + 1 < first) s[m][n][2 * half + 1] = -INFINITY;
        }
      }
    }
}

/// Converts scores to probabilities relative to `base`, adds them to the sums, and applies dropout.
template <int D, int MT, int NT, bool Masked, bool Drop, class Tile>
__device__ __forceinline__ void probabilities(RowState<D, MT>& state, float (&s)[MT][2 * NT][4], int key0,
                                              const Tile& tile, const DropoutMask& mask) {
  const int lane = static_cast<int>(threadIdx.x) & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
  for (int m = 0; m < MT; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // A row that has not seen a key has base -inf; its scores are -inf too and must become 0, not NaN.
      const float base = Masked && state.base[m][half] == -INFINITY ? 0.0f : state.base[m][half];
#pragma unroll
      for (int n = 0; n < 2 * NT; ++n) {
        float& x = s[m][n][2 * half];
        float& y = s[m][n][2 * half + 1];
        x = exp2_approx(fmaf(x, tile.scale_log2, -base));
        y = exp2_approx(fmaf(y, tile.scale_log2, -base));
        state.sum[m][half] += x + y;
        if (Drop && !Tile::kScores) {
          const uint64_t row = static_cast<uint64_t>(16 * m + 8 * half + g) * tile.query_elements;
          const uint32_t keep = mask.keep_pair(tile.element_row0 + row + key0 + 8 * n + 2 * t);
          if (!(keep & 1)) x = 0;
          if (!(keep & 2)) y = 0;
        }
      }
      if constexpr (Drop && Tile::kScores) {
        const uint64_t row = static_cast<uint64_t>(16 * m + 8 * half + g) * tile.query_elements;
        const KeptKeys<2 * NT> kept(mask, tile.element_row0 + row + key0, tile.query_elements % 8 == 0);
#pragma unroll
        for (int n = 0; n < 2 * NT; ++n) {
          if (!(kept.pair(n) & 1)) s[m][n][2 * half] = 0;
          if (!(kept.pair(n) & 2)) s[m][n][2 * half + 1] = 0;
        }
      }
    }
}

/// One step: the tile against 16 * NT keys from `key0` on, which start at tile row `key_row` of K and V.
template <int D, int MT, int NT, bool Masked, bool Drop, class Queries, class Tile>
__device__ __forceinline__ void forward_step(RowState<D, MT>& state, const Queries& q, const LaneAddress<D>& keys,
                                             const LaneAddress<D>& values, int key_row, int key0, const Tile& tile,
                                             const DropoutMask& mask) {
  float s[MT][2 * NT][4];
  scores<D, MT, NT>(s, q, keys, key_row);
  adjust_scores<false>(s, tile, key0 - tile.row0);
  if (Masked) mask_scores<MT, NT>(s, tile, key0);
  raise_base<D, MT, NT>(state, s, tile.scale_log2);
  probabilities<D, MT, NT, Masked, Drop>(state, s, key0, tile, mask);
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    uint32_t a[MT][4];
#pragma unroll
    for (int m = 0; m < MT; ++m) pack_a(a[m], s[m][2 * n], s[m][2 * n + 1]);
    multiply_rows<D, MT>(state.o, a, values, key_row + 16 * n);
  }
}

/// Stores out = o / sum and lse for the tile's existing rows: the rows after a packed sample belong to the next one.
template <int D, int MT, class Args>
__device__ __forceinline__ void store_rows(RowState<D, MT>& state, const Args& p, int b, int h, int row0) {
  const int lane = static_cast<int>(threadIdx.x) & 31, g = lane >> 2, t = lane & 3;
  bf16* out = head_of<bf16>(p, p.out, b, h);
  float* lse = p.lse + (static_cast<int64_t>(b) * p.heads + h) * p.query_tokens;
  const int rows = p.queries(b);
#pragma unroll
  for (int m = 0; m < MT; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row0 + 16 * m + 8 * half + g;
      const float sum = quad_sum(state.sum[m][half]);
      const float factor = sum > 0 ? p.keep_scale / sum : 0.0f;
      if (row >= rows) continue;
      uint32_t* target = reinterpret_cast<uint32_t*>(out + row * p.out.row_stride) + t;
#pragma unroll
      for (int n = 0; n < D / 8; ++n)
        if (8 * n + 2 * t < p.head_size)
          target[4 * n] = pack(state.o[m][n][2 * half] * factor, state.o[m][n][2 * half + 1] * factor);
      if (t == 0) lse[row] = sum > 0 ? (state.base[m][half] + log2f(sum)) * kLn2 : -INFINITY;
    }
}

}  // namespace blipft::attention
