// Arguments of the attention kernels, and the address and dropout arithmetic that they share.
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

/// blipft::Heads for kernels (strides in elements).
struct View {
  void* data;
  int64_t row_stride, batch_stride;

  /// Returns head h of the first row of sample b, for samples that are not packed.
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
  uint64_t head_elements;           // dropout element strides: ProbabilityNumbers
  int query_elements;
  float keep_scale;                 // 1 / (1 - p), 1 without dropout
  float scale;
  int batch, heads, head_size, query_tokens, kv_tokens;
  bool causal, dropout;
  bool wgmma;                       // LaunchContext::wgmma
  bool wide;                        // all views aligned to 16 bytes, head_size a multiple of 8 (tensor-core kernels)
  int shared_bytes;                 // LaunchContext::shared_bytes
  const int32_t* starts;            // [batch + 1]: first rows of packed samples, or null; kernels use PackedParams
  int kv_heads, group;              // heads of k, v, dk, dv; query heads per key head; kernels use PackedParams
  int rows;                         // rows of q, out, dout and dq, over all samples
  int window;                       // number of keys that a query sees, < query_tokens; 0: no window (AttentionForward)
  float cap;                        // cap of the scores; 0: no cap
  const float* relative;            // [heads, behind + 1 + ahead] or null: RelativeScores
  int behind, ahead;
  const int32_t* key_starts;        // [batch + 1] or null: AttentionForward::key_packing; kernels use ExtraParams
  const int32_t* last_keys;         // [rows] or null: AttentionForward::last_keys; kernels use LastKeyParams

  /// True if kernels need PackedParams.
  bool packed_or_grouped() const { return starts || group > 1; }

  // The members below are for samples of equal length and one key head per query head; PackedParams redefines them.
  static constexpr bool kPacked = false;
  static constexpr bool kWindow = false;   // only kernels of WindowParams use `window`
  static constexpr bool kOwnKeys = false;  // only kernels of ExtraParams use `key_starts`
  static constexpr bool kScores = false;   // only kernels of ScoreParams use `cap` and `relative`
  static constexpr bool kLastKeys = false;  // only kernels of LastKeys use `last_keys`

  /// The key head that query head h uses, and the number of query heads per key head.
  __device__ __forceinline__ int kv_head(int h) const { return h; }
  static __device__ __forceinline__ constexpr int heads_per_kv() { return 1; }

  /// Number of existing rows of sample b: queries and keys.
  __device__ __forceinline__ int queries(int) const { return query_tokens; }
  __device__ __forceinline__ int keys(int) const { return kv_tokens; }
  /// Number of keys that queries of sample b may see; later keys exist up to keys(b) and get zero gradients.
  __device__ __forceinline__ int kv_length(int b) const {
    return kv_lengths ? max(0, min(kv_lengths[b], kv_tokens)) : kv_tokens;
  }
};

/// Params of samples that may be packed (concatenated in the rows of each matrix) and of query heads that may share key
/// heads in groups. The lengths of samples are in device memory, so a captured launch works for other samples of the
/// same shapes; grids and shared memory depend on query_tokens, the maximum length. It is a separate type because the
/// compiler recomputes rows and addresses from Params, but must keep them in registers here, which the tensor-core
/// kernels lack.
struct PackedParams : Params {
  static constexpr bool kPacked = true;

  __device__ __forceinline__ int kv_head(int h) const { return h / group; }
  __device__ __forceinline__ int heads_per_kv() const { return group; }
  __device__ __forceinline__ int queries(int b) const { return starts ? starts[b + 1] - starts[b] : query_tokens; }
  __device__ __forceinline__ int keys(int b) const { return starts ? starts[b + 1] - starts[b] : kv_tokens; }
  __device__ __forceinline__ int kv_length(int b) const {
    const int maximum = keys(b);
    return kv_lengths ? max(0, min(kv_lengths[b], maximum)) : maximum;
  }
  /// Number of elements before the first row of sample b.
  __device__ __forceinline__ int64_t first(const View& view, int b) const {
    return starts ? starts[b] * view.row_stride : b * view.batch_stride;
  }
};

