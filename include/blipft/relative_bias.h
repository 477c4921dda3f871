// Relative positions as T5 has them (Raffel et al. 2020): a learned number for each head and each bucket of distances, added
// to attention's scores. Near distances have buckets of their own, far ones share them.
#pragma once

#include "blipft/ops.h"

namespace blipft {

/// Between the table of buckets and what attention adds to its scores. Forward: scores.values[h, c] = table[bucket, h] of
/// the offset o = c - behind, key minus query. Backward: table[bucket, h] (+)= the sum of scores.values over the offsets of
/// that bucket, in f32.
/// The bucket of o is the last k with first[k] <= |o|, plus `directed` where o > 0.
struct RelativeBias {
  static constexpr int64_t kMostBuckets = 128;
  Tensor table;                 ///< [buckets, heads]; in backward a parameter gradient, out
  int64_t directed = 0;         ///< buckets of keys ahead come behind as many of keys at and behind the query; 0: all share
  int64_t distances = 0;        ///< of `first`: buckets of one direction, at most kMostBuckets
  int32_t first[kMostBuckets] = {};  ///< the least distance of each, ascending from 0
  RelativeScores scores;        ///< out; in backward the gradient
  bool accumulate = false;      ///< backward only

  int64_t buckets() const { return distances + directed; }
};

/// The bucket of an offset, for both backends.
inline int64_t relative_bucket(const int32_t* first, int64_t distances, int64_t directed, int64_t offset) {
  const int64_t distance = offset < 0 ? -offset : offset;
  int64_t bucket = distances - 1;
  while (bucket > 0 && first[bucket] > distance) --bucket;
  return bucket + (offset > 0 ? directed : 0);
}

}  // namespace blipft
