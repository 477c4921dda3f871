// Attention with windows, rows of pictures that see each other, caps, relative positions, separately packed keys, or
// heads of 129 to 256, for f32 and bf16 in plain f32 arithmetic on CUDA cores; general.cu calls it if needs_extra(). It
// works like general.cu, with tiles of 32 queries and 32 keys, except that
//   - tiles outside of the window are skipped, forward and backward;
//   - a head's columns are processed in one or two chunks, so that tiles fit into 99 KB of shared memory: a block keeps
//     the chunks of its own side there and loads those of the other side through one tile, again for each product.
#include <cuda_runtime.h>

#include <type_traits>

#include "cuda/attention/general.cuh"
#include "cuda/device/cuda_check.h"

namespace blipft::attention {
namespace {

using namespace general;

/// Columns of a chunk, and floats of a chunk's tile.
template <int Groups>
constexpr int kWidth = Groups * 32;
template <int Groups>
constexpr int kTileFloats = kTile * kPitch<Groups>;

/// Loads a chunk of rows [row0, row0 + 32) of a head.
template <class T, int Groups>
__device__ void load_chunk(float* tile, const T* head, int64_t row_stride, int row0, int rows, int head_size, int chunk) {
  load_tile<T, Groups>(tile, head + chunk * kWidth<Groups>, row_stride, row0, rows, head_size - chunk * kWidth<Groups>);
}
/// Loads all chunks into consecutive tiles.
template <class T, int Groups, int Chunks>
__device__ void load_all(float* tiles, const T* head, int64_t row_stride, int row0, int rows, int head_size) {
#pragma unroll
  for (int chunk = 0; chunk < Chunks; ++chunk)
    load_chunk<T, Groups>(tiles + chunk * kTileFloats<Groups>, head, row_stride, row0, rows, head_size, chunk);
}
template <class T, int Groups, int Chunks>
__device__ void store_all(T* row, const float4 (&acc)[Chunks][Groups], float factor, int c, int head_size) {
#pragma unroll
  for (int chunk = 0; chunk < Chunks; ++chunk)
    store_row<T, Groups>(row + chunk * kWidth<Groups>, acc[chunk], factor, c, head_size - chunk * kWidth<Groups>);
}

/// Loads the other side's rows chunk by chunk into one tile and calls body(chunk) after each. At the start and at the
/// end of this function some threads may still read the tile.
template <class T, int Groups, int Chunks, class Body>
__device__ __forceinline__ void with_chunks(float* tile, const T* head, int64_t row_stride, int row0, int rows, int head_size,
                            const Body& body) {
#pragma unroll
  for (int chunk = 0; chunk < Chunks; ++chunk) {
    __syncthreads();
    load_chunk<T, Groups>(tile, head, row_stride, row0, rows, head_size, chunk);
    __syncthreads();
    body(chunk);
  }
}

__device__ __forceinline__ float capped(const ExtraParams& p, float product) {
  const float scaled = product * p.scale;
  return p.cap > 0 ? p.cap * tanhf(scaled / p.cap) : scaled;
}
/// Returns d(score) / d(scaled product).
__device__ __forceinline__ float cap_slope(const ExtraParams& p, float score) {
  return p.cap > 0 ? 1.0f - (score / p.cap) * (score / p.cap) : 1.0f;
}
template <class Args>
__device__ __forceinline__ bool sees(const Args& p, int b, int query, int key, int kv_length) {
  return key < kv_length && !(p.causal && key > p.last_key(b, query)) && (p.window == 0 || key > query - p.window);
}
/// Returns one past the last key that the queries of the tile from q0 on see.
template <class Args>
__device__ __forceinline__ int key_end_of(const Args& p, int b, int q0, int kv_length) {
  return p.causal ? min(kv_length, p.last_key(b, q0 + kTile - 1) + 1) : kv_length;
}
/// Returns the start of the tile that contains the first key that queries from `query` on see.
__device__ __forceinline__ int first_key(const ExtraParams& p, int query) {
  return p.window > 0 ? max(0, query + 1 - p.window) / kTile * kTile : 0;
}

template <class T, int Groups, int Chunks, class Args>
__global__ void __launch_bounds__(kThreads) forward_kernel(const Args p) {
  extern __shared__ float shared[];
  float *q = shared, *other = q + Chunks * kTileFloats<Groups>, *scores = other + kTileFloats<Groups>;  // [32][33]
  const int q0 = blockIdx.x * kTile, h = blockIdx.y, b = blockIdx.z;
  const int tid = threadIdx.x, ty = tid / 16, tx = tid % 16, r = tid / 8, c = tid % 8;
  const int queries = p.queries(b), kv_length = p.kv_length(b);
  if (q0 >= queries) return;
  const int key_end = key_end_of(p, b, q0, kv_length), kv_head = p.kv_head(h);
  const DropoutMask mask(p, b);
  const T* keys = key_head_of<const T>(p, p.k, b, kv_head);
  const T* values = key_head_of<const T>(p, p.v, b, kv_head);
  load_all<T, Groups, Chunks>(q, head_of<const T>(p, p.q, b, h), p.q.row_stride, q0, queries, p.head_size);
  float4 acc[Chunks][Groups] = {};
  float row_max = -INFINITY, row_sum = 0;
  for (int k0 = first_key(p, q0); k0 < key_end; k0 += kTile) {
    float s[2][2] = {};
    with_chunks<T, Groups, Chunks>(other, keys, p.k.row_stride, k0, kv_length, p.head_size, [&](int chunk) {
      add_dots<Groups>(s, q + chunk * kTileFloats<Groups>, other, ty, tx);
    });
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int query = q0 + ty + 16 * i, key = k0 + tx + 16 * j;
        scores[(ty + 16 * i) * kScorePitch + tx + 16 * j] =
            sees(p, b, query, key, kv_length) ? capped(p, s[i][j]) + p.relative_score(h, query, key) : -INFINITY;
      }
    __syncthreads();
    const float shrink = take_scores(scores, row_max, row_sum, p, mask, h, q0, k0, r, c);
#pragma unroll
    for (int chunk = 0; chunk < Chunks; ++chunk)
#pragma unroll
      for (int g = 0; g < Groups; ++g) {
        float4& a = acc[chunk][g];
        a.x *= shrink, a.y *= shrink, a.z *= shrink, a.w *= shrink;
      }
    with_chunks<T, Groups, Chunks>(other, values, p.v.row_stride, k0, kv_length, p.head_size, [&](int chunk) {
      multiply_tile<Groups>(acc[chunk], scores, other, r, c);
    });
  }
  const int query = q0 + r;
  if (query >= queries) return;
  store_all<T, Groups, Chunks>(head_of<T>(p, p.out, b, h) + query * p.out.row_stride, acc,
                               row_sum > 0 ? p.keep_scale / row_sum : 0.0f, c, p.head_size);
  if (c == 0)
    p.lse[(static_cast<int64_t>(b) * p.heads + h) * p.query_tokens + query] =
        row_sum > 0 ? row_max + logf(row_sum) : -INFINITY;
}

/// Like score_gradients() of general.cu, but with given products s = q k^T and dp = dO V^T; the gradients of the scores
/// are multiplied by `scale`.
template <bool Transposed, class Args>
__device__ void score_gradients(const Args& p, const DropoutMask& mask, int b, int h, int q0, int k0,
                                int queries, int kv_length, const float (&s)[2][2], const float (&dp)[2][2],
                                float scale, float* probabilities, float* gradients) {
  const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int query = q0 + ty + 16 * i;
    const bool in_range = query < queries;
    const int64_t row = (static_cast<int64_t>(b) * p.heads + h) * p.query_tokens + query;
    const float lse = in_range ? p.lse[row] : -INFINITY, delta = in_range ? p.delta[row] : 0.0f;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int key = k0 + tx + 16 * j;
      const bool visible = lse != -INFINITY && sees(p, b, query, key, kv_length);
      const float score = capped(p, s[i][j]);
      const float e = visible ? expf(score + p.relative_score(h, query, key) - lse) : 0.0f;
      const float factor = !p.dropout ? 1.0f : (mask.keep(element_row(p, h, query) + key) ? p.keep_scale : 0.0f);
      const int at = Transposed ? (tx + 16 * j) * kScorePitch + ty + 16 * i
                                : (ty + 16 * i) * kScorePitch + tx + 16 * j;
      if (probabilities) probabilities[at] = e * factor;
      gradients[at] = visible ? e * (dp[i][j] * factor - delta) * scale * cap_slope(p, score) : 0.0f;
    }
  }
}

