// Building blocks of the bf16 attention kernels: swizzled shared-memory tiles, ldmatrix/stmatrix, mma.sync, cp.async.
//
// A tile is [rows][D] bf16. D, a multiple of 8, is rounded up to P = pitch<D>, a multiple of 16, without more padding.
// A row consists of P/8 chunks of 16 bytes; chunk c of row r is at position c ^ swizzle(r). The swizzle is chosen such
// that the same chunk of 8 consecutive rows (one phase of ldmatrix) always covers all 32 banks:
//   P/16 odd    (pitch = 2 or 6 chunks mod 8): rows r and r+4 collide       -> flip bit 0 by bit 2 of r
//   P/16 = 2 mod 4 (pitch = 4 chunks mod 8):   every second row collides    -> flip bits 0..1 by bits 1..2 of r
//   P/16 = 0 mod 4 (pitch = 0 chunks mod 8):   all rows collide             -> flip bits 0..2 by bits 0..2 of r
// The swizzle depends only on r mod 8 and stays within the row.
//
// Fragments of mma.m16n8k16, with g = lane / 4 and t = lane % 4:
//   A (16 x 16): a0 = (g, 2t..2t+1), a1 = (g+8, 2t..), a2 = (g, 2t+8..), a3 = (g+8, 2t+8..)
//   B (16 x 8):  b0 = (2t..2t+1, g), b1 = (2t+8.., g)
//   C (16 x 8):  c0, c1 = (g, 2t..2t+1), c2, c3 = (g+8, 2t..2t+1)
#pragma once

#include <cstdint>

#include "cuda/vector.cuh"

namespace blipft::attention {

template <int D>
constexpr int pitch = (D + 15) / 16 * 16;

template <int D>
__host__ __device__ __forceinline__ constexpr int swizzle(int row) {
  if (pitch<D> / 16 % 4 == 0) return row & 7;
  if (pitch<D> / 16 % 2 == 0) return (row >> 1) & 3;
  return (row >> 2) & 1;
}

/// Byte offset of chunk `chunk` (8 columns) of row `row` inside a tile.
template <int D>
__host__ __device__ __forceinline__ constexpr uint32_t tile_offset(int row, int chunk) {
  return static_cast<uint32_t>(row * pitch<D> * 2 + ((chunk ^ swizzle<D>(row)) << 4));
}

/// Reads threadIdx.x again: values derived from it are then recomputed at each use and occupy no registers in between.
__device__ __forceinline__ int fresh_thread() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

/// Copies 16 bytes from global to shared memory, or writes 16 zero bytes if not `valid`.
__device__ __forceinline__ void copy16_async(uint32_t shared, const void* global, bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared), "l"(global), "r"(bytes) : "memory");
}
/// Like copy16_async, for 8 bytes.
__device__ __forceinline__ void copy8_async(uint32_t shared, const void* global, bool valid) {
  const int bytes = valid ? 8 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;\n" ::"r"(shared), "l"(global), "r"(bytes) : "memory");
}

/// Starts copying rows [row0, row0 + rows) of a head into tile rows [row0 - origin, ...). Rows at and after `valid` and
/// columns at and after head_size become zeros. `wide`: rows are 16-byte aligned and head_size is a multiple of 8;
/// otherwise 8-byte aligned and a multiple of 4.
template <int D, int Threads>
__device__ __forceinline__ void load_tile_async(uint32_t tile, const bf16* head, int64_t row_stride, int row0, int rows,
                                                int origin, int valid, int head_size, bool wide) {
  constexpr int kChunks = pitch<D> / 8;
  for (int i = static_cast<int>(threadIdx.x); i < rows * kChunks; i += Threads) {
    const int r = i / kChunks, c = i - r * kChunks, row = row0 + r;
    const bool ok = row < valid && c * 8 < head_size;
    const uint32_t target = tile + tile_offset<D>(row - origin, c);
    const bf16* source = ok ? head + row * row_stride + c * 8 : head;
    if (wide) {
      copy16_async(target, source, ok);
    } else {
      const bool second = ok && c * 8 + 4 < head_size;
      copy8_async(target, source, ok);
      copy8_async(target + 8, second ? source + 4 : head, second);
    }
  }
}

/// Like load_tile_async for `Rows` rows from row0 on to tile row 0 and on, with a quarter of the instructions: each
/// thread copies one chunk of the columns in every kStep-th row.
template <int D, int Threads, int Rows>
__device__ __forceinline__ void load_rows_async(uint32_t tile, const bf16* head, int64_t row_stride, int row0,
                                                int valid, int head_size, bool wide) {
  constexpr int kChunks = pitch<D> / 8, kStep = Threads / kChunks;
  static_assert(Threads % kChunks == 0 && Rows % kStep == 0, "whole rows, equally many a thread");
  const int thread = fresh_thread(), c = thread % kChunks, r = thread / kChunks;
  const bf16* source = head + (row0 + r) * row_stride + c * 8;
  const int existing = c * 8 < head_size ? valid - row0 - r : 0;  // number of rows from the first `source` on
  const int64_t step = kStep * row_stride;
  if (wide) {
#pragma unroll
    for (int i = 0; i < Rows; i += kStep, source += step)
      copy16_async(tile + tile_offset<D>(r + i, c), source, i < existing);
  } else {
#pragma unroll
    for (int i = 0; i < Rows; i += kStep, source += step) {
      copy8_async(tile + tile_offset<D>(r + i, c), source, i < existing);
      copy8_async(tile + tile_offset<D>(r + i, c) + 8, source + 4, i < existing && c * 8 + 4 < head_size);
    }
  }
}

