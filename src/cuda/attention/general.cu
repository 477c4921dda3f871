// Attention for f32, and for bf16 shapes that the tensor-core kernels do not take (head sizes or strides that are not
// multiples of 4 elements, heads of more than 128, caps of the scores). Plain f32 arithmetic on CUDA cores.
//
// A block of 256 threads holds 32 queries (forward, dq) or 32 keys (dk, dv) and walks over the other side in tiles of
// 32. Tiles are f32 in shared memory, head size padded with zeros to a multiple of 32, pitch + 4 so that 16-byte reads
// of 8 neighbouring rows touch all banks. Score tiles are 2 x 2 per thread; products with V, K, Q, dO give each thread
// one row and every 8th group of 4 columns.
// Of packed samples (PackedParams), blocks whose rows their sample does not have leave at once. A block of keys takes
// the queries of all heads that read them.
#include <cuda_runtime.h>

#include <type_traits>

#include "cuda/attention/params.cuh"
#include "cuda/device/cuda_check.h"

namespace blipft::attention {
namespace {

constexpr int kTile = 32, kThreads = 256, kScorePitch = 33;

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ void from_float(float& y, float x) { y = x; }
__device__ __forceinline__ void from_float(__nv_bfloat16& y, float x) { y = __float2bfloat16_rn(x); }

template <int Groups>
constexpr int kPitch = Groups * 32 + 4;

/// tile [32][Groups * 32] = rows [row0, row0 + 32) of a head, zeros outside of `rows` and head_size
template <class T, int Groups>
__device__ void load_tile(float* tile, const T* head, int64_t row_stride, int row0, int rows, int head_size) {
  for (int i = threadIdx.x; i < kTile * Groups * 32; i += kThreads) {
    const int r = i / (Groups * 32), c = i % (Groups * 32);
    const bool ok = row0 + r < rows && c < head_size;
    tile[r * kPitch<Groups> + c] = ok ? to_float(head[(row0 + r) * row_stride + c]) : 0.0f;
  }
}

/// score[a][b] = a-row (ty + 16 a) . b-row (tx + 16 b)
template <int Groups>
__device__ void dot_tile(float (&score)[2][2], const float* a, const float* b, int ty, int tx) {
  score[0][0] = score[0][1] = score[1][0] = score[1][1] = 0;
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

/// acc (row r, columns 4 c + 32 g) += weights row r [32] times tile [32][Groups * 32]
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

/// The score of a product; with a cap beside it, d(score) / d(scaled product).
__device__ __forceinline__ float capped(const PackedParams& p, float product) {
  const float scaled = product * p.scale;
  return p.cap > 0 ? p.cap * tanhf(scaled / p.cap) : scaled;
}
__device__ __forceinline__ float cap_slope(const PackedParams& p, float score) {
  return p.cap > 0 ? 1.0f - (score / p.cap) * (score / p.cap) : 1.0f;
}

/// Extra: with a window, a cap, or both, or with large heads; in the others nothing of that costs anything, or moves a
/// bit.
template <bool Extra>
__device__ __forceinline__ bool in_window(const PackedParams& p, int query, int key) {
  return !Extra || p.window == 0 || key > query - p.window;
}
/// The first tile of keys that queries from `query` on see.
template <bool Extra>
__device__ __forceinline__ int first_key(const PackedParams& p, int query) {
  return Extra && p.window > 0 ? max(0, query + 1 - p.window) / kTile * kTile : 0;
}

template <class T, int Groups, bool Extra>
__global__ void __launch_bounds__(kThreads) forward_kernel(const PackedParams p) {
  extern __shared__ float shared[];
  float* q = shared;
  float* k = q + kTile * kPitch<Groups>;
  float* v = k + kTile * kPitch<Groups>;
  float* scores = v + kTile * kPitch<Groups>;  // [32][33]
  const int q0 = blockIdx.x * kTile, h = blockIdx.y, b = blockIdx.z;
  const int tid = threadIdx.x, ty = tid / 16, tx = tid % 16, r = tid / 8, c = tid % 8;
  const int queries = p.queries(b), kv_length = p.kv_length(b);
  if (q0 >= queries) return;
  const int key_end = p.causal ? min(kv_length, q0 + kTile) : kv_length, kv_head = p.kv_head(h);
  const DropoutMask mask(p, b);
  load_tile<T, Groups>(q, head_of<const T>(p, p.q, b, h), p.q.row_stride, q0, queries, p.head_size);
  float4 acc[Groups] = {};
  float row_max = -INFINITY, row_sum = 0;
  for (int k0 = first_key<Extra>(p, q0); k0 < key_end; k0 += kTile) {
    __syncthreads();
    load_tile<T, Groups>(k, head_of<const T>(p, p.k, b, kv_head), p.k.row_stride, k0, kv_length, p.head_size);
    load_tile<T, Groups>(v, head_of<const T>(p, p.v, b, kv_head), p.v.row_stride, k0, kv_length, p.head_size);
    __syncthreads();
    float s[2][2];
    dot_tile<Groups>(s, q, k, ty, tx);
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int query = q0 + ty + 16 * i, key = k0 + tx + 16 * j;
        const bool visible = key < kv_length && !(p.causal && key > query) && in_window<Extra>(p, query, key);
        const float score = Extra ? capped(p, s[i][j]) : s[i][j] * p.scale;
        scores[(ty + 16 * i) * kScorePitch + tx + 16 * j] = visible ? score : -INFINITY;
      }
    __syncthreads();
    // The 8 threads of a row turn its 32 scores into probabilities, relative to the maximum so far.
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
#pragma unroll
    for (int g = 0; g < Groups; ++g) {
      acc[g].x *= shrink; acc[g].y *= shrink; acc[g].z *= shrink; acc[g].w *= shrink;
    }
    __syncwarp();  // the threads of a row are in one warp
    multiply_tile<Groups>(acc, scores, v, r, c);
  }
  const int query = q0 + r;
  if (query >= queries) return;
  T* row = head_of<T>(p, p.out, b, h) + query * p.out.row_stride;
  store_row<T, Groups>(row, acc, row_sum > 0 ? p.keep_scale / row_sum : 0.0f, c, p.head_size);
  if (c == 0)
    p.lse[(static_cast<int64_t>(b) * p.heads + h) * p.query_tokens + query] =
        row_sum > 0 ? row_max + logf(row_sum) : -INFINITY;
}

/// One warp a row: delta = sum of dout * out.
template <class T>
__global__ void __launch_bounds__(kThreads) delta_kernel(const PackedParams p) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (row >= static_cast<int64_t>(p.batch) * p.heads * p.query_tokens) return;
  const int h = static_cast<int>(row % p.heads);  // heads innermost: neighbouring warps read neighbouring memory
  const int64_t token = row / p.heads;
  const int i = static_cast<int>(token % p.query_tokens), b = static_cast<int>(token / p.query_tokens);
  if (i >= p.queries(b)) return;
  const T* out = head_of<const T>(p, p.out, b, h) + i * p.out.row_stride;
  const T* dout = head_of<const T>(p, p.dout, b, h) + i * p.dout.row_stride;
  float sum = 0;
  for (int d = lane; d < p.head_size; d += 32) sum = fmaf(to_float(out[d]), to_float(dout[d]), sum);
#pragma unroll
  for (int o = 16; o; o /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, o);
  if (lane == 0) p.delta[(static_cast<int64_t>(b) * p.heads + h) * p.query_tokens + i] = sum;
}

/// The probabilities and score gradients of a 32 x 32 tile; element (i, j) of both goes to [i][j], or [j][i] when
/// Transposed. probabilities carry dropout; a query without keys has lse = -inf and gives zeros.
template <int Groups, bool Transposed, bool Extra>
__device__ void score_gradients(const PackedParams& p, const DropoutMask& mask, int b, int h, int q0, int k0,
                                int queries, int kv_length, const float* q, const float* k, const float* v,
                                const float* dout, float* probabilities, float* gradients) {
  const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
  float s[2][2], dp[2][2];
  dot_tile<Groups>(s, q, k, ty, tx);
  dot_tile<Groups>(dp, dout, v, ty, tx);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int query = q0 + ty + 16 * i;
    const bool in_range = query < queries;
    const int64_t row = (static_cast<int64_t>(b) * p.heads + h) * p.query_tokens + query;
    const float lse = in_range ? p.lse[row] : -INFINITY, delta = in_range ? p.delta[row] : 0.0f;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int key = k0 + tx + 16 * j;
      const bool visible =
          lse != -INFINITY && key < kv_length && !(p.causal && key > query) && in_window<Extra>(p, query, key);
      float e, slope = 1;
      if constexpr (Extra) {
        const float score = capped(p, s[i][j]);
        e = visible ? expf(score - lse) : 0.0f;
        slope = cap_slope(p, score);
      } else {
        e = visible ? expf(s[i][j] * p.scale - lse) : 0.0f;
      }
      const float factor = !p.dropout ? 1.0f : (mask.keep(element_row(p, h, query) + key) ? p.keep_scale : 0.0f);
      const int at = Transposed ? (tx + 16 * j) * kScorePitch + ty + 16 * i
                                : (ty + 16 * i) * kScorePitch + tx + 16 * j;
      if (probabilities) probabilities[at] = e * factor;
      gradients[at] = visible ? e * (dp[i][j] * factor - delta) * p.scale : 0.0f;
      if constexpr (Extra) gradients[at] *= slope;
    }
  }
}

