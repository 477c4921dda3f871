// Attention on CUDA: checks of the arguments and selection of a kernel family. Attention to a KV cache while texts are
// generated (AttentionDecode) is in src/cuda/decode/.
//
// launch_attention_forward() and backward_kernels() call the launchers of the families in the order of preference. The
// first one that supports the arguments enqueues its kernels and returns true; general.cu supports everything. A query
// that sees no key has the output 0 and lse = -inf, and its gradients are 0.
//
//   wgmma_forward.cu,            bf16 with warpgroup products (Hopper), for vision towers: 256 or 257 tokens that all
//   wgmma_backward.cu            see each other, head sizes 80, 88 and 96 (forward: 64 too)
//   wgmma_long_forward.cu, wgmma_long_backward.cu
//                                bf16 with warpgroup products, any number of tokens, causal or not, head sizes 64 and
//                                128, packed or not (backward: if the short one does not support the shape; see
//                                backward_kernels)
//   few_queries_forward.cu, few_queries_backward.cu
//                                bf16 with mma.sync, up to 32 queries over 64 to 576 keys (the Q-Former attends to an
//                                image): the warps divide the keys
//   forward.cu                   bf16 forward on tensor cores (mma.sync): `resident` (K and V of a head in shared
//                                memory) and `streaming`
//   backward_short.cu            bf16 backward in one pass over a (sample, head), up to 272 queries
//   backward_long.cu             bf16 backward for any length: delta, then dK/dV, then dQ
//   score_forward.cu, score_backward.cu, score_relative.cu
//                                bf16 with mma.sync, any length, if scores change between the product and the
//                                softmax: caps (Gemma 2), relative positions and their gradient (T5); heads of 129 to
//                                256 (Gemma), separately packed keys (cross-attention of packed samples), dropout
//                                with packed samples. They use the kernels of streaming.cuh and backward_long.cuh,
//                                and for the backward of wide heads those of backward_wide.cuh
//   wgmma_wide_forward.cu, wgmma_wide_backward.cu
//                                like the score_ kernels, with warpgroup products: heads of 129 to 256, no dropout
//   tf32_forward.cu, tf32_backward.cu
//                                f32 with products in TF32 (mma.sync) if LaunchContext::tf32: any length, packed or
//                                not, grouped or not, with dropout or not
//   general.cu                   plain f32 arithmetic for everything else: f32 without TF32 (or with it, if heads are
//                                not 16-byte aligned), bf16 heads that are not 8-byte aligned, bf16 with dropout and
//                                grouped queries, scale <= 0
//   general_extra.cu             called by general.cu for windows, caps, relative positions, separately packed keys,
//                                heads of 129 to 256, and AttentionForward::last_keys
// Windows (AttentionForward::window) that exclude keys are supported by the streaming kernel of forward.cu, by
// backward_long.cu, by the score_ kernels, and by general_extra.cu. Like forward.cu and backward_long.cu, the
// score_ kernels do not combine dropout with grouped queries; they also support no dropout for heads of more than 128,
// no relative positions with grouped queries, and no table of relative positions that does not fit into shared memory
// with their tiles.
// No kernel writes scores to memory or uses float atomics; all are deterministic.
//
// The bias gradient (AttentionBackward::dbias) is computed from partial sums, one row per sample, that the wgmma and
// the short backward write from their registers; for the other kernels, by a separate pass over dq, dk and dv.
//
// Packed samples (AttentionForward::packing) are supported by all but the wgmma (257 tokens) and the few-queries
// kernels. Grids and shared memory depend on the maximum rows of a sample and on the total rows, which the host knows;
// the kernels read each sample's first row and length from packing.starts. Grouped queries (kv_heads) are supported by
// all but the wgmma (257 tokens), the few-queries and the short backward kernels; together with dropout only by the
// TF32 and the general kernels. Dropout masks are a function of seed, sample and element number (DropoutMask), so
// forward and backward kernels of different families use the same mask.
//
// With mma.sync, head sizes are rounded up to one of 32, 64, 80, 88, 96, 112, 128, 256, and in shared memory to a
// multiple of 16, with zeros; in TF32 to 64, 96 or 128.
//
// Lower bounds on an H200 (copy 4.3 TB/s; wgmma about 800 TFLOP/s, mma.sync 500; operations including padding):
//   16 x 16 x 257 x 257 x 88          forward 46 MB = 11 us, 7 GFLOP = 9 us; backward 93 MB = 22 us, 18 GFLOP = 22 us
//   16 x 32 x 82 x 82 x 80, causal    forward 27 MB = 6 us, 1 GFLOP = 2 us; backward 54 MB = 13 us, 3 GFLOP = 6 us
// With mma.sync the vision tower is bound by shared-memory bandwidth: a 16 x 16 block of B feeds 2 mma for each 16 rows
// of A of a warp and costs as much shared-memory time as 2.5 mma, so each warp has 32 rows. The language model is bound
// by device memory: few bytes, many blocks in flight.
#include <cuda_runtime.h>

