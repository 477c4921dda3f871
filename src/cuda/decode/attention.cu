// Attention of one query per slot to its cache positions. It is bound by reading each key and value once.
//
// The positions of a text are split into equal shares for up to `splits` blocks (Dao et al., "Flash-Decoding", 2023).
// The grid depends only on the shapes, and the shares on the length in device memory, so a captured graph works for all
// lengths; blocks without a share exit at once. The result of a share depends only on its own text. In a block, each
// warp processes several keys at a time: L lanes per key with 16 bytes each, for up to G query heads that share a key
// head (grouped heads read it once). Each warp has its own running softmax (Milakov & Gimelshein 2018). The results of
// lanes, of warps and then of shares are merged in a fixed order; the last block of a text to finish merges the shares.
#include <cfloat>
#include <cmath>

#include "blipft/decode_ops.h"
#include "cuda/cuda_ops.h"
#include "cuda/decode/attention.cuh"
#include "cuda/device/overlap.cuh"
#include "ops/ops_check.h"

namespace blipft {
namespace {

constexpr int kWarps = 4;           // of a block
constexpr int kLoads = 4;           // keys that each group of L lanes loads before it computes
constexpr int kMinShare = 64;     // minimum number of positions of a block, if there are as many
constexpr int64_t kMaxShare = 1024;
constexpr int64_t kMaxSplits = 64;
constexpr int kMaxHeadSize = 256;

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// The positions of a slot, split into `used` shares of `each` positions.
struct Shares {
  int first, end, each, used;

  __device__ __forceinline__ Shares(const DecodeArgs& args, int64_t slot) {
    end = args.lengths[slot];
    first = args.first_position(end);
    each = max(kMinShare, (end - first + args.splits - 1) / args.splits);
    used = (end - first + each - 1) / each;
  }
};

/// The running softmax of G heads with E columns per lane: maximum (in units of log2), sum, and weighted values.
template <int G, int E>
struct Running {
  float max[G], sum[G], values[G][E];

  __device__ __forceinline__ Running() {
#pragma unroll
    for (int g = 0; g < G; ++g) {
      max[g] = -FLT_MAX, sum[g] = 0;
#pragma unroll
      for (int e = 0; e < E; ++e) values[g][e] = 0;
    }
  }
  /// Adds scores (in units of log2), which become weights; the sum and the values are rescaled to the new maximum.
  __device__ __forceinline__ void take(float (&scores)[kLoads][G]) {
#pragma unroll
    for (int g = 0; g < G; ++g) {
      float larger = max[g];
#pragma unroll
      for (int u = 0; u < kLoads; ++u) larger = fmaxf(larger, scores[u][g]);
      const float factor = exp2_fast(max[g] - larger);
      max[g] = larger;
      sum[g] *= factor;
#pragma unroll
      for (int e = 0; e < E; ++e) values[g][e] *= factor;
#pragma unroll
      for (int u = 0; u < kLoads; ++u) sum[g] += scores[u][g] = exp2_fast(scores[u][g] - larger);
    }
  }
  /// Adds the weighted values of one key.
  template <class Loaded>
  __device__ __forceinline__ void add(const float (&weights)[G], const Loaded& loaded) {
    float value[E];
    loaded.unpacked(value);
#pragma unroll
    for (int g = 0; g < G; ++g)
#pragma unroll
      for (int e = 0; e < E; ++e) values[g][e] = fmaf(weights[g], value[e], values[g][e]);
  }
  /// Merges the state of lane `lane ^ offset`.
  __device__ __forceinline__ void merge(int offset) {
#pragma unroll
    for (int g = 0; g < G; ++g) {
      const float other = __shfl_xor_sync(0xffffffffu, max[g], offset), larger = fmaxf(max[g], other);
      const float own_factor = exp2_fast(max[g] - larger), factor = exp2_fast(other - larger);
      max[g] = larger;
      sum[g] = sum[g] * own_factor + __shfl_xor_sync(0xffffffffu, sum[g], offset) * factor;
#pragma unroll
      for (int e = 0; e < E; ++e)
        values[g][e] = values[g][e] * own_factor + __shfl_xor_sync(0xffffffffu, values[g][e], offset) * factor;
    }
  }
};

/// The columns of a head that a lane has: P packs of N elements, L packs apart.
template <int N, int L, int P>
struct Columns {
  static constexpr int E = P * N;
  int lane;                          ///< lane index in its group of L
  __device__ __forceinline__ int pack(int p) const { return (p * L + lane) * N; }
  __device__ __forceinline__ int column(int e) const { return pack(e / N) + e % N; }
};

template <class T, int N, int P>
struct Loaded {
  Pack<T, N> packs[P];

