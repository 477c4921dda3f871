// What every attention kernel is given, and the address and dropout arithmetic that all of them share.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "blipft/ops.h"
#include "blipft/philox.h"
#include "cuda/device/cuda_check.h"

namespace blipft {
struct LaunchContext;  // kernels.h
}

namespace blipft::attention {

/// blipft::Heads as the kernels see it (strides in elements).
struct View {
  void* data;
  int64_t row_stride, batch_stride;

  /// Head h of the first row of sample b, of samples that are not packed.
  template <class T>
  __device__ __forceinline__ T* head(int b, int h, int head_size) const {
    return static_cast<T*>(data) + b * batch_stride + static_cast<int64_t>(h) * head_size;
  }
};

struct Params {
  View q, k, v, out;
  View dout, dq, dk, dv;            // backward only
  float* lse;                       // [batch, heads, query_tokens]
  float* delta;                     // [batch, heads, query_tokens], backward only
  float* dbias_partials;            // [batch, 3, heads, head_size]: sums of dq, dk, dv over tokens; backward, or null
  const int32_t* kv_lengths;        // [batch] or null
  const int64_t* sample_keys;       // [batch], with dropout
  uint64_t seed;
  uint32_t site, threshold;
  uint64_t head_elements;           // of dropout: ProbabilityNumbers
  int query_elements;
  float keep_scale;                 // 1 / (1 - p), 1 without dropout
  float scale;
  int batch, heads, head_size, query_tokens, kv_tokens;
  bool causal, dropout;
  bool wgmma;                       // LaunchContext::wgmma
  bool wide;                        // all views aligned to 16 bytes, head_size a multiple of 8 (tensor-core kernels)
  int shared_bytes;                 // LaunchContext::shared_bytes
  const int32_t* starts;            // [batch + 1]: first rows of packed samples, or null; kernels ask PackedParams
  int kv_heads, group;              // heads of k, v, dk, dv; heads of queries that read each; kernels ask PackedParams
  int rows;                         // of q, out, dout and dq, all samples together
  int window;                       // of keys that a query sees, smaller than query_tokens; 0: none (AttentionForward)
  float cap;                        // of the scores; 0: none
  const float* relative;            // [heads, behind + 1 + ahead] or null: RelativeScores
  int behind, ahead;
  const int32_t* key_starts;        // [batch + 1] or null: AttentionForward::key_packing; kernels ask ExtraParams

  /// Whether kernels need PackedParams.
  bool packed_or_grouped() const { return starts || group > 1; }

  // Answers for samples of equally many rows, each head of queries with keys of its own; PackedParams has the others.
  static constexpr bool kPacked = false;
  static constexpr bool kWindow = false;   // only kernels of WindowParams look at `window`
  static constexpr bool kOwnKeys = false;  // and only those of ExtraParams at `key_starts`
  static constexpr bool kScores = false;   // and only those of ScoreParams at `cap` and `relative`

  /// The head of keys and values that head h of queries reads, and how many do so.
  __device__ __forceinline__ int kv_head(int h) const { return h; }
  static __device__ __forceinline__ constexpr int heads_per_kv() { return 1; }

  /// Rows of sample b that exist: its queries and its keys.
  __device__ __forceinline__ int queries(int) const { return query_tokens; }
  __device__ __forceinline__ int keys(int) const { return kv_tokens; }
  /// Keys that queries of sample b may see; those after them exist up to keys(b), and get gradients of zero.
  __device__ __forceinline__ int kv_length(int b) const {
    return kv_lengths ? max(0, min(kv_lengths[b], kv_tokens)) : kv_tokens;
  }
};

/// Params of samples that may be packed: one after the other in the rows of each matrix; and of heads of queries that
/// may share their keys and values, in groups. The rows of a sample are in device memory, so that a captured launch
/// fits other samples of the same shapes; grids and shared memory follow from query_tokens, the most rows. A type of
/// its own, since what the compiler computes anew from Params each time (rows, addresses) it must keep in registers
/// here, which the tensor-core kernels can ill afford.
struct PackedParams : Params {
  static constexpr bool kPacked = true;

