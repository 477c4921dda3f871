// Operations on a row of logits that token selection and beam search share.
#pragma once

#include <algorithm>
#include <limits>

#include "ops/token_rules.h"

namespace blipft::cpu {

/// Returns the largest score, or NaN if a score is NaN.
inline float largest_score(const float* scores, int64_t count) {
  uint32_t key = 0;
  for (int64_t i = 0; i < count; ++i) key = std::max(key, score_key(scores[i]));
  return score_of(key);
}

/// Log softmax of a row of logits; it is undefined if the largest logit is not finite.
struct LogSoftmax {
  float largest, log_total;

  LogSoftmax(const float* logits, int64_t count) : largest(largest_score(logits, count)), log_total(0) {
    uint64_t total = 0;
    for (int64_t i = 0; i < count && is_finite(largest); ++i) total += softmax_weight(logits[i], largest);
    if (total > 0) log_total = log_of_weights(total);
  }
  float operator()(float logit) const { return (logit - largest) - log_total; }
};

/// Applies the repetition penalty and the bar on end tokens for the text in `slot`.
inline void apply_rules(const RuleArrays& rules, const TextArrays& texts, int64_t slot, float* scores, int64_t count) {
  const int32_t* ids = texts.ids + slot * texts.maximum;
  const int32_t length = texts.lengths[slot];
  const auto seen_before = [&](int32_t i) { return std::find(ids, ids + i, ids[i]) != ids + i; };
  if (rules.repetition_penalty != 1)
    for (int32_t i = 0; i < length; ++i)
      if (ids[i] >= 0 && ids[i] < count && !seen_before(i)) scores[ids[i]] = rules.penalised(scores[ids[i]]);
  if (!rules.ends_barred(length, texts.prompt_lengths[slot])) return;
  for (int64_t i = 0; i < rules.end_count; ++i)
    if (rules.ends[i] >= 0 && rules.ends[i] < count)
      scores[rules.ends[i]] = -std::numeric_limits<float>::infinity();
}

}  // namespace blipft::cpu