/// Params of the kernels that support a separate packing of the keys.
struct ExtraParams : PackedParams {
  static constexpr bool kOwnKeys = true;

  __device__ __forceinline__ int keys(int b) const {
    return key_starts ? key_starts[b + 1] - key_starts[b] : PackedParams::keys(b);
  }
  __device__ __forceinline__ int kv_length(int b) const {
    const int maximum = keys(b);
    return kv_lengths ? max(0, min(kv_lengths[b], maximum)) : maximum;
  }
  /// Number of elements before the first key of sample b.
  __device__ __forceinline__ int64_t first_key(const View& view, int b) const {
    return key_starts ? key_starts[b] * view.row_stride : first(view, b);
  }
  /// Returns the last key that a query of sample b sees, if attention is causal.
  __device__ __forceinline__ int last_key(int, int query) const { return query; }
  /// Returns a multiple of `tile`, at most `key`, from which on queries of sample b see the key.
  __device__ __forceinline__ int first_query(int, int key, int) const { return key; }
  /// Returns the bias of a score.
  __device__ __forceinline__ float relative_score(int h, int query, int key) const {
    if (!relative) return 0.0f;
    return relative[static_cast<int64_t>(h) * (behind + 1 + ahead) + min(max(key - query, -behind), ahead) + behind];
  }
};

/// Params of the kernels that support rows of pictures that see each other, with the other abilities of `Base`.
template <class Base>
struct LastKeys : Base {
  static constexpr bool kLastKeys = true;

  __device__ __forceinline__ const int32_t* last_keys_of(int b) const {
    return this->last_keys + (this->starts ? this->starts[b] : b * this->query_tokens);
  }
  __device__ __forceinline__ int last_key(int b, int query) const {
    return last_keys_of(b)[min(query, this->queries(b) - 1)];
  }
  __device__ __forceinline__ int first_query(int b, int key, int tile) const {
    int first = key;
    while (first > 0 && last_keys_of(b)[first - 1] >= key) first -= tile;
    return first;
  }
};
using LastKeyParams = LastKeys<ExtraParams>;

/// Params of causal attention with a window.
struct WindowParams : PackedParams {
  static constexpr bool kWindow = true;
};

/// Params of the tensor-core kernels that change scores before the softmax (caps, relative positions) and of heads of
/// more than 128, with or without a window or separately packed keys. `window` is never 0 here: see score_params().
struct ScoreParams : ExtraParams {
  static constexpr bool kWindow = true, kScores = true;

  /// Number of offsets between key and query in `relative`.
  __host__ __device__ __forceinline__ int columns() const { return behind + 1 + ahead; }
  __host__ __device__ __forceinline__ int table_bytes() const { return relative ? columns() * 4 : 0; }
};
using LastKeyScoreParams = LastKeys<ScoreParams>;
inline ScoreParams score_params(const Params& params) {
  ScoreParams p{ExtraParams{PackedParams{params}}};
  if (p.window == 0) p.window = 1 << 30;  // wider than any text
  return p;
}

/// Returns the sample and head of a block in a grid of batch * heads blocks. For packed samples blockIdx.x is read
/// again at each call: the compiler would otherwise keep both indices in registers between the first and last use.
struct SampleHead {
  int b, h;
};
template <class Args>
__device__ __forceinline__ SampleHead sample_head(const Args& p) {
  int block = static_cast<int>(blockIdx.x);
  if constexpr (Args::kPacked) asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
  return {block / p.heads, block % p.heads};
}

/// Returns head h of the first row of sample b; for keys and values, h is kv_head() of the query head. `Args` is Params
/// or a type derived from it, here and in the kernels.
template <class T, class Args>
__device__ __forceinline__ T* head_of(const Args& p, const View& view, int b, int h) {
  if constexpr (!Args::kPacked) return view.head<T>(b, h, p.head_size);
  else return static_cast<T*>(view.data) + p.first(view, b) + static_cast<int64_t>(h) * p.head_size;
}

/// Returns head h of the first key (or value) of sample b.
template <class T, class Args>
__device__ __forceinline__ T* key_head_of(const Args& p, const View& view, int b, int h) {
  if constexpr (!Args::kOwnKeys) return head_of<T>(p, view, b, h);
  else return static_cast<T*>(view.data) + p.first_key(view, b) + static_cast<int64_t>(h) * p.head_size;
}

