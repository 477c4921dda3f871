// Choice of the next token of each text.
#include <limits>
#include <numeric>
#include <vector>

#include "cpu/cpu_ops.h"
#include "cpu/token_scores.h"
#include "ops/ops_check.h"

namespace blipft::cpu {
namespace {

constexpr float kOut = -std::numeric_limits<float>::infinity();  ///< the score of a removed token

/// Applies top-k, top-p and min-p: sets the scores of removed tokens to -inf. `largest` is the largest score.
void leave_out(const TokenRules& rules, float largest, float* scores, int64_t count) {
  std::vector<int32_t> order(static_cast<size_t>(count));  // best first, ties by id
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return scores[a] > scores[b]; });
  int64_t kept = count;
  if (rules.top_k > 0 && rules.top_k < count) {
    const float minimum = scores[order[static_cast<size_t>(rules.top_k - 1)]];
    while (scores[order[static_cast<size_t>(kept - 1)]] < minimum) --kept;
  }
  const auto weight = [&](int64_t i) { return softmax_weight(scores[order[static_cast<size_t>(i)]], largest); };
  if (rules.top_p < 1) {
    uint64_t total = 0, before = 0;
    for (int64_t i = 0; i < kept; ++i) total += weight(i);
    const uint64_t limit = top_p_limit(rules.top_p, total);
    int64_t within = 0;
    for (; within < kept && before < limit; ++within) before += weight(within);
    kept = within;
  }
  for (int64_t i = 1; i < count; ++i) {
    float& score = scores[order[static_cast<size_t>(i)]];
    if (i >= kept || exp_of(score - largest) < rules.min_p) score = kOut;
  }
}

/// Returns the token that the random number `draw` selects.
int32_t drawn(const float* scores, float largest, int64_t count, uint64_t draw) {
  uint64_t total = 0, before = 0;
  for (int64_t i = 0; i < count; ++i) total += softmax_weight(scores[i], largest);
  const uint64_t chosen = scaled_down(draw, total);
  int64_t i = 0;
  while (before += softmax_weight(scores[i], largest), before <= chosen) ++i;
  return static_cast<int32_t>(i);
}

void pick_token(const PickTokens& args, int64_t row, int64_t slot) {
  const TextArrays texts = TextArrays::of(args.state);
  const RuleArrays rules = RuleArrays::of(args.rules);
  if (!texts.grows(slot)) return;
  const int64_t count = args.logits.cols(), length = texts.lengths[slot], prompt = texts.prompt_lengths[slot];
  if (length >= texts.limit(slot)) {
    texts.done[slot] = kLengthReached;
    return;
  }
  float* scores = args.scores.as<float>() + row * count;
  load(args.logits, row * count, count, scores);
  const LogSoftmax logits(scores, count);
  apply_rules(rules, texts, slot, scores, count);
  if (args.rules.sample)
    for (int64_t i = 0; i < count; ++i) scores[i] /= args.rules.temperature;
  const float largest = largest_score(scores, count);
  if (!is_finite(logits.largest) || !is_finite(largest)) {
    texts.done[slot] = kNoChoice;
    return;
  }
  auto token = static_cast<int32_t>(std::max_element(scores, scores + count) - scores);  // the lowest id on ties
  if (args.rules.sample) {
    leave_out(args.rules, largest, scores, count);
    token = drawn(scores, largest, count, token_draw(args.rules.seed, texts.keys[slot], length - prompt));
  }
  float logit = 0;
  load(args.logits, row * count + token, 1, &logit);
  args.log_probs.as<float>()[slot * texts.maximum + length] = logits(logit);
  append_token(texts, rules, slot, token);
}

}  // namespace

void CpuOps::pick_tokens(const PickTokens& args, Stream) {
  check_args(args);
  const TextArrays texts = TextArrays::of(args.state);
  for_each(args.logits.rows(), [&](int64_t row) {
    const int64_t slot = args.slots ? args.slots.as<const int32_t>()[row] : row;
    if (slot >= 0 && slot < texts.slots) pick_token(args, row, slot);
  });
}

}  // namespace blipft::cpu
