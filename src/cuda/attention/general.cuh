// Common code of general.cu and general_extra.cu: tiles of 32 rows in shared memory, as f32, and operations of a block
// of 256 threads on them.
#pragma once

#include "cuda/attention/params.cuh"

namespace blipft::attention {

/// True if windows, last_keys, caps, large heads, relative positions or separately packed keys require the kernels of
/// general_extra.cu.
inline bool needs_extra(const Params& p) {
  return p.window > 0 || p.last_keys || changes_scores(p);
}
void extra_forward(const PackedParams& p, bool bf16, cudaStream_t stream);
/// Must run after row_deltas().
void extra_backward(const PackedParams& p, bool bf16, cudaStream_t stream);

namespace general {

constexpr int kTile = 32, kThreads = 256, kScorePitch = 33;

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ void from_float(float& y, float x) { y = x; }
__device__ __forceinline__ void from_float(__nv_bfloat16& y, float x) { y = __float2bfloat16_rn(x); }

template <int Groups>
constexpr int kPitch = Groups * 32 + 4;

/// Loads tile [32][Groups * 32] = rows [row0, row0 + 32) of a head, with zeros outside of `rows` and head_size.
template <class T, int Groups>
__device__ void load_tile(float* tile, const T* head, int64_t row_stride, int row0, int rows, int head_size) {
  for (int i = threadIdx.x; i < kTile * Groups * 32; i += kThreads) {
    const int r = i / (Groups * 32), c = i % (Groups * 32);
    const bool ok = row0 + r < rows && c < head_size;
    tile[r * kPitch<Groups> + c] = ok ? to_float(head[(row0 + r) * row_stride + c]) : 0.0f;
  }
}

/// Adds the dot products of two rows each: score[i][j] += a-row (ty + 16 i) . b-row (tx + 16 j)
template <int Groups>
__device__ void add_dots(float (&score)[2][2], const float* a, const float* b, int ty, int tx) {
#pragma unroll 8
  for (int d = 0; d < Groups * 32; d += 4) {
    float4 x[2], y[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      x[i] = *reinterpret_cast<const float4*>(a + (ty + 16 * i) * kPitch<Groups> + d);
      y[i] = *reinterpret_cast<const float4*>(b + (tx + 16 * i) * kPitch<Groups> + d);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        score[i][j] = fmaf(x[i].x, y[j].x, score[i][j]);
        score[i][j] = fmaf(x[i].y, y[j].y, score[i][j]);
        score[i][j] = fmaf(x[i].z, y[j].z, score[i][j]);
        score[i][j] = fmaf(x[i].w, y[j].w, score[i][j]);
      }
  }
}

/// Computes the dot products of two rows each: score[i][j] = a-row (ty + 16 i) . b-row (tx + 16 j)
template <int Groups>
__device__ void dot_tile(float (&score)[2][2], const float* a, const float* b, int ty, int tx) {
  score[0][0] = score[0][1] = score[1][0] = score[1][1] = 0;
  add_dots<Groups>(score, a, b, ty, tx);
}

/// Adds products: acc (row r, columns 4 c + 32 g) += weights row r [32] times tile [32][Groups * 32]
template <int Groups>
__device__ void multiply_tile(float4 (&acc)[Groups], const float* weights, const float* tile, int r, int c) {
#pragma unroll 4
  for (int j = 0; j < kTile; ++j) {
    const float w = weights[r * kScorePitch + j];
#pragma unroll
    for (int g = 0; g < Groups; ++g) {
      const float4 x = *reinterpret_cast<const float4*>(tile + j * kPitch<Groups> + g * 32 + c * 4);
      acc[g].x = fmaf(w, x.x, acc[g].x);
      acc[g].y = fmaf(w, x.y, acc[g].y);
      acc[g].z = fmaf(w, x.z, acc[g].z);
      acc[g].w = fmaf(w, x.w, acc[g].w);
    }
  }
}

template <class T, int Groups>
__device__ void store_row(T* row, const float4 (&acc)[Groups], float factor, int c, int head_size) {
#pragma unroll
  for (int g = 0; g < Groups; ++g) {
    const float values[4] = {acc[g].x, acc[g].y, acc[g].z, acc[g].w};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int column = g * 32 + c * 4 + e;
      if (column < head_size) from_float(row[column], values[e] * factor);
    }
  }
}

/// Processes one tile of scores [32][33]: the 8 threads of row r (query q0 + r) convert its 32 scores (keys from k0)
/// into weights relative to the row's largest score so far, and add them to the row sum. Returns the factor that
/// rescales earlier weights.
__device__ __forceinline__ float take_scores(float* scores, float& row_max, float& row_sum, const PackedParams& p,
                                             const DropoutMask& mask, int h, int q0, int k0, int r, int c) {
  float x[4], tile_max = -INFINITY, tile_sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) tile_max = fmaxf(tile_max, x[i] = scores[r * kScorePitch + c + 8 * i]);
#pragma unroll
  for (int o = 1; o < 8; o *= 2) tile_max = fmaxf(tile_max, __shfl_xor_sync(0xffffffffu, tile_max, o));
  const float new_max = fmaxf(row_max, tile_max), base = new_max == -INFINITY ? 0.0f : new_max;
  const float shrink = expf(row_max - base);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float e = expf(x[i] - base);
    tile_sum += e;
    const int key = k0 + c + 8 * i;
    const bool keep = !p.dropout || mask.keep(element_row(p, h, q0 + r) + key);
    scores[r * kScorePitch + c + 8 * i] = keep ? e : 0.0f;
  }
#pragma unroll
  for (int o = 1; o < 8; o *= 2) tile_sum += __shfl_xor_sync(0xffffffffu, tile_sum, o);
  row_sum = row_sum * shrink + tile_sum;
  row_max = new_max;
  return shrink;
}

}  // namespace general
}  // namespace blipft::attention