template <class T, int Groups, int Chunks, class Args>
__global__ void __launch_bounds__(kThreads) dq_kernel(const Args p) {
  extern __shared__ float shared[];
  constexpr int kSize = kTileFloats<Groups>;
  float *q = shared, *dout = q + Chunks * kSize, *other = dout + Chunks * kSize, *gradients = other + kSize;
  const int q0 = blockIdx.x * kTile, h = blockIdx.y, b = blockIdx.z;
  const int ty = threadIdx.x / 16, tx = threadIdx.x % 16, r = threadIdx.x / 8, c = threadIdx.x % 8;
  const int queries = p.queries(b), kv_length = p.kv_length(b);
  if (q0 >= queries) return;
  const int key_end = key_end_of(p, b, q0, kv_length), kv_head = p.kv_head(h);
  const DropoutMask mask(p, b);
  const T* keys = key_head_of<const T>(p, p.k, b, kv_head);
  const T* values = key_head_of<const T>(p, p.v, b, kv_head);
  load_all<T, Groups, Chunks>(q, head_of<const T>(p, p.q, b, h), p.q.row_stride, q0, queries, p.head_size);
  load_all<T, Groups, Chunks>(dout, head_of<const T>(p, p.dout, b, h), p.dout.row_stride, q0, queries, p.head_size);
  float4 dq[Chunks][Groups] = {};
  for (int k0 = first_key(p, q0); k0 < key_end; k0 += kTile) {
    float s[2][2] = {}, dp[2][2] = {};
    with_chunks<T, Groups, Chunks>(other, keys, p.k.row_stride, k0, kv_length, p.head_size, [&](int chunk) {
      add_dots<Groups>(s, q + chunk * kSize, other, ty, tx);
    });
    with_chunks<T, Groups, Chunks>(other, values, p.v.row_stride, k0, kv_length, p.head_size, [&](int chunk) {
      add_dots<Groups>(dp, dout + chunk * kSize, other, ty, tx);
    });
    score_gradients<false>(p, mask, b, h, q0, k0, queries, kv_length, s, dp, p.scale, nullptr, gradients);
    with_chunks<T, Groups, Chunks>(other, keys, p.k.row_stride, k0, kv_length, p.head_size, [&](int chunk) {
      multiply_tile<Groups>(dq[chunk], gradients, other, r, c);
    });
  }
  if (q0 + r < queries)
    store_all<T, Groups, Chunks>(head_of<T>(p, p.dq, b, h) + (q0 + r) * p.dq.row_stride, dq, 1.0f, c, p.head_size);
}

