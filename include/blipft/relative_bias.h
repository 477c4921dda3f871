// Relative position bias of T5 (Raffel et al. 2020): a learned number for each head and each bucket of distances, added
// to the attention scores. Near distances have one bucket each; far distances share buckets.
#pragma once

#include "blipft/ops.h"

namespace blipft {

/// Converts between the table of buckets and the scores that attention adds. Forward: scores.values[h, c] =
/// table[bucket, h] for the offset o = c - behind (key position minus query position). Backward: table[bucket, h] (+)=
/// the sum of scores.values over the offsets of the bucket, in f32.
/// The bucket of o is the last k with first[k] <= |o|, plus `directed` if o > 0.
struct RelativeBias {
  static constexpr int64_t kMaxBuckets = 128;
  Tensor table;                 ///< [buckets, heads]; in backward a parameter gradient, out
  int64_t directed = 0;         ///< number of separate buckets for keys after the query, equal to `distances`; 0: both
                                ///< directions share buckets
  int64_t distances = 0;        ///< number of buckets of one direction, at most kMaxBuckets
  int32_t first[kMaxBuckets] = {};  ///< smallest distance of each bucket, ascending from 0
  RelativeScores scores;        ///< out; in backward the gradient
  bool accumulate = false;      ///< backward only

  int64_t buckets() const { return distances + directed; }
};

/// Returns the bucket of an offset; used by both backends.
inline int64_t relative_bucket(const int32_t* first, int64_t distances, int64_t directed, int64_t offset) {
  const int64_t distance = offset < 0 ? -offset : offset;
  int64_t bucket = distances - 1;
  while (bucket > 0 && first[bucket] > distance) --bucket;
  return bucket + (offset > 0 ? directed : 0);
}

}  // namespace blipft
