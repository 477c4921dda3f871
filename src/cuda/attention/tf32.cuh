// Building blocks of the f32 attention kernels with TF32 products: tiles of f32 in shared memory, rounded in place, and
// products of mma.m16n8k8 fragments with them. With g = lane / 4 and t = lane % 4 of a lane:
//   A (16 x 8): a0 = (g, t), a1 = (g+8, t), a2 = (g, t+4), a3 = (g+8, t+4)
//   B (8 x 8):  b0 = (t, g), b1 = (t+4, g)                                 (row k, column n)
//   C (16 x 8): c0, c1 = (g, 2t..2t+1), c2, c3 = (g+8, 2t..2t+1)           (as for bf16: forward.cuh's softmax fits)
//
// There are two kinds of products, neither of which needs transposed copies:
//   row_products: rows times rows (Q K^T, dO V^T, or the reverse). ldmatrix moves 16 bytes of each of 8 rows to four
//     lanes per row; for 32-bit elements, lane (g, t) gets element (g, t), as A and B (whose rows are n) require.
//   add_products: weights times rows (P V, P^T dO, dS K, dS^T Q). The weights are C fragments. The order of k is
//     arbitrary if A and B agree, so C's registers can be A's: row 2t of the tile is k = t, row 2t + 1 is k = t + 4,
//     a0..a3 = c0, c2, c1, c3, and b0, b1 are the elements of rows 2t and 2t + 1. The order of the columns n is
//     arbitrary too: of each 32 columns, product j of 4 uses column 4 g + j for n = g, so that a lane reads 16 bytes at
//     a time. It gets columns 8t..8t+7 of rows g and g + 8, which it also writes in 16 bytes.
//
// A row is D + 4 floats, D a multiple of 32, so that no access has bank conflicts (32 banks of 4 bytes):
//   ldmatrix: 8 rows of 4 banks each start at banks 4 r                                                mod 32
//   add_products: 8 lanes at a time (two g, all t) read 16 bytes each, from banks 2 (D + 4) t + 4 g = 8 t + 4 g  mod 32
//   store_products to a tile: the same lanes, at columns 8 t of rows g: banks 4 g + 8 t                mod 32
//
// mma would truncate unrounded factors, which is biased. Each thread rounds what it has copied itself, after its
// arrival and before the barrier that makes it visible to the others. An element is thus rounded once per block;
// rounding fragments would repeat it in each warp at each use (8 times in dkv).
#pragma once

#include "cuda/attention/backward.cuh"

namespace blipft::attention::tf32 {

/// A block has 4 warps with 16 rows each of the side that it owns: queries (forward, dq) or keys (dkv).
constexpr int kWarps = 4, kThreads = kWarps * 32, kRows = kWarps * 16;

/// Floats between the rows of a tile.
template <int D>
constexpr int kPitch = D + 4;

/// Rounds to the nearest TF32 number, ties away from zero.
__device__ __forceinline__ uint32_t round_tf32(float x) {
  uint32_t y;
  asm("cvt.rna.tf32.f32 %0, %1;\n" : "=r"(y) : "f"(x));
  return y;
}

/// Computes c += a b for one 16 x 8 x 8 block.
__device__ __forceinline__ void mma_tf32(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
               "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Copies 4 bytes from global to shared memory, or writes zero if not `valid`.
__device__ __forceinline__ void copy4_async(float* shared, const float* global, bool valid) {
  const int bytes = valid ? 4 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(shared_address(shared)), "l"(global), "r"(bytes)
               : "memory");
}

/// Calls f(row, column) for each 16-byte piece that this thread copies and rounds in a tile of `Rows` rows.
template <int D, int Rows, class F>
__device__ __forceinline__ void own_pieces(const F& f) {
  constexpr int kPieces = D / 4;
  static_assert(D % 32 == 0 && Rows * kPieces % kThreads == 0, "as many for each thread");
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < Rows * kPieces; i += kThreads) f(i / kPieces, i % kPieces * 4);
}

/// Starts copying rows [row0, row0 + Rows) of a head; rows at and after `valid` and columns at and after head_size
/// become zeros.
template <int D, int Rows>
__device__ __forceinline__ void load_rows(float* tile, const float* head, int64_t row_stride, int row0, int valid,
                                          int head_size) {
  own_pieces<D, Rows>([&](int r, int c) {
    const bool ok = row0 + r < valid && c < head_size;
    copy16_async(shared_address(tile + r * kPitch<D> + c), ok ? head + (row0 + r) * row_stride + c : head, ok);
  });
}

/// Rounds what this thread has copied to the tile.
template <int D, int Rows>
__device__ __forceinline__ void round_rows(float* tile) {
  own_pieces<D, Rows>([&](int r, int c) {
    uint4* at = reinterpret_cast<uint4*>(tile + r * kPitch<D> + c);
    const float4 x = *reinterpret_cast<const float4*>(at);
    *at = {round_tf32(x.x), round_tf32(x.y), round_tf32(x.z), round_tf32(x.w)};
  });
}

/// This lane's ldmatrix addresses in a tile, for one of two assignments of the four blocks of 8 rows and 4 columns:
///   as_a: (0, 0) (8, 0) (0, 4) (8, 4): A of 16 rows and k = 8
///   as_b: (0, 0) (0, 4) (8, 0) (8, 4): B of k = 8 and two times 8 rows: b0, b1 of the first 8, then of the others
template <int D>
struct LaneRows {
  uint32_t first;