/// Grouped: heads of queries share keys. Its division would cost the others a block a multiprocessor, in registers.
template <class T, int Groups, bool Grouped, bool Extra>
__global__ void __launch_bounds__(kThreads) dq_kernel(const PackedParams p) {
  extern __shared__ float shared[];
  constexpr int kSize = kTile * kPitch<Groups>;
  float *q = shared, *dout = q + kSize, *k = dout + kSize, *v = k + kSize, *gradients = v + kSize;
  const int q0 = blockIdx.x * kTile, h = blockIdx.y, b = blockIdx.z;
  const int r = threadIdx.x / 8, c = threadIdx.x % 8;
  const int queries = p.queries(b), kv_length = p.kv_length(b);
  if (q0 >= queries) return;
  const int key_end = p.causal ? min(kv_length, q0 + kTile) : kv_length, kv_head = Grouped ? p.kv_head(h) : h;
  const DropoutMask mask(p, b);
  load_tile<T, Groups>(q, head_of<const T>(p, p.q, b, h), p.q.row_stride, q0, queries, p.head_size);
  load_tile<T, Groups>(dout, head_of<const T>(p, p.dout, b, h), p.dout.row_stride, q0, queries, p.head_size);
  float4 dq[Groups] = {};
  for (int k0 = first_key<Extra>(p, q0); k0 < key_end; k0 += kTile) {
    __syncthreads();
    load_tile<T, Groups>(k, head_of<const T>(p, p.k, b, kv_head), p.k.row_stride, k0, kv_length, p.head_size);
    load_tile<T, Groups>(v, head_of<const T>(p, p.v, b, kv_head), p.v.row_stride, k0, kv_length, p.head_size);
    __syncthreads();
    score_gradients<Groups, false, Extra>(p, mask, b, h, q0, k0, queries, kv_length, q, k, v, dout, nullptr, gradients);
    __syncthreads();
    multiply_tile<Groups>(dq, gradients, k, r, c);
  }
  if (q0 + r < queries)
    store_row<T, Groups>(head_of<T>(p, p.dq, b, h) + (q0 + r) * p.dq.row_stride, dq, 1.0f, c, p.head_size);
}