template <class T, int Groups, int Chunks, class Args>
__global__ void __launch_bounds__(kThreads, 1) dkv_kernel(const Args p) {
  extern __shared__ float shared[];
  constexpr int kSize = kTileFloats<Groups>;
  float *k = shared, *v = k + Chunks * kSize, *other = v + Chunks * kSize;
  float *probabilities = other + kSize, *gradients = probabilities + kTile * kScorePitch;
  const int k0 = blockIdx.x * kTile, kv_head = blockIdx.y, b = blockIdx.z;
  const int ty = threadIdx.x / 16, tx = threadIdx.x % 16, r = threadIdx.x / 8, c = threadIdx.x % 8;
  const int existing = p.keys(b), queries = p.queries(b), kv_length = p.kv_length(b);
  if (k0 >= existing) return;
  const DropoutMask mask(p, b);
  load_all<T, Groups, Chunks>(k, key_head_of<const T>(p, p.k, b, kv_head), p.k.row_stride, k0, kv_length, p.head_size);
  load_all<T, Groups, Chunks>(v, key_head_of<const T>(p, p.v, b, kv_head), p.v.row_stride, k0, kv_length, p.head_size);
  float4 dk[Chunks][Groups] = {}, dv[Chunks][Groups] = {};
  // The last query that sees a key of this tile is at a distance of window - 1 from the tile's last key.
  const int query_end = p.window > 0 ? min(queries, k0 + kTile - 1 + p.window) : queries;
  for (int h = kv_head * p.heads_per_kv(); h < (kv_head + 1) * p.heads_per_kv(); ++h) {
    const T* q = head_of<const T>(p, p.q, b, h);
    const T* dout = head_of<const T>(p, p.dout, b, h);
    for (int q0 = p.causal ? p.first_query(b, k0, kTile) : 0; q0 < query_end; q0 += kTile) {
      float s[2][2] = {}, dp[2][2] = {};
      with_chunks<T, Groups, Chunks>(other, q, p.q.row_stride, q0, queries, p.head_size, [&](int chunk) {
        add_dots<Groups>(s, other, k + chunk * kSize, ty, tx);
      });
      with_chunks<T, Groups, Chunks>(other, dout, p.dout.row_stride, q0, queries, p.head_size, [&](int chunk) {
        add_dots<Groups>(dp, other, v + chunk * kSize, ty, tx);
      });
      score_gradients<true>(p, mask, b, h, q0, k0, queries, kv_length, s, dp, p.scale, probabilities, gradients);
      with_chunks<T, Groups, Chunks>(other, dout, p.dout.row_stride, q0, queries, p.head_size, [&](int chunk) {
        multiply_tile<Groups>(dv[chunk], probabilities, other, r, c);
      });
      with_chunks<T, Groups, Chunks>(other, q, p.q.row_stride, q0, queries, p.head_size, [&](int chunk) {
        multiply_tile<Groups>(dk[chunk], gradients, other, r, c);
      });
    }
  }
  if (k0 + r >= existing) return;
  store_all<T, Groups, Chunks>(key_head_of<T>(p, p.dk, b, kv_head) + (k0 + r) * p.dk.row_stride, dk, 1.0f, c, p.head_size);
  store_all<T, Groups, Chunks>(key_head_of<T>(p, p.dv, b, kv_head) + (k0 + r) * p.dv.row_stride, dv, 1.0f, c, p.head_size);
}

