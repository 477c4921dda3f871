// Attention for f32, and for bf16 shapes that the tensor-core kernels do not support (head sizes or strides that are
// not multiples of 4 elements), in plain f32 arithmetic on CUDA cores. Windows, caps and heads of more than 128 are in
// general_extra.cu.
//
// A block of 256 threads owns 32 queries (forward, dq) or 32 keys (dk, dv) and iterates over the other side in tiles of
// 32. Tiles are f32 in shared memory; the head size is padded with zeros to a multiple of 32 and the pitch is 4 more,
// so that 16-byte reads of 8 adjacent rows access all banks. Each thread computes 2 x 2 scores of a tile; in products
// with V, K, Q, dO it computes one row and every 8th group of 4 columns.
// For packed samples (PackedParams), blocks beyond the rows of their sample exit at once. A block of keys processes the
// queries of all heads that use them.
#include <cuda_runtime.h>

#include "cuda/attention/general.cuh"
#include "cuda/device/cuda_check.h"

namespace blipft::attention {
namespace {

using namespace general;

template <class T, int Groups>
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
  for (int k0 = 0; k0 < key_end; k0 += kTile) {
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
        const bool visible = key < kv_length && !(p.causal && key > query);
        scores[(ty + 16 * i) * kScorePitch + tx + 16 * j] = visible ? s[i][j] * p.scale : -INFINITY;
      }
    __syncthreads();
    const float shrink = take_scores(scores, row_max, row_sum, p, mask, h, q0, k0, r, c);
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

/// Computes delta = sum of dout * out with one warp per row.
template <class T>
__global__ void __launch_bounds__(kThreads) delta_kernel(const PackedParams p) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (row >= static_cast<int64_t>(p.batch) * p.heads * p.query_tokens) return;
  const int h = static_cast<int>(row % p.heads);  // heads innermost: adjacent warps read adjacent memory
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

/// Computes the probabilities and score gradients of a 32 x 32 tile; element (i, j) of both is stored at [i][j], or
/// [j][i] if Transposed. The probabilities include dropout; a query without keys has lse = -inf and gives zeros.
template <int Groups, bool Transposed>
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
      const bool visible = lse != -INFINITY && key < kv_length && !(p.causal && key > query);
      const float e = visible ? expf(s[i][j] * p.scale - lse) : 0.0f;
      const float factor = !p.dropout ? 1.0f : (mask.keep(element_row(p, h, query) + key) ? p.keep_scale : 0.0f);
      const int at = Transposed ? (tx + 16 * j) * kScorePitch + ty + 16 * i
                                : (ty + 16 * i) * kScorePitch + tx + 16 * j;
      if (probabilities) probabilities[at] = e * factor;
      gradients[at] = visible ? e * (dp[i][j] * factor - delta) * p.scale : 0.0f;
    }
  }
}

/// Grouped: query heads share keys. Its division needs registers that would cost the other case a block per
/// multiprocessor.
template <class T, int Groups, bool Grouped>
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
  for (int k0 = 0; k0 < key_end; k0 += kTile) {
    __syncthreads();
    load_tile<T, Groups>(k, head_of<const T>(p, p.k, b, kv_head), p.k.row_stride, k0, kv_length, p.head_size);
    load_tile<T, Groups>(v, head_of<const T>(p, p.v, b, kv_head), p.v.row_stride, k0, kv_length, p.head_size);
    __syncthreads();
    score_gradients<Groups, false>(p, mask, b, h, q0, k0, queries, kv_length, q, k, v, dout, nullptr, gradients);
    __syncthreads();
    multiply_tile<Groups>(dq, gradients, k, r, c);
  }
  if (q0 + r < queries)
    store_row<T, Groups>(head_of<T>(p, p.dq, b, h) + (q0 + r) * p.dq.row_stride, dq, 1.0f, c, p.head_size);
}

template <class T, int Groups>
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
  for (int h = kv_head * p.heads_per_kv(); h < (kv_head + 1) * p.heads_per_kv(); ++h)
    for (int q0 = p.causal ? k0 : 0; q0 < queries; q0 += kTile) {
      __syncthreads();
      load_tile<T, Groups>(q, head_of<const T>(p, p.q, b, h), p.q.row_stride, q0, queries, p.head_size);
      load_tile<T, Groups>(dout, head_of<const T>(p, p.dout, b, h), p.dout.row_stride, q0, queries, p.head_size);
      __syncthreads();
      score_gradients<Groups, true>(p, mask, b, h, q0, k0, queries, kv_length, q, k, v, dout, probabilities, gradients);
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
  allow_shared_memory(kernel, bytes);
  const dim3 grid((tokens + kTile - 1) / kTile, heads, p.batch);
  kernel<<<grid, kThreads, bytes, stream>>>(p);
  BLIPFT_CUDA_LAUNCHED("general attention kernel");
}

template <class T, int Groups>
void forward(const PackedParams& p, cudaStream_t stream) {
  launch(&forward_kernel<T, Groups>, p, p.query_tokens, p.heads, 3, 1, Groups, stream);
}

template <class T, int Groups>
void backward(const PackedParams& p, cudaStream_t stream) {
  launch(&dkv_kernel<T, Groups>, p, p.kv_tokens, p.kv_heads, 4, 2, Groups, stream);
  const auto dq = p.group > 1 ? &dq_kernel<T, Groups, true> : &dq_kernel<T, Groups, false>;
  launch(dq, p, p.query_tokens, p.heads, 4, 1, Groups, stream);
}

template <class T>
void forward_any(const PackedParams& p, cudaStream_t stream) {
  switch ((p.head_size + 31) / 32) {
    case 1: return forward<T, 1>(p, stream);
    case 2: return forward<T, 2>(p, stream);
    case 3: return forward<T, 3>(p, stream);
    default: return forward<T, 4>(p, stream);
  }
}

template <class T>
void backward_any(const PackedParams& p, cudaStream_t stream) {
  switch ((p.head_size + 31) / 32) {
    case 1: return backward<T, 1>(p, stream);
    case 2: return backward<T, 2>(p, stream);
    case 3: return backward<T, 3>(p, stream);
    default: return backward<T, 4>(p, stream);
  }
}

}  // namespace

void general_forward(const Params& params, bool is_bf16, cudaStream_t stream) {
  const PackedParams p{params};
  if (needs_extra(p)) return extra_forward(p, is_bf16, stream);
  is_bf16 ? forward_any<__nv_bfloat16>(p, stream) : forward_any<float>(p, stream);
}

void general_backward(const Params& params, bool is_bf16, cudaStream_t stream) {
  const PackedParams p{params};
  row_deltas(p, is_bf16, stream);
  if (needs_extra(p)) return extra_backward(p, is_bf16, stream);
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