template <class T, int Groups, bool Extra>
__global__ void __launch_bounds__(kThreads, 1) dkv_kernel(const PackedParams p) {
  extern __shared__ float shared[];
  constexpr int kSize = kTile * kPitch<Groups>;
  float *q = shared, *dout = q + kSize, *k = dout + kSize, *v = k + kSize;
  float *probabilities = v + kSize, *gradients = probabilities + kTile * kScorePitch;
  const int k0 = blockIdx.x * kTile, kv_head = blockIdx.y, b = blockIdx.z;
  const int r = threadIdx.x / 8, c = threadIdx.x % 8;
  const int existing = p.keys(b), queries = p.queries(b), kv_length = p.kv_length(b);
  if (k0 >= existing) return;
  const DropoutMask mask(p, b);
  load_tile<T, Groups>(k, head_of<const T>(p, p.k, b, kv_head), p.k.row_stride, k0, kv_length, p.head_size);
  load_tile<T, Groups>(v, head_of<const T>(p, p.v, b, kv_head), p.v.row_stride, k0, kv_length, p.head_size);
  float4 dk[Groups] = {}, dv[Groups] = {};
  const int query_end = Extra && p.window > 0 ? min(queries, k0 + kTile - 1 + p.window) : queries;
  for (int h = kv_head * p.heads_per_kv(); h < (kv_head + 1) * p.heads_per_kv(); ++h)
    for (int q0 = p.causal ? k0 : 0; q0 < query_end; q0 += kTile) {
      __syncthreads();
      load_tile<T, Groups>(q, head_of<const T>(p, p.q, b, h), p.q.row_stride, q0, queries, p.head_size);
      load_tile<T, Groups>(dout, head_of<const T>(p, p.dout, b, h), p.dout.row_stride, q0, queries, p.head_size);
      __syncthreads();
      score_gradients<Groups, true, Extra>(p, mask, b, h, q0, k0, queries, kv_length, q, k, v, dout, probabilities,
                                           gradients);
      __syncthreads();
      multiply_tile<Groups>(dv, probabilities, dout, r, c);
      multiply_tile<Groups>(dk, gradients, q, r, c);
    }
  if (k0 + r < existing) {
    store_row<T, Groups>(head_of<T>(p, p.dk, b, kv_head) + (k0 + r) * p.dk.row_stride, dk, 1.0f, c, p.head_size);
    store_row<T, Groups>(head_of<T>(p, p.dv, b, kv_head) + (k0 + r) * p.dv.row_stride, dv, 1.0f, c, p.head_size);
  }
}