/// Adds the sum of each diagonal of a tile of gradients to sums[column]; the tile's first key is `offset` after its
/// first query. Offsets at and beyond either end share a column, to which one thread adds them. At the end some threads
/// may still read the tile.
__device__ void add_diagonals(const ExtraParams& p, const float* gradients, int offset, float* diagonals, float* sums) {
  constexpr int kDiagonals = 2 * kTile - 1;
  const int t = threadIdx.x, own = offset + t - (kTile - 1);  // key minus query
  if (t < kDiagonals) {
    float sum = 0;
    for (int r = 0; r < kTile; ++r) {
      const int column = r + t - (kTile - 1);
      if (column >= 0 && column < kTile) sum += gradients[r * kScorePitch + column];
    }
    if (own > -p.behind && own < p.ahead) sums[own + p.behind] += sum;
    diagonals[t] = sum;
  }
  __syncthreads();
  if (t > 0) return;
  for (int d = 0; d < kDiagonals; ++d) {
    const int at = offset + d - (kTile - 1);
    if (at <= -p.behind) sums[0] += diagonals[d];
    else if (at >= p.ahead) sums[p.behind + p.ahead] += diagonals[d];
  }
}

/// Block (split, head) processes the query tiles split, split + splits, ... of all samples.
template <class T, int Groups, int Chunks>
__global__ void __launch_bounds__(kThreads, 1) relative_kernel(const ExtraParams p, float* partials) {
  extern __shared__ float shared[];
  constexpr int kSize = kTileFloats<Groups>;
  float *q = shared, *dout = q + Chunks * kSize, *other = dout + Chunks * kSize, *gradients = other + kSize;
  float *diagonals = gradients + kTile * kScorePitch, *sums = diagonals + 2 * kTile;
  const int h = blockIdx.y, ty = threadIdx.x / 16, tx = threadIdx.x % 16, columns = p.behind + 1 + p.ahead;
  const int tiles = (p.query_tokens + kTile - 1) / kTile, kv_head = p.kv_head(h);
  for (int c = threadIdx.x; c < columns; c += kThreads) sums[c] = 0;
  for (int tile = blockIdx.x; tile < p.batch * tiles; tile += gridDim.x) {
    const int b = tile / tiles, q0 = tile % tiles * kTile, queries = p.queries(b), kv_length = p.kv_length(b);
    if (q0 >= queries) continue;
    const DropoutMask mask(p, b);
    const int key_end = key_end_of(p, b, q0, kv_length);
    const T* keys = key_head_of<const T>(p, p.k, b, kv_head);
    const T* values = key_head_of<const T>(p, p.v, b, kv_head);
    __syncthreads();
    load_all<T, Groups, Chunks>(q, head_of<const T>(p, p.q, b, h), p.q.row_stride, q0, queries, p.head_size);
    load_all<T, Groups, Chunks>(dout, head_of<const T>(p, p.dout, b, h), p.dout.row_stride, q0, queries, p.head_size);
    for (int k0 = first_key(p, q0); k0 < key_end; k0 += kTile) {
      float s[2][2] = {}, dp[2][2] = {};
      with_chunks<T, Groups, Chunks>(other, keys, p.k.row_stride, k0, kv_length, p.head_size, [&](int chunk) {
        add_dots<Groups>(s, q + chunk * kSize, other, ty, tx);
      });
      with_chunks<T, Groups, Chunks>(other, values, p.v.row_stride, k0, kv_length, p.head_size, [&](int chunk) {
        add_dots<Groups>(dp, dout + chunk * kSize, other, ty, tx);
      });
      score_gradients<false>(p, mask, b, h, q0, k0, queries, kv_length, s, dp, 1.0f, nullptr, gradients);
      __syncthreads();
      add_diagonals(p, gradients, k0 - q0, diagonals, sums);
    }
  }
  __syncthreads();
  float* const out = partials + (static_cast<int64_t>(blockIdx.x) * p.heads + h) * columns;
  for (int c = threadIdx.x; c < columns; c += kThreads) out[c] = sums[c];
}

