// Arguments of the attention_decode kernels and the relative bias of a score.
#pragma once

#include "blipft/decode_ops.h"
#include "cuda/kernels.h"
#include "cuda/vector.cuh"

namespace blipft {

constexpr float kLog2E = 1.4426950408889634f;

struct DecodeArgs {
  const void *q, *keys, *values;
  void* out;
  const int32_t *lengths, *sources;
  float* partials;                  ///< [slots * heads, splits, d + 2]: maximum, sum, weighted sum of values
  unsigned* counters;               ///< [blocks of one share], zero: number of finished shares
  int64_t q_stride, positions, window;
  int heads, kv_heads, d, splits, group, parts;  ///< `parts` blocks share the `group` query heads of one key head
  float scale, cap;
  const float* relative;            ///< [heads, behind + 1 + ahead] or null: RelativeScores
  int behind, ahead;
  int sharing;                      ///< as in AttentionDecode

  /// Returns the first position that a query sees if its positions end at `end`.
  __device__ __forceinline__ int first_position(int end) const {
    return window > 0 && window < end ? end - static_cast<int>(window) : 0;
  }
  /// Returns the bias of head h for a key that is `offset` positions after the query.
  __device__ __forceinline__ float relative_score(int h, int offset) const {
    const int column = min(max(offset, -behind), ahead) + behind;
    return relative[int64_t{h} * (behind + 1 + ahead) + column];
  }
};

/// Returns the arguments of the op, with one part and one share.
inline DecodeArgs decode_args(const AttentionDecode& op) {
  DecodeArgs args{};
  args.q = op.q.data, args.keys = op.cache.keys.data, args.values = op.cache.values.data, args.out = op.out.data;
  args.lengths = op.lengths.as<const int32_t>(), args.sources = op.sources.as<const int32_t>();
  args.q_stride = op.q.row_stride, args.positions = op.cache.positions, args.window = op.window;
  args.heads = static_cast<int>(op.heads), args.kv_heads = static_cast<int>(op.kv_heads);
  args.d = static_cast<int>(op.head_size), args.group = args.heads / args.kv_heads;
  args.splits = args.parts = 1;
  args.scale = op.scale, args.cap = op.cap;
  args.relative = op.relative.values.as<const float>();
  args.behind = static_cast<int>(op.relative.behind), args.ahead = static_cast<int>(op.relative.ahead);
  args.sharing = static_cast<int>(op.sharing);
  return args;
}

/// Runs attention_decode in bf16 if slots share positions, which are then read once, or if there are many slots with
/// few positions (shared_attention.cu). Returns false, without doing anything, for other ops.
bool launch_shared_decode(const AttentionDecode& op, const LaunchContext& launch);

}  // namespace blipft