  template <int L>
  __device__ __forceinline__ void load(const T* head, const Columns<N, L, P>& columns, int d, bool wanted) {
#pragma unroll
    for (int p = 0; p < P; ++p) {
      if (wanted && columns.pack(p) < d) packs[p] = load_pack<N>(head + columns.pack(p));
      else packs[p] = Pack<T, N>{};
    }
  }
  __device__ __forceinline__ void unpacked(float (&x)[P * N]) const {
#pragma unroll
    for (int p = 0; p < P; ++p) {
      float part[N];
      unpack(packs[p], part);
#pragma unroll
      for (int i = 0; i < N; ++i) x[p * N + i] = part[i];
    }
  }
};

/// Loads a lane's columns of G query heads, multiplied by the scale of the scores.
template <class T, int G, int N, int L, int P>
__device__ __forceinline__ void load_queries(const DecodeArgs& args, int64_t slot, int first_head, int heads,
                                             const Columns<N, L, P>& columns, float (&q)[G][P * N]) {
  const float scale = args.cap > 0 ? args.scale : args.scale * kLog2E;
  const T* const row = static_cast<const T*>(args.q) + slot * args.q_stride + first_head * args.d;
#pragma unroll
  for (int g = 0; g < G; ++g)
#pragma unroll
    for (int e = 0; e < P * N; ++e)
      q[g][e] = g < heads && columns.column(e) < args.d ? scale * to_float(row[g * args.d + columns.column(e)]) : 0;
}

/// Returns the score, in units of log2, of a key that is distributed over L lanes.
template <int L, int E>
__device__ __forceinline__ float score_of_key(const float (&q)[E], const float (&key)[E], float cap) {
  float score = 0;
#pragma unroll
  for (int e = 0; e < E; ++e) score = fmaf(q[e], key[e], score);
#pragma unroll
  for (int offset = L / 2; offset > 0; offset /= 2) score += __shfl_xor_sync(0xffffffffu, score, offset);
  return cap > 0 ? kLog2E * cap * tanhf(score / cap) : score;
}

/// Adds the shares of `heads` heads in order; other blocks may have written them.
template <class T>
__device__ __forceinline__ void merge_shares(const DecodeArgs& args, int64_t first, int heads, int used) {
  const int d = args.d;
  for (int i = threadIdx.x; i < heads * d; i += static_cast<int>(blockDim.x)) {
    const int64_t head = first + i / d;
    const int c = i % d;
    const float* const partials = args.partials + head * args.splits * (d + 2);
    float max = -FLT_MAX, sum = 0, value = 0;
    for (int p = 0; p < used; ++p) max = fmaxf(max, __ldcg(partials + p * (d + 2)));
    for (int p = 0; p < used; ++p) {
      const float* const partial = partials + p * (d + 2);
      const float factor = exp2_fast(__ldcg(partial) - max);
      sum = fmaf(__ldcg(partial + 1), factor, sum);
      value = fmaf(__ldcg(partial + 2 + c), factor, value);
    }
    static_cast<T*>(args.out)[head * d + c] = from_float<T>(value / sum);
  }
}

/// Merges the block's warps. Writes the result, or, if other blocks have shares too, this block's partial result.
template <class T, int G, int L, int E, class Column>
__device__ __forceinline__ void finish(const DecodeArgs& args, const Running<G, E>& running, const Column& columns,
                                       int64_t slot, int first_head, int heads, int split, int used) {
  extern __shared__ float shared[];  // [kWarps, G, d], then maxima and sums [2, kWarps, G]
  const int d = args.d, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float* const maxima = shared + kWarps * G * d;
  float* const sums = maxima + kWarps * G;
  const bool alone = used == 1;
#pragma unroll
  for (int g = 0; g < G; ++g) {
    if (lane == 0) maxima[warp * G + g] = running.max[g], sums[warp * G + g] = running.sum[g];
#pragma unroll
    for (int e = 0; e < E; ++e)
      if (lane < L && columns.column(e) < d) shared[(warp * G + g) * d + columns.column(e)] = running.values[g][e];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < heads * d; i += 32 * kWarps) {
    const int g = i / d, c = i % d;
    float max = maxima[g], sum = 0, value = 0;
#pragma unroll
    for (int w = 1; w < kWarps; ++w) max = fmaxf(max, maxima[w * G + g]);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float factor = exp2_fast(maxima[w * G + g] - max);
      sum += sums[w * G + g] * factor;
      value += shared[(w * G + g) * d + c] * factor;
    }
    const int64_t head = slot * args.heads + first_head + g;
    if (alone) {
      static_cast<T*>(args.out)[head * d + c] = from_float<T>(value / sum);
    } else {
      float* const partial = args.partials + (head * args.splits + split) * (d + 2);
      partial[2 + c] = value;
      if (c == 0) partial[0] = max, partial[1] = sum;
    }
  }
  if (!alone && last_block(args.counters + blockIdx.x, static_cast<unsigned>(used)))
    merge_shares<T>(args, slot * args.heads + first_head, heads, used);
}

/// blockIdx.x: slot, key head, part of its query heads; blockIdx.y: share.
template <class T, int N, int L, int P, int G>
__global__ void __launch_bounds__(32 * kWarps) attention_decode_kernel(DecodeArgs args) {
  constexpr int E = P * N, kKeys = 32 / L, kStride = kWarps * kKeys;  // keys of a warp, of the block, at a time
  const int part = static_cast<int>(blockIdx.x % args.parts);
  const int kv_head = static_cast<int>(blockIdx.x / args.parts % args.kv_heads);
  const int64_t slot = blockIdx.x / args.parts / args.kv_heads;
  const int heads = min(G, args.group - part * G), first_head = kv_head * args.group + part * G, d = args.d;
  join_chain();
  const Shares shares(args, slot);
  const int split = static_cast<int>(blockIdx.y);
  if (shares.used == 0 && split == 0)
    for (int i = threadIdx.x; i < heads * d; i += 32 * kWarps)
      static_cast<T*>(args.out)[(slot * args.heads + first_head) * d + i] = from_float<T>(0.0f);
  if (split >= shares.used) return;

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Columns<N, L, P> columns{lane % L};
  float q[G][E];
  load_queries<T>(args, slot, first_head, heads, columns, q);
  const int begin = shares.first + split * shares.each, end = min(begin + shares.each, shares.end);
  const int64_t row_size = int64_t{args.kv_heads} * d;
  const auto row_of = [&](int j) {
    const int64_t source = args.sources && j < end ? args.sources[slot * args.positions + j] : slot;
    return (source * args.positions + j) * row_size + int64_t{kv_head} * d;
  };
  Running<G, E> running;
  int j = begin + warp * kKeys + lane / L;
  int64_t rows[kLoads];
#pragma unroll
  for (int u = 0; u < kLoads; ++u) rows[u] = row_of(j + u * kStride);
  // All lanes of a warp have the same number of iterations because they exchange sums.
  for (int base = begin + warp * kKeys; base < end; base += kLoads * kStride, j += kLoads * kStride) {
    Loaded<T, N, P> keys[kLoads], values[kLoads];
#pragma unroll
    for (int u = 0; u < kLoads; ++u)
      keys[u].load(static_cast<const T*>(args.keys) + rows[u], columns, d, j + u * kStride < end);
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      values[u].load(static_cast<const T*>(args.values) + rows[u], columns, d, j + u * kStride < end);
      rows[u] = row_of(j + (kLoads + u) * kStride);
    }

    float scores[kLoads][G];
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      float key[E];
      keys[u].unpacked(key);
#pragma unroll
      for (int g = 0; g < G; ++g) {
        float score = score_of_key<L>(q[g], key, args.cap);  // lanes without a key join its shuffles
        if (args.relative && g < heads)
          score += kLog2E * args.relative_score(first_head + g, j + u * kStride + 1 - shares.end);
        scores[u][g] = j + u * kStride < end ? score : -INFINITY;
      }
    }
    running.take(scores);
#pragma unroll
    for (int u = 0; u < kLoads; ++u) running.add(scores[u], values[u]);
  }