template <class Args>
void launch(void (*kernel)(Args), const Args& p, int tokens, int heads, int tile_floats, int tiles, int score_tiles,
            cudaStream_t stream) {
  const int bytes = 4 * (tiles * tile_floats + score_tiles * kTile * kScorePitch);
  allow_shared_memory(kernel, bytes);
  const dim3 grid((tokens + kTile - 1) / kTile, heads, p.batch);
  kernel<<<grid, kThreads, bytes, stream>>>(p);
  BLIPFT_CUDA_LAUNCHED("general attention kernel, extra");
}

/// Calls run(groups of 32 columns of a chunk, chunks) with integral constants.
template <class Run>
void with_sizes(const ExtraParams& p, const Run& run) {
  constexpr std::integral_constant<int, 1> one;
  constexpr std::integral_constant<int, 2> two;
  if (p.head_size <= 64) run(std::integral_constant<int, 2>(), one);
  else if (p.head_size <= 128) run(std::integral_constant<int, 4>(), one);
  else if (p.head_size <= 192) run(std::integral_constant<int, 3>(), two);
  else run(std::integral_constant<int, 4>(), two);
}

template <class T, class Args>
void forward_any(const Args& p, cudaStream_t stream) {
  with_sizes(p, [&](auto groups, auto chunks) {
    constexpr int G = decltype(groups)::value, C = decltype(chunks)::value;
    launch(&forward_kernel<T, G, C, Args>, p, p.query_tokens, p.heads, kTileFloats<G>, C + 1, 1, stream);
  });
}

template <class T, class Args>
void backward_any(const Args& p, cudaStream_t stream) {
  with_sizes(p, [&](auto groups, auto chunks) {
    constexpr int G = decltype(groups)::value, C = decltype(chunks)::value;
    launch(&dkv_kernel<T, G, C, Args>, p, p.kv_tokens, p.kv_heads, kTileFloats<G>, 2 * C + 1, 2, stream);
    launch(&dq_kernel<T, G, C, Args>, p, p.query_tokens, p.heads, kTileFloats<G>, 2 * C + 1, 1, stream);
  });
}

template <class T>
void relative_any(const ExtraParams& p, float* partials, int splits, cudaStream_t stream) {
  with_sizes(p, [&](auto groups, auto chunks) {
    constexpr int G = decltype(groups)::value, C = decltype(chunks)::value;
    const auto kernel = &relative_kernel<T, G, C>;
    const int floats = (2 * C + 1) * kTileFloats<G> + kTile * kScorePitch + 2 * kTile + p.behind + 1 + p.ahead;
    allow_shared_memory(kernel, 4 * floats);
    kernel<<<dim3(splits, p.heads), kThreads, 4 * floats, stream>>>(p, partials);
    BLIPFT_CUDA_LAUNCHED("relative positions kernel");
  });
}

/// Calls run(params) with the type that the masks need.
template <class Run>
void with_masks(const PackedParams& packed, const Run& run) {
  const ExtraParams p{packed};
  packed.last_keys ? run(LastKeyParams{p}) : run(p);
}

}  // namespace

void extra_forward(const PackedParams& packed, bool is_bf16, cudaStream_t stream) {
  with_masks(packed, [&](const auto& p) {
    is_bf16 ? forward_any<__nv_bfloat16>(p, stream) : forward_any<float>(p, stream);
  });
}

void extra_backward(const PackedParams& packed, bool is_bf16, cudaStream_t stream) {
  with_masks(packed, [&](const auto& p) {
    is_bf16 ? backward_any<__nv_bfloat16>(p, stream) : backward_any<float>(p, stream);
  });
}

void relative_gradient(const Params& params, bool is_bf16, float* partials, int splits, cudaStream_t stream) {
  const ExtraParams p{PackedParams{params}};
  is_bf16 ? relative_any<__nv_bfloat16>(p, partials, splits, stream) : relative_any<float>(p, partials, splits, stream);
}

}  // namespace blipft::attention