/// Returns the head of this block's sample (see sample_head).
template <class T, class Args>
__device__ __forceinline__ T* own_head(const Args& p, const View& view) {
  const SampleHead own = sample_head(p);
  return head_of<T>(p, view, own.b, own.h);
}

constexpr float kLog2e = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;

/// The dropout mask of one sample: maps an element number to keep or drop.
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
  /// Returns the decisions for elements `element` and `element + 1` in bits 0 and 1.
  __device__ __forceinline__ uint32_t keep_pair(uint64_t element) const {
    const uint32_t e = static_cast<uint32_t>(element) % kDropoutBlock;
    const DropoutBlock own = block(element);
    uint32_t after = 0;
    if (e + 1 == kDropoutBlock) after = block(element + 1).words.x;
    return own.keeps_pair(e, after, threshold);
  }
};

/// True if the wgmma kernels support these arguments, apart from the head size: 256 or 257 tokens that all see each
/// other, samples of equal length (which the tensor maps require), and one key head per query head.
inline bool fits_wgmma(const Params& p) {
  return p.wgmma && p.wide && !p.causal && !p.dropout && !p.kv_lengths && !p.packed_or_grouped() &&
         p.query_tokens == p.kv_tokens && (p.query_tokens == 256 || p.query_tokens == 257);
}

/// Returns the number of element (query i, key 0) of head h.
__device__ __forceinline__ uint64_t element_row(const Params& p, int h, int i) {
  return h * p.head_elements + static_cast<uint64_t>(i) * p.query_elements;
}

/// Allows a kernel `bytes` of dynamic shared memory and requests an L1 split with room for several blocks.
template <class Kernel>
void allow_shared_memory(Kernel* kernel, int bytes) {
  BLIPFT_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  BLIPFT_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                         cudaSharedmemCarveoutMaxShared));
}

/// True if the arguments need ScoreParams (tensor-core kernels) or the kernels of general_extra.cu.
inline bool changes_scores(const Params& p) { return p.cap > 0 || p.relative || p.key_starts || p.head_size > 128; }

// Launchers of the kernel families; each returns false if it does not support the arguments. Arguments for which
// changes_scores() is true are supported only by the general and mma_score kernels. Windows are supported by these and
// by mma_forward_window() and mma_backward_window(), and last_keys by the general and
// mma_score kernels.
void general_forward(const Params&, bool bf16, cudaStream_t);
/// Writes to partials [splits, heads, behind + 1 + ahead] the sums of the scores' gradient for each offset between key
/// and query, split into `splits` parts. Must run after general_backward(), which computes the row sums.
void relative_gradient(const Params&, bool bf16, float* partials, int splits, cudaStream_t);
constexpr int kMaxRelativeColumns = 16384;  // maximum that a block keeps in shared memory
void general_backward(const Params&, bool bf16, cudaStream_t);
bool mma_forward(const Params&, cudaStream_t);
/// Require a window and no dropout.
bool mma_forward_window(const Params&, cudaStream_t);
bool mma_backward_window(const Params&, cudaStream_t);
/// For arguments with changes_scores(), and for dropout with packed samples; with or without a window.
bool mma_score_forward(const Params&, cudaStream_t);
bool mma_score_backward(const Params&, cudaStream_t);
/// Like relative_gradient(). Must run after mma_score_backward() or general_backward(), which compute the row sums.
bool mma_relative_gradient(const Params&, float* partials, int splits, cudaStream_t);
/// f32, 16-byte aligned, with products in TF32.
bool tf32_forward(const Params&, cudaStream_t);
bool tf32_backward(const Params&, cudaStream_t);
bool wgmma_forward(const Params&, const LaunchContext&);
bool wgmma_backward(const Params&, cudaStream_t);
bool mma_backward_short(const Params&, cudaStream_t);
bool mma_backward_long(const Params&, cudaStream_t);
/// Computes delta[b, h, i] = sum over d of dout * out.
void row_deltas(const Params&, bool bf16, cudaStream_t);

}  // namespace blipft::attention
