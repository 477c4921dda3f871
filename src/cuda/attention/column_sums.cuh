// Column sums of C fragments (see mma.cuh) for the bias gradient of attention backward.
#pragma once

#include "cuda/attention/mma.cuh"

namespace blipft::attention {

/// Adds the column sums of C fragments, times factor, to `target` in shared memory. sums[n] is this lane's sum over its
/// rows of columns 2t, 2t + 1 of n8 tile n; tile n goes to target + step * n, for n < tiles. In each round a lane keeps
/// half of the tiles and passes the others to the lane that keeps those.
template <int N>
__device__ __forceinline__ void add_column_sums(const float2 (&sums)[N], float factor, float* target, int step,
                                                int tiles) {
  constexpr int kPadded = (N + 7) / 8 * 8;
  const int lane = fresh_thread() & 31, t = lane & 3;
  float2 x[kPadded];
#pragma unroll
  for (int n = 0; n < kPadded; ++n) x[n] = n < N ? sums[n < N ? n : 0] : float2{0, 0};
  int first = 0;
#pragma unroll
  for (int round = 0; round < 3; ++round) {
    const int bit = 16 >> round, half = kPadded / 2 >> round;
    const bool upper = (lane & bit) != 0;
#pragma unroll
    for (int n = 0; n < kPadded / 2; ++n) {
      if (n >= half) continue;
      const float2 keep = upper ? x[n + half] : x[n], give = upper ? x[n] : x[n + half];
      x[n].x = keep.x + __shfl_xor_sync(0xffffffffu, give.x, bit);
      x[n].y = keep.y + __shfl_xor_sync(0xffffffffu, give.y, bit);
    }
    if (upper) first += half;
  }
#pragma unroll
  for (int n = 0; n < kPadded / 8; ++n) {
    if (first + n >= min(N, tiles)) continue;
    float2* place = reinterpret_cast<float2*>(target + step * (first + n) + 2 * t);
    const float2 old = *place;
    *place = make_float2(fmaf(x[n].x, factor, old.x), fmaf(x[n].y, factor, old.y));
  }
}

/// Computes this lane's sums over its rows of C fragments of 16 * M rows from row0 on, below `rows`: the rows that
/// store_fragments stores.
template <int M, int N>
__device__ __forceinline__ void row_sums(float2 (&sums)[N], const float (&acc)[M][N][4], int row0, int rows) {
  const int g = (fresh_thread() & 31) >> 2;
#pragma unroll
  for (int n = 0; n < N; ++n) sums[n] = float2{0, 0};
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (row0 + 16 * m + 8 * half + g >= rows) continue;  // such rows have undefined values
#pragma unroll
      for (int n = 0; n < N; ++n) {
        sums[n].x += acc[m][n][2 * half];
        sums[n].y += acc[m][n][2 * half + 1];
      }
    }
}

}  // namespace blipft::attention