  __device__ __forceinline__ int kv_head(int h) const { return h / group; }
  __device__ __forceinline__ int heads_per_kv() const { return group; }
  __device__ __forceinline__ int queries(int b) const { return starts ? starts[b + 1] - starts[b] : query_tokens; }
  __device__ __forceinline__ int keys(int b) const { return starts ? starts[b + 1] - starts[b] : kv_tokens; }
  __device__ __forceinline__ int kv_length(int b) const {
    const int most = keys(b);
    return kv_lengths ? max(0, min(kv_lengths[b], most)) : most;
  }
  /// Elements before the first row of sample b.
  __device__ __forceinline__ int64_t first(const View& view, int b) const {
    return starts ? starts[b] * view.row_stride : b * view.batch_stride;
  }
};

/// Params of the kernels that take keys packed by themselves.
struct ExtraParams : PackedParams {
  static constexpr bool kOwnKeys = true;

  __device__ __forceinline__ int keys(int b) const {
    return key_starts ? key_starts[b + 1] - key_starts[b] : PackedParams::keys(b);
  }
  __device__ __forceinline__ int kv_length(int b) const {
    const int most = keys(b);
    return kv_lengths ? max(0, min(kv_lengths[b], most)) : most;
  }
  /// Elements before the first key of sample b.
  __device__ __forceinline__ int64_t first_key(const View& view, int b) const {
    return key_starts ? key_starts[b] * view.row_stride : first(view, b);
  }
  /// What is added to a score.
  __device__ __forceinline__ float relative_score(int h, int query, int key) const {
    if (!relative) return 0.0f;
    return relative[static_cast<int64_t>(h) * (behind + 1 + ahead) + min(max(key - query, -behind), ahead) + behind];
  }
};

/// Params of causal attention within a window.
struct WindowParams : PackedParams {
  static constexpr bool kWindow = true;
};

/// Params of the tensor-core kernels that change scores between the products and the softmax (caps, relative
/// positions), and of heads of more than 128: with a window or without, with keys packed by themselves or not. `window`
/// is never 0 here: see score_params().
struct ScoreParams : ExtraParams {
  static constexpr bool kWindow = true, kScores = true;

  /// Offsets of key and query that have a number of their own in `relative`.
  __host__ __device__ __forceinline__ int columns() const { return behind + 1 + ahead; }
  __host__ __device__ __forceinline__ int table_bytes() const { return relative ? columns() * 4 : 0; }
};
inline ScoreParams score_params(const Params& params) {
  ScoreParams p{ExtraParams{PackedParams{params}}};
  if (p.window == 0) p.window = 1 << 30;  // wider than any text
  return p;
}

/// The sample and head of a block of a grid of batch * heads blocks. With packed samples they are read anew at each
/// call: the compiler would keep both numbers in registers from the first use to the last.
struct SampleHead {
  int b, h;
};
template <class Args>
__device__ __forceinline__ SampleHead sample_head(const Args& p) {
  int block = static_cast<int>(blockIdx.x);
  if constexpr (Args::kPacked) asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
  return {block / p.heads, block % p.heads};
}

/// Head h of the first row of sample b; of keys and values, that is kv_head(h) of the queries' h. `Args` is Params or
/// PackedParams, here and in the kernels.
template <class T, class Args>
__device__ __forceinline__ T* head_of(const Args& p, const View& view, int b, int h) {
  if constexpr (!Args::kPacked) return view.head<T>(b, h, p.head_size);
  else return static_cast<T*>(view.data) + p.first(view, b) + static_cast<int64_t>(h) * p.head_size;
}

/// Head h of the first key (or value) of sample b.
template <class T, class Args>
__device__ __forceinline__ T* key_head_of(const Args& p, const View& view, int b, int h) {
  if constexpr (!Args::kOwnKeys) return head_of<T>(p, view, b, h);
  else return static_cast<T*>(view.data) + p.first_key(view, b) + static_cast<int64_t>(h) * p.head_size;
}

/// The same for the sample and head of this block (see sample_head).
template <class T, class Args>
__device__ __forceinline__ T* own_head(const Args& p, const View& view) {
  const SampleHead own = sample_head(p);
  return head_of<T>(p, view, own.b, own.h);
}

constexpr float kLog2e = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;

/// The dropout mask of one sample: element number -> keep or drop.
struct DropoutMask {
  uint64_t seed;
  int64_t sample_key;
  uint32_t site, threshold;

