// The rules that choose tokens and the code that appends a token to its text, shared by both backends.
#pragma once

#include "blipft/decode_ops.h"
#include "ops/token_math.h"

namespace blipft {

/// Raw pointers and sizes of a DecodeState.
struct TextArrays {
  int32_t *ids, *lengths, *prompt_lengths, *limits, *done;
  int64_t* keys;
  int64_t slots, maximum;

  static TextArrays of(const DecodeState& state) {
    return {.ids = state.ids.as<int32_t>(), .lengths = state.lengths.as<int32_t>(),
            .prompt_lengths = state.prompt_lengths.as<int32_t>(), .limits = state.limits.as<int32_t>(),
            .done = state.done.as<int32_t>(), .keys = state.keys.as<int64_t>(), .slots = state.lengths.numel(),
            .maximum = state.ids.cols()};
  }
  BLIPFT_HOST_DEVICE bool grows(int64_t slot) const { return lengths[slot] > 0 && done[slot] == kRunning; }
  /// Returns the length at which the text ends.
  BLIPFT_HOST_DEVICE int64_t limit(int64_t slot) const { return limits[slot] < maximum ? limits[slot] : maximum; }
};

/// The part of TokenRules that kernels use.
struct RuleArrays {
  float repetition_penalty;
  int64_t min_new_tokens, min_length;
  const int32_t* ends;
  int64_t end_count;

  static RuleArrays of(const TokenRules& rules) {
    return {rules.repetition_penalty, rules.min_new_tokens, rules.min_length, rules.ends.as<const int32_t>(),
            rules.ends ? rules.ends.numel() : 0};
  }
  /// Returns the penalized score of an id that the text contains.
  BLIPFT_HOST_DEVICE float penalised(float score) const {
    return score < 0 ? rounded_product(score, repetition_penalty) : score / repetition_penalty;
  }
  /// True if the next token must not be an end token.
  BLIPFT_HOST_DEVICE bool ends_barred(int64_t length, int64_t prompt_length) const {
    return length < min_length || length - prompt_length < min_new_tokens;
  }
  BLIPFT_HOST_DEVICE bool is_end(int32_t token) const {
    for (int64_t i = 0; i < end_count; ++i)
      if (ends[i] == token) return true;
    return false;
  }
};

/// Returns the total weight at which top-p stops: a token is kept if the weights of the tokens before it sum to less.
/// The value is at least 1, so that the first token is kept.
BLIPFT_HOST_DEVICE uint64_t top_p_limit(float top_p, uint64_t total) {
  const auto limit = static_cast<uint64_t>(static_cast<double>(top_p) * static_cast<double>(total));
  return limit > 0 ? limit : 1;
}

/// Appends the token to the text in `slot`.
BLIPFT_HOST_DEVICE void append_token(const TextArrays& texts, const RuleArrays& rules, int64_t slot, int32_t token) {
  const int32_t length = texts.lengths[slot];
  texts.ids[slot * texts.maximum + length] = token;
  texts.lengths[slot] = length + 1;
  if (rules.is_end(token)) texts.done[slot] = kEndToken;
  else if (length + 1 >= texts.limit(slot)) texts.done[slot] = kLengthReached;
}

}  // namespace blipft