#pragma unroll
  for (int offset = L; offset < 32; offset *= 2) running.merge(offset);
  finish<T, G, L, E>(args, running, columns, slot, first_head, heads, split, shares.used);
}

/// Returns the maximum number of shares of a text, which depends only on the shapes. It gives enough blocks for all
/// multiprocessors and no block more than kMaxShare positions, as far as the scratch memory suffices.
int64_t splits_of(const AttentionDecode& args, int64_t blocks, const LaunchContext& launch) {
  const int64_t positions = args.window > 0 ? std::min(args.window, args.cache.positions) : args.cache.positions;
  const int64_t wanted = std::max(ceil_div(4 * launch.sm_count, blocks), ceil_div(positions, kMaxShare));
  const int64_t split_bytes = args.q.rows() * args.heads * (args.head_size + 2) * static_cast<int64_t>(sizeof(float));
  const int64_t room = launch.scratch && blocks <= kCounters ? launch.scratch_bytes / split_bytes : 0;
  const int64_t splits = std::min({wanted, ceil_div(positions, int64_t{kMinShare}), kMaxSplits, room});
  return std::max<int64_t>(splits, 1);
}

template <class T, int N, int L, int P, int G>
void launch_decode(const AttentionDecode& op, const LaunchContext& launch) {
  DecodeArgs args = decode_args(op);
  args.partials = launch.scratch, args.counters = launch.counters;
  args.parts = (args.group + G - 1) / G;
  const int64_t blocks = op.q.rows() * args.kv_heads * args.parts;
  args.splits = static_cast<int>(splits_of(op, blocks, launch));
  const auto shared = static_cast<size_t>(kWarps * G * (args.d + 2)) * sizeof(float);
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(args.splits));
  launch_overlapped(attention_decode_kernel<T, N, L, P, G>, grid, 32 * kWarps, shared, launch, args);
}