  __device__ __forceinline__ DropoutMask(const Params& p, int b)
      : seed(p.seed), sample_key(p.dropout ? p.sample_keys[b] : 0), site(p.site), threshold(p.threshold) {}

  __device__ __forceinline__ DropoutBlock block(uint64_t element) const {
    return {seed, site, sample_key, element};
  }
  __device__ __forceinline__ bool keep(uint64_t element) const {
    return block(element).keeps(static_cast<uint32_t>(element) % kDropoutBlock, threshold);
  }
  /// Elements `element` and `element + 1`: bit 0 and bit 1.
  __device__ __forceinline__ uint32_t keep_pair(uint64_t element) const {
    const uint32_t e = static_cast<uint32_t>(element) % kDropoutBlock;
    const DropoutBlock own = block(element);
    uint32_t after = 0;
    if (e + 1 == kDropoutBlock) after = block(element + 1).words.x;
    return own.keeps_pair(e, after, threshold);
  }
};

/// Whether the wgmma kernels are for this (but for the head size): 256 or 257 tokens that all see each other, in
/// samples of equally many rows (the tensor maps count on it), each head of queries with keys of its own.
inline bool fits_wgmma(const Params& p) {
  return p.wgmma && p.wide && !p.causal && !p.dropout && !p.kv_lengths && !p.packed_or_grouped() &&
         p.query_tokens == p.kv_tokens && (p.query_tokens == 256 || p.query_tokens == 257);
}

/// Number of element (query i, key 0) of head h.
__device__ __forceinline__ uint64_t element_row(const Params& p, int h, int i) {
  return h * p.head_elements + static_cast<uint64_t>(i) * p.query_elements;
}

/// Allows a kernel `bytes` of dynamic shared memory, and asks for an L1 split that leaves room for several blocks.
template <class Kernel>
void allow_shared_memory(Kernel* kernel, int bytes) {
  BLIPFT_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  BLIPFT_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                         cudaSharedmemCarveoutMaxShared));
}

/// Whether kernels need ScoreParams, or in f32 those of general_extra.cu.
inline bool changes_scores(const Params& p) { return p.cap > 0 || p.relative || p.key_starts || p.head_size > 128; }

// Launchers of the kernel families; each returns false when the shape is not one of its own. What changes_scores() is
// for the general kernels and the mma_score ones, windows for those and the two functions that say so.
void general_forward(const Params&, bool bf16, cudaStream_t);
/// partials [splits, heads, behind + 1 + ahead]: sums of the gradient of the scores over the offsets of key and query, in
/// so many parts. After general_backward(), which makes the row sums.
void relative_gradient(const Params&, bool bf16, float* partials, int splits, cudaStream_t);
constexpr int kMostRelativeColumns = 16384;  // which a block keeps in shared memory
void general_backward(const Params&, bool bf16, cudaStream_t);
bool mma_forward(const Params&, cudaStream_t);
/// Within a window; no dropout.
bool mma_forward_window(const Params&, cudaStream_t);
bool mma_backward_window(const Params&, cudaStream_t);
/// What changes_scores(), and dropout over packed samples, within a window or not.
bool mma_score_forward(const Params&, cudaStream_t);
bool mma_score_backward(const Params&, cudaStream_t);
/// As relative_gradient(), after either backward.
bool mma_relative_gradient(const Params&, float* partials, int splits, cudaStream_t);
/// f32, aligned to 16 bytes, with products in TF32.
bool tf32_forward(const Params&, cudaStream_t);
bool tf32_backward(const Params&, cudaStream_t);
bool wgmma_forward(const Params&, const LaunchContext&);
bool wgmma_backward(const Params&, cudaStream_t);
bool mma_backward_short(const Params&, cudaStream_t);
bool mma_backward_long(const Params&, cudaStream_t);
/// delta[b, h, i] = sum over d of dout * out.
void row_deltas(const Params&, bool bf16, cudaStream_t);

}  // namespace blipft::attention