#include <algorithm>
#include <initializer_list>

#include "cuda/attention/attention.h"
#include "cuda/attention/few_queries.cuh"
#include "cuda/attention/params.cuh"
#include "cuda/attention/wgmma_long.cuh"
#include "cuda/device/cuda_check.h"

namespace blipft {
namespace {

using attention::Params;
using attention::View;

View view(const Heads& heads) { return {heads.data, heads.row_stride, heads.batch_stride}; }

Params make_params(const AttentionForward& a, const LaunchContext& context) {
  BLIPFT_CHECK(a.dtype == DType::f32 || a.dtype == DType::bf16, "attention runs in f32 or bf16, got ",
               dtype_name(a.dtype));
  BLIPFT_CHECK(a.batch >= 0 && a.heads >= 1 && a.query_tokens >= 1 && a.kv_tokens >= 1, "attention of batch ", a.batch,
               ", heads ", a.heads, ", query_tokens ", a.query_tokens, ", kv_tokens ", a.kv_tokens);
  BLIPFT_CHECK(a.head_size >= 1 && a.head_size <= 256, "attention head sizes are 1 to 256, got ", a.head_size);
  BLIPFT_CHECK(a.batch <= 65535 && a.heads <= 65535, "attention takes up to 65535 samples and heads, got ", a.batch,
               " and ", a.heads);
  BLIPFT_CHECK(!a.causal || a.query_tokens == a.kv_tokens, "causal attention needs as many queries as keys, got ",
               a.query_tokens, " and ", a.kv_tokens);
  BLIPFT_CHECK(!a.packing || a.key_packing || a.query_tokens == a.kv_tokens,
               "attention of packed samples takes as many queries as keys, got ", a.query_tokens, " and ", a.kv_tokens);
  BLIPFT_CHECK(a.relative.columns() <= attention::kMaxRelativeColumns, "relative positions of ", a.relative.columns(),
               " offsets are more than the ", attention::kMaxRelativeColumns, " that a block keeps");
  Params p{};
  p.q = view(a.q);
  p.k = view(a.k);
  p.v = view(a.v);
  p.out = view(a.out);
  p.lse = a.lse.as<float>();
  p.kv_lengths = a.kv_lengths.as<int32_t>();
  p.starts = a.packing.starts.as<int32_t>();
  p.dropout = static_cast<bool>(a.dropout);
  p.sample_keys = a.dropout.sample_keys.as<int64_t>();
  p.seed = a.dropout.seed;
  p.site = a.dropout.site;
  p.threshold = p.dropout ? dropout_threshold(a.dropout.p) : 0;
  const ProbabilityNumbers numbers = a.dropout_numbers();
  p.head_elements = static_cast<uint64_t>(numbers.head);
  p.query_elements = static_cast<int>(numbers.query);
  p.keep_scale = p.dropout ? 1.0f / (1.0f - a.dropout.p) : 1.0f;
  p.scale = a.scale;
  p.batch = static_cast<int>(a.batch);
  p.heads = static_cast<int>(a.heads);
  p.head_size = static_cast<int>(a.head_size);
  p.query_tokens = static_cast<int>(a.query_tokens);
  p.kv_tokens = static_cast<int>(a.kv_tokens);
  p.causal = a.causal;
  p.kv_heads = static_cast<int>(a.heads_of_kv());
  p.group = p.heads / p.kv_heads;
  p.rows = static_cast<int>(a.packing ? a.packing.padded_rows.numel() : a.batch * a.query_tokens);
  p.window = a.window < a.query_tokens ? static_cast<int>(a.window) : 0;  // else it excludes nothing
  p.cap = a.cap;
  p.relative = a.relative.values.as<const float>();
  p.behind = static_cast<int>(a.relative.behind);
  p.ahead = static_cast<int>(a.relative.ahead);
  p.key_starts = a.key_packing.starts.as<const int32_t>();
  p.last_keys = a.last_keys.as<const int32_t>();
  p.wgmma = context.wgmma;
  p.shared_bytes = context.shared_bytes;
  return p;
}

/// True if every row of every head starts at a multiple of `elements` elements.
bool aligned(const Params& p, DType dtype, std::initializer_list<View> views, int elements) {
  if (p.head_size % elements != 0) return false;
  for (const View& v : views)
    if (reinterpret_cast<uintptr_t>(v.data) % static_cast<uintptr_t>(dtype_size(dtype) * elements) != 0 ||
        v.row_stride % elements != 0 || (!p.starts && v.batch_stride % elements != 0))
      return false;
  return true;
}

/// True if the tensor-core kernels support these arguments; sets p.wide. They load 16 or 8 bytes at a time and take a
/// row's maximum before scaling, which requires a positive scale.
bool fits_mma(Params& p, DType dtype, std::initializer_list<View> views) {
  p.wide = aligned(p, dtype, views, 8);
  return dtype == DType::bf16 && p.scale > 0 && aligned(p, dtype, views, 4);
}

/// True if, of the tensor-core kernels, only the mma_score kernels support these arguments.
bool needs_scores(const Params& p) { return attention::changes_scores(p) || (p.starts && p.dropout); }

/// True if the TF32 kernels are allowed and support these arguments, with accesses of 16 bytes.
bool fits_tf32(const Params& p, DType dtype, std::initializer_list<View> views, const LaunchContext& context) {
  return context.tf32 && dtype == DType::f32 && p.scale > 0 && p.window == 0 && !attention::changes_scores(p) &&
         aligned(p, dtype, views, 4);
}

/// Maximum rows of a packed sample for which the one-pass kernels are preferred to wgmma_long. wgmma_long computes 7
/// products instead of 5, in two kernels, but has no idle warps for samples that are shorter than others.
constexpr int kMaxOnePassRows = 96;

/// Enqueues the backward kernels. Returns true if they wrote p.dbias_partials.
bool backward_kernels(Params& p, DType dtype, const LaunchContext& context) {
  const auto views = {p.q, p.k, p.v, p.out, p.dout, p.dq, p.dk, p.dv};
  if (p.last_keys) {
    if (!fits_mma(p, dtype, views) || !attention::mma_score_backward(p, context.stream))
      attention::general_backward(p, dtype == DType::bf16, context.stream);
    return false;
  }
  if (fits_tf32(p, dtype, views, context) && attention::tf32_backward(p, context.stream)) return false;
  const bool fits = fits_mma(p, dtype, views), mma = fits && !needs_scores(p);
  if (fits && !mma && attention::mma_score_backward(p, context.stream)) return false;
  if (p.window > 0) {
    if (!mma || !attention::mma_backward_window(p, context.stream))
      attention::general_backward(p, dtype == DType::bf16, context.stream);
    return false;
  }
  const bool tiles_first = p.starts && p.query_tokens > kMaxOnePassRows && !p.dbias_partials;
  if (mma && tiles_first && attention::wgmma_long_backward(p, context)) return false;
  if (mma && (attention::wgmma_backward(p, context.stream) ||
              attention::mma_few_queries_backward(p, context.stream) ||
              attention::mma_backward_short(p, context.stream)))
    return p.dbias_partials != nullptr;
  if (!mma || !(attention::wgmma_long_backward(p, context) || attention::mma_backward_long(p, context.stream)))
    attention::general_backward(p, dtype == DType::bf16, context.stream);
  return false;
}

}  // namespace

void launch_attention_forward(const AttentionForward& args, const LaunchContext& context) {
  Params p = make_params(args, context);
  if (p.batch == 0) return;
  const auto views = {p.q, p.k, p.v, p.out};
  if (p.last_keys) {
    if (!fits_mma(p, args.dtype, views) || !attention::mma_score_forward(p, context.stream))
      attention::general_forward(p, args.dtype == DType::bf16, context.stream);
    return;
  }
  if (fits_tf32(p, args.dtype, views, context) && attention::tf32_forward(p, context.stream)) return;
  const bool fits = fits_mma(p, args.dtype, views), mma = fits && !needs_scores(p);
  if (fits && !mma && attention::mma_score_forward(p, context.stream)) return;
  if (p.window > 0) {
    if (!mma || !attention::mma_forward_window(p, context.stream))
      attention::general_forward(p, args.dtype == DType::bf16, context.stream);
    return;
  }
  if (mma &&
      (attention::wgmma_forward(p, context) || attention::mma_few_queries_forward(p, context.stream) ||
       attention::wgmma_long_forward(p, context) || attention::mma_forward(p, context.stream)))
    return;
  attention::general_forward(p, args.dtype == DType::bf16, context.stream);
}

namespace {

/// Adds the gradient of the relative scores to args.drelative: partial sums of blocks, then their sum in a fixed order.
void launch_relative_gradient(const AttentionBackward& args, Params& p, const LaunchContext& context) {
  const int64_t columns = args.drelative.numel(), tiles = int64_t{p.batch} * ((p.query_tokens + 31) / 32);
  const int64_t room = context.scratch ? context.scratch_bytes / (columns * static_cast<int64_t>(sizeof(float))) : 0;
  const int64_t wanted = std::min(tiles, (4 * int64_t{context.sm_count} + p.heads - 1) / p.heads);
  const int64_t splits = std::min(wanted, room);
  BLIPFT_CHECK(splits >= 1, "the gradient of ", columns, " relative positions needs a larger workspace");
  const DType dtype = args.forward.dtype;
  if (!fits_mma(p, dtype, {p.q, p.k, p.v, p.out, p.dout}) ||
      !attention::mma_relative_gradient(p, context.scratch, static_cast<int>(splits), context.stream))
    attention::relative_gradient(p, dtype == DType::bf16, context.scratch, static_cast<int>(splits), context.stream);
  PartialSums sums{context.scratch, splits, columns};
  sums.add(args.drelative, true);
  launch_reduce_partials(sums, context);
}

}  // namespace

void launch_attention_backward(const AttentionBackward& args, const LaunchContext& context) {
  const AttentionForward& a = args.forward;
  Params p = make_params(a, context);
  p.dout = view(args.dout);
  p.dq = view(args.dq);
  p.dk = view(args.dk);
  p.dv = view(args.dv);
  p.delta = args.delta.as<float>();
  if (p.batch == 0) return;
  const int64_t columns = (a.heads + 2 * a.heads_of_kv()) * a.head_size;
  if (args.dbias && p.group == 1 && a.batch * columns * 4 <= context.scratch_bytes) p.dbias_partials = context.scratch;
  const bool has_partials = backward_kernels(p, a.dtype, context);
  if (has_partials) {
    PartialSums sums{p.dbias_partials, a.batch, columns};
    sums.add(args.dbias, args.accumulate_dbias);
    launch_reduce_partials(sums, context);
  } else if (args.dbias) {
    // check_args() has verified that dq, dk and dv are the columns of one matrix, which starts at dq.
    launch_column_sums(Tensor{args.dq.data, a.dtype, {p.rows, columns}}, args.dbias, args.accumulate_dbias, context);
  }
  if (args.drelative) launch_relative_gradient(args, p, context);
}

}  // namespace blipft