__device__ __forceinline__ void ldmatrix4(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
__device__ __forceinline__ void ldmatrix4_trans(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
__device__ __forceinline__ void ldmatrix2_trans(uint32_t (&r)[2], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];\n"
               : "=r"(r[0]), "=r"(r[1]) : "r"(address) : "memory");
}
/// Stores four 8 x 8 matrices; lane 8 i + j has the address of row j of matrix i. The whole warp must call it.
__device__ __forceinline__ void stmatrix4(uint32_t address, const uint32_t (&r)[4]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};\n" ::"r"(address), "r"(r[0]), "r"(r[1]),
               "r"(r[2]), "r"(r[3]) : "memory");
#else
  // A lane holds elements 2t, 2t + 1 of row g of each matrix (see above): one store writes 8 rows of 16 bytes.
  const int lane = static_cast<int>(threadIdx.x) & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t row = __shfl_sync(0xffffffffu, address, 8 * i + g);
    asm volatile("st.shared.b32 [%0], %1;\n" ::"r"(row + static_cast<uint32_t>(4 * t)), "r"(r[i]) : "memory");
  }
#endif
}
__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
               "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
/// Product over the first 8 of the 16 columns of A: a0, a1 and b0 of the fragments above.
__device__ __forceinline__ void mma_k8(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t b0) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 "
               "{%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};\n"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a0), "r"(a1), "r"(b0));
}
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}
/// Packs two floats into bf16x2, `low` in the lower half.
__device__ __forceinline__ uint32_t pack(float low, float high) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

/// This lane's ldmatrix addresses in a tile, for one of two assignments of the four 8 x 8 matrices to (row, chunk):
///   row_major: matrices at (0,0) (8,0) (0,1) (8,1): A from [m][k]; B by .trans from [k][n] (two n8 tiles)
///   chunk_major: matrices at (0,0) (0,1) (8,0) (8,1): B from [n][k] (two n8 tiles); A by .trans from [k][m]
template <int D>
struct LaneAddress {
  uint32_t row;      // tile address of this lane's row
  uint32_t chunk16;  // 16 * (this lane's chunk ^ swizzle)

  static __device__ __forceinline__ LaneAddress row_major(uint32_t tile) {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    return {tile + static_cast<uint32_t>(((lane & 7) + ((lane >> 3) & 1) * 8) * pitch<D> * 2),
            static_cast<uint32_t>(((lane >> 4) ^ swizzle<D>(lane & 7)) << 4)};
  }
  static __device__ __forceinline__ LaneAddress chunk_major(uint32_t tile) {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    return {tile + static_cast<uint32_t>(((lane & 7) + (lane >> 4) * 8) * pitch<D> * 2),
            static_cast<uint32_t>((((lane >> 3) & 1) ^ swizzle<D>(lane & 7)) << 4)};
  }
  /// Address of the 16 x 16 block at row `row16` (a multiple of 8) and column 16 * `column16`.
  __device__ __forceinline__ uint32_t at(int row16, int column16) const {
    return row + static_cast<uint32_t>(row16 * pitch<D> * 2) + (static_cast<uint32_t>(column16 * 32) ^ chunk16);
  }
};

/// Converts C fragments of two adjacent n8 tiles to the A fragment of a 16 x 16 block.
__device__ __forceinline__ void pack_a(uint32_t (&a)[4], const float (&left)[4], const float (&right)[4]) {
  a[0] = pack(left[0], left[1]);
  a[1] = pack(left[2], left[3]);
  a[2] = pack(right[0], right[1]);
  a[3] = pack(right[2], right[3]);
}

/// Computes o (C fragments of [16 * MT][D]) += a times the 16 x D block of rows that starts at tile row `row`.
template <int D, int MT>
__device__ __forceinline__ void multiply_rows(float (&o)[MT][D / 8][4], const uint32_t (&a)[MT][4],
                                              const LaneAddress<D>& rows, int row) {
#pragma unroll
  for (int d = 0; d < pitch<D> / 16; ++d) {
    uint32_t b[4];
    ldmatrix4_trans(b, rows.at(row, d));
#pragma unroll
    for (int m = 0; m < MT; ++m) {
      mma(o[m][2 * d], a[m], b[0], b[1]);
      if (2 * d + 1 < D / 8) mma(o[m][2 * d + 1], a[m], b[2], b[3]);
    }
  }
}

}  // namespace blipft::attention