template <class T, int N, int L, int P>
void launch_group(const AttentionDecode& op, const LaunchContext& launch) {
  const int64_t group = op.heads / op.kv_heads;
  if (group == 1) launch_decode<T, N, L, P, 1>(op, launch);
  else if (group <= 4) launch_decode<T, N, L, P, 4>(op, launch);
  else launch_decode<T, N, L, P, 8>(op, launch);
}

}  // namespace

void CudaOps::attention_decode(const AttentionDecode& args, Stream stream) {
  check_args(args);
  if (args.q.numel() == 0) return;
  const int64_t d = args.head_size;
  BLIPFT_CHECK(d <= kMaxHeadSize, "attention_decode: head_size is ", d, ", this backend has at most ", kMaxHeadSize);
  BLIPFT_CHECK(args.cache.positions < int64_t{1} << 30, "attention_decode: ", args.cache.positions, " places are too many");
  const LaunchContext launch = context(stream);
  if (launch_shared_decode(args, launch)) return;
  const bool wide = all_aligned16(args.cache.keys, args.cache.values);
  if (args.q.dtype == DType::bf16) {
    if (!wide || d % 8 != 0) launch_group<bf16, 1, 32, 8>(args, launch);
    else if (d <= 64) launch_group<bf16, 8, 8, 1>(args, launch);
    else if (d <= 128) launch_group<bf16, 8, 16, 1>(args, launch);
    else launch_group<bf16, 8, 32, 1>(args, launch);
  } else {
    if (!wide || d % 4 != 0) launch_group<float, 1, 32, 8>(args, launch);
    else if (d <= 128) launch_group<float, 4, 32, 1>(args, launch);
    else launch_group<float, 4, 32, 2>(args, launch);
  }
}

}  // namespace blipft
