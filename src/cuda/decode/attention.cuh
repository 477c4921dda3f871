// What the kernels of attention_decode share: its arguments, and what is added to a score.
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
  float* partials;                  ///< [slots * heads, splits, d + 2]: maximum, sum, and sum of weighted values
  unsigned* counters;               ///< [blocks of one share], zero: how many shares have ended
  int64_t q_stride, places, window;
  int heads, kv_heads, d, splits, group, parts;  ///< `parts` blocks share the `group` heads of queries of one of keys
  float scale, cap;
  const float* relative;            ///< [heads, behind + 1 + ahead] or null: RelativeScores
  int behind, ahead;
  int sharing;                      ///< AttentionDecode's

  /// The first place that a query sees whose places end at `end`.
  __device__ __forceinline__ int first_place(int end) const {
    return window > 0 && window < end ? end - static_cast<int>(window) : 0;
  }
  /// What head h adds to the score of a key that lies `offset` places after the query.
  __device__ __forceinline__ float relative_score(int h, int offset) const {
    const int column = min(max(offset, -behind), ahead) + behind;
    return relative[int64_t{h} * (behind + 1 + ahead) + column];
  }
};

/// The op's own, one part and one share.
inline DecodeArgs decode_args(const AttentionDecode& op) {
  DecodeArgs args{};
  args.q = op.q.data, args.keys = op.cache.keys.data, args.values = op.cache.values.data, args.out = op.out.data;
  args.lengths = op.lengths.as<const int32_t>(), args.sources = op.sources.as<const int32_t>();
  args.q_stride = op.q.row_stride, args.places = op.cache.places, args.window = op.window;
  args.heads = static_cast<int>(op.heads), args.kv_heads = static_cast<int>(op.kv_heads);
  args.d = static_cast<int>(op.head_size), args.group = args.heads / args.kv_heads;
  args.splits = args.parts = 1;
  args.scale = op.scale, args.cap = op.cap;
  args.relative = op.relative.values.as<const float>();
  args.behind = static_cast<int>(op.relative.behind), args.ahead = static_cast<int>(op.relative.ahead);
  args.sharing = static_cast<int>(op.sharing);
  return args;
}

/// attention_decode in bf16 of many slots that share places, each read once, or have few (shared_attention.cu). False: not for this
/// op, and nothing was done.
bool launch_shared_decode(const AttentionDecode& op, const LaunchContext& launch);

}  // namespace blipft