  static __device__ __forceinline__ LaneRows as_a(const float* tile) {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    return {shared_address(tile + (lane & 15) * kPitch<D> + (lane >> 4) * 4)};
  }
  static __device__ __forceinline__ LaneRows as_b(const float* tile) {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    return {shared_address(tile + ((lane & 7) + (lane >> 4) * 8) * kPitch<D> + ((lane >> 3) & 1) * 4)};
  }
  /// Returns the address of the blocks from row `row` and column 8 * k on.
  __device__ __forceinline__ uint32_t at(int row, int k) const {
    return first + static_cast<uint32_t>((row * kPitch<D> + 8 * k) * 4);
  }
};

/// A fragments of 16 rows of a tile, loaded at each use.
template <int D>
struct SharedRows {
  LaneRows<D> rows;

  explicit __device__ __forceinline__ SharedRows(const float* tile) : rows(LaneRows<D>::as_a(tile)) {}
  __device__ __forceinline__ void get(uint32_t (&a)[4], int k) const { ldmatrix4(a, rows.at(0, k)); }
};

/// A fragments of rows [row0, row0 + 16) of a head, loaded once from global memory into registers.
template <int D>
struct RegisterRows {
  uint32_t a[D / 8][4];

  __device__ __forceinline__ void load(const float* head, int64_t row_stride, int row0, int rows, int head_size) {
    const int lane = static_cast<int>(threadIdx.x) & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row0 + 8 * half + g;
      const float* source = head + row * row_stride + t;
#pragma unroll
      for (int k = 0; k < D / 8; ++k) {
        a[k][half] = round_tf32(row < rows && 8 * k + t < head_size ? source[8 * k] : 0.0f);
        a[k][half + 2] = round_tf32(row < rows && 8 * k + 4 + t < head_size ? source[8 * k + 4] : 0.0f);
      }
    }
  }
  __device__ __forceinline__ void get(uint32_t (&fragment)[4], int k) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) fragment[i] = a[k][i];
  }
};

/// Computes s [16][8 * N] = the rows of `a` times rows [row, row + 8 * N) of the tile of `b`.
template <int D, int N, class Rows>
__device__ __forceinline__ void row_products(float (&s)[1][N][4], const Rows& a, const LaneRows<D>& b, int row) {
  static_assert(N % 2 == 0, "ldmatrix brings 16 rows");
#pragma unroll
  for (int n = 0; n < N; ++n) s[0][n][0] = s[0][n][1] = s[0][n][2] = s[0][n][3] = 0;
#pragma unroll
  for (int k = 0; k < D / 8; ++k) {
    uint32_t x[4];
    a.get(x, k);
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      uint32_t y[4];
      ldmatrix4(y, b.at(row + 8 * n, k));
      mma_tf32(s[0][n], x, y[0], y[1]);
      mma_tf32(s[0][n + 1], x, y[2], y[3]);
    }
  }
}

/// Returns the start of add_products' reads in a tile, for this lane.
template <int D>
__device__ __forceinline__ const float* lane_columns(const float* tile) {
  const int lane = static_cast<int>(threadIdx.x) & 31, g = lane >> 2, t = lane & 3;
  return tile + 2 * t * kPitch<D> + 4 * g;
}

/// Computes acc [16][D] += weights [16][8 * N] (C fragments) times rows [row, row + 8 * N) of the tile of `columns`. In
/// acc, element e of block 4 c + j is column 32 c + 8 t + 4 (e % 2) + j of row g + 8 (e / 2).
template <int D, int N>
__device__ __forceinline__ void add_products(float (&acc)[1][D / 8][4], const float (&weights)[1][N][4],
                                             const float* columns, int row) {
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const float(&w)[4] = weights[0][n];
    const uint32_t a[4] = {round_tf32(w[0]), round_tf32(w[2]), round_tf32(w[1]), round_tf32(w[3])};
    const float* even = columns + (row + 8 * n) * kPitch<D>;
#pragma unroll
    for (int c = 0; c < D / 32; ++c) {
      const uint4 x = *reinterpret_cast<const uint4*>(even + 32 * c);
      const uint4 y = *reinterpret_cast<const uint4*>(even + kPitch<D> + 32 * c);
      mma_tf32(acc[0][4 * c], a, x.x, y.x);
      mma_tf32(acc[0][4 * c + 1], a, x.y, y.y);
      mma_tf32(acc[0][4 * c + 2], a, x.z, y.z);
      mma_tf32(acc[0][4 * c + 3], a, x.w, y.w);
    }
  }
}

/// Stores acc of add_products, times a factor for each of this lane's rows, in rows [row0, row0 + 16) below `rows`.
template <int D>
__device__ __forceinline__ void store_products(const float (&acc)[1][D / 8][4], const float (&factor)[2], float* head,
                                               int64_t row_stride, int row0, int rows, int head_size) {
  const int lane = static_cast<int>(threadIdx.x) & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = row0 + 8 * half + g;
    if (row >= rows) continue;
    float* target = head + row * row_stride;
#pragma unroll
    for (int c = 0; c < D / 32; ++c)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int column = 32 * c + 8 * t + 4 * e, i = 2 * half + e;
        if (column >= head_size) continue;
        *reinterpret_cast<float4*>(target + column) =
            make_float4(acc[0][4 * c][i] * factor[half], acc[0][4 * c + 1][i] * factor[half],
                        acc[0][4 * c + 2][i] * factor[half], acc[0][4 * c + 3][i] * factor[half]);
      }
  }
}

}  // namespace blipft::attention::tf32
