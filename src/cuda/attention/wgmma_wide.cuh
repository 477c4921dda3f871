// Common code of the attention kernels with warpgroup products for heads of 129 to 256 (wgmma_wide_forward.cu,
// wgmma_wide_backward.cu): bf16, any number of tokens, ScoreParams, no dropout.
//
// A block of two warpgroups processes one tile, like the mma.sync kernels: all threads copy the next rows with cp.async
// while the block processes the last. Tiles in shared memory are like those of wgmma_long.cuh: 4 parts of 64 columns,
// zeros from head_size on. A warpgroup's 64 x 256 accumulator takes 128 registers per thread, as two halves of the
// columns.
#pragma once

#include "cuda/attention/wgmma_long.cuh"

namespace blipft::attention {

// Launchers; each returns false if it does not support the arguments.
bool wgmma_wide_forward(const ScoreParams&, cudaStream_t);
bool wgmma_wide_backward(const ScoreParams&, cudaStream_t);

namespace wgmma_wide {

constexpr int D = 256, kThreads = 256, kHalf = D / 2;

/// True if the kernels support these arguments.
inline bool fits(const ScoreParams& p) {
  return p.wgmma && p.wide && !p.dropout && p.head_size > 128 && p.head_size <= D;
}

/// Returns the bytes of a tile of `rows` rows.
constexpr int tile_bytes(int rows) { return rows * D * 2; }

#ifdef BLIPFT_WGMMA_CODE

using wgmma_long::clear;
using wgmma_long::multiply_rows_transposed;

/// Starts copying `Rows` rows of a head from row0 on to a tile; rows at and after `valid` become zeros.
template <int Rows>
__device__ __forceinline__ void load_tile(uint32_t tile, const bf16* head, int64_t row_stride, int row0, int valid,
                                          int head_size) {
  constexpr int kChunks = D / 8, kStep = kThreads / kChunks;
  static_assert(kStep == 8, "all of a thread's rows have one swizzle");
  const int thread = fresh_thread(), c = thread % kChunks, r = thread / kChunks;
  const bf16* source = head + (row0 + r) * row_stride + c * 8;
  const int existing = c * 8 < head_size ? valid - row0 - r : 0;  // number of rows from the first `source` on
  const uint32_t target = tile + static_cast<uint32_t>(c / 8 * Rows * 128 + r * 128 + ((c % 8 ^ r) << 4));
  const int64_t step = kStep * row_stride;
#pragma unroll
  for (int i = 0; i < Rows; i += kStep, source += step)
    copy16_async(target + static_cast<uint32_t>(i * 128), source, i < existing);
}

/// Waits until all threads' copies have arrived and can be read by products.
__device__ __forceinline__ void wait_for_tiles() {
  wait_copies<0>();
  publish();
  __syncthreads();
}

/// An accumulator of 64 x 256 as two halves of the columns.
struct Rows64 {
  float half[2][1][kHalf / 8][4];

  __device__ __forceinline__ void clear_all() {
    clear(half[0][0]);
    clear(half[1][0]);
  }
  __device__ __forceinline__ void pin_all() {
    pin(half[0][0]);
    pin(half[1][0]);
  }
  /// Starts += A B for A of 64 x 16 * K in registers and the first 16 * K of the `Rows` rows of the tile at b.
  template <int Rows, int K>
  __device__ __forceinline__ void add(const uint32_t (&a)[K][4], uint32_t b) {
    constexpr uint32_t kPart = Rows * 128;
#pragma unroll
    for (int k = 0; k < K; ++k)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const Operand rows{(b + static_cast<uint32_t>(2 * i) * kPart) >> 4 | (kPart >> 4) << 16, 1024 >> 4 | 1u << 30};
        Wgmma<kHalf>::rs<1>(half[i][0], a[k], rows.at(k * kLeftRows16), 1);
      }
  }
  __device__ __forceinline__ void scale_rows(const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int n = 0; n < kHalf / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) half[i][0][n][e] *= factor[e / 2];
  }
  /// Stores the accumulator times `factor` in a warp's 16 rows of a head from row0 on, below `rows`.
  __device__ __forceinline__ void store(float factor, bf16* head, int64_t row_stride, int row0, int rows,
                                        int head_size) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      store_fragments<1, kHalf / 8>(half[i], factor, head, row_stride, row0, rows, i * kHalf, head_size);
  }
};

/// Converts a warp's 16 x 16 * K scores to A operands.
template <int K>
__device__ __forceinline__ void pack_rows(uint32_t (&a)[K][4], const float (&s)[2 * K][4]) {
#pragma unroll
  for (int k = 0; k < K; ++k) pack_a(a[k], s[2 * k], s[2 * k + 1]);
}

/// A barrier at which no thread ever arrives. A wait for the phase before its first returns at once: see stay_before()
/// of wgmma_long.cuh.
struct Fence {
  CopyBarrier barrier;

  __device__ __forceinline__ void init() const {
    if (fresh_thread() == 0) barrier.init();
  }
  __device__ __forceinline__ void stay_before() const { barrier.wait(-1); }
};

#endif  // BLIPFT_WGMMA_CODE

}  // namespace wgmma_wide
}  // namespace blipft::attention