template <class Kernel>
void launch(Kernel* kernel, const PackedParams& p, int tokens, int heads, int tiles, int score_tiles, int groups,
            cudaStream_t stream) {
  const int bytes = 4 * (tiles * kTile * (groups * 32 + 4) + score_tiles * kTile * kScorePitch);
  BLIPFT_CHECK(bytes <= p.shared_bytes, "attention with heads of size ", p.head_size, " needs ", bytes,
               " bytes of shared memory a block, this GPU has ", p.shared_bytes);
  allow_shared_memory(kernel, bytes);
  const dim3 grid((tokens + kTile - 1) / kTile, heads, p.batch);
  kernel<<<grid, kThreads, bytes, stream>>>(p);
  BLIPFT_CUDA_LAUNCHED("general attention kernel");
}

template <class T, int Groups, bool Extra>
void forward(const PackedParams& p, cudaStream_t stream) {
  launch(&forward_kernel<T, Groups, Extra>, p, p.query_tokens, p.heads, 3, 1, Groups, stream);
}

template <class T, int Groups, bool Extra>
void backward(const PackedParams& p, cudaStream_t stream) {
  launch(&dkv_kernel<T, Groups, Extra>, p, p.kv_tokens, p.kv_heads, 4, 2, Groups, stream);
  auto dq = &dq_kernel<T, Groups, true, Extra>;
  if constexpr (!Extra)
    if (p.group == 1) dq = &dq_kernel<T, Groups, false, false>;
  launch(dq, p, p.query_tokens, p.heads, 4, 1, Groups, stream);
}

/// Calls run(groups of 32 columns of a head, whether with Extra), both integral constants.
template <class Run>
void with_sizes(const PackedParams& p, const Run& run) {
  const int groups = (p.head_size + 31) / 32;
  constexpr std::true_type extra;
  constexpr std::false_type plain;
  if (p.window > 0 || p.cap > 0 || groups > 4) {
    if (groups <= 2) run(std::integral_constant<int, 2>(), extra);
    else if (groups <= 4) run(std::integral_constant<int, 4>(), extra);
    else if (groups <= 6) run(std::integral_constant<int, 6>(), extra);
    else run(std::integral_constant<int, 8>(), extra);
    return;
  }
  switch (groups) {
    case 1: return run(std::integral_constant<int, 1>(), plain);
    case 2: return run(std::integral_constant<int, 2>(), plain);
    case 3: return run(std::integral_constant<int, 3>(), plain);
    default: return run(std::integral_constant<int, 4>(), plain);
  }
}

template <class T>
void forward_any(const PackedParams& p, cudaStream_t stream) {
  with_sizes(p, [&](auto groups, auto extra) {
    forward<T, decltype(groups)::value, decltype(extra)::value>(p, stream);
  });
}

template <class T>
void backward_any(const PackedParams& p, cudaStream_t stream) {
  with_sizes(p, [&](auto groups, auto extra) {
    backward<T, decltype(groups)::value, decltype(extra)::value>(p, stream);
  });
}

}  // namespace

void general_forward(const Params& params, bool is_bf16, cudaStream_t stream) {
  const PackedParams p{params};
  is_bf16 ? forward_any<__nv_bfloat16>(p, stream) : forward_any<float>(p, stream);
}

void general_backward(const Params& params, bool is_bf16, cudaStream_t stream) {
  const PackedParams p{params};
  row_deltas(p, is_bf16, stream);
  is_bf16 ? backward_any<__nv_bfloat16>(p, stream) : backward_any<float>(p, stream);
}

void row_deltas(const Params& params, bool is_bf16, cudaStream_t stream) {
  const PackedParams p{params};
  const int64_t rows = static_cast<int64_t>(p.batch) * p.heads * p.query_tokens;
  const unsigned blocks = static_cast<unsigned>((rows + kThreads / 32 - 1) / (kThreads / 32));
  if (is_bf16) delta_kernel<__nv_bfloat16><<<blocks, kThreads, 0, stream>>>(p);
  else delta_kernel<float><<<blocks, kThreads, 0, stream>>>(p);
  BLIPFT_CUDA_LAUNCHED("general attention kernel");
}

}  // namespace blipft::attention
