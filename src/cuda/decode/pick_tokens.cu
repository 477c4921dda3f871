// Choice of the next token of each text, one block per row. It reads the row several times instead of sorting it and
// has bitwise the same results as the CPU backend.
#include "blipft/decode_ops.h"
#include "cuda/cuda_ops.h"
#include "cuda/decode/row.cuh"
#include "cuda/device/overlap.cuh"
#include "ops/ops_check.h"

namespace blipft {
namespace {

struct PickArgs {
  TextArrays texts;
  RuleArrays rules;
  const int32_t* slots;
  float *scores, *log_probs;
  int64_t count;                    ///< V
  uint64_t seed;
  int64_t top_k;
  float temperature, top_p, min_p;
};

/// Applies top-k, top-p and min-p: sets the scores of removed tokens to -inf.
__device__ void leave_out(const PickArgs& args, float* scores, float largest, RowShared& shared) {
  const int64_t count = args.count;
  const auto one = [](float) { return uint64_t{1}; };
  const auto weight = [=](float score) { return softmax_weight(score, largest); };
  uint32_t minimum = 0;                       // key of the worst score that is kept
  int64_t last_id = count - 1;              // last id with this score that is kept
  if (args.top_k > 0 && args.top_k < count)
    minimum = find_cut(scores, count, largest, static_cast<uint64_t>(args.top_k), shared, one).key;
  if (args.top_p < 1) {
    uint64_t total = 0;
    for_row(scores, count, [&](float score, int64_t) {
      if (score_key(score) >= minimum) total += weight(score);
    });
    const uint64_t limit = top_p_limit(args.top_p, block_sum(total, shared));
    const Cut cut = find_cut(scores, count, largest, limit, shared, weight);
    minimum = cut.key;
    const uint64_t each = weight(score_of(minimum)), ties = (limit - cut.above + each - 1) / each;
    last_id = last_tie(scores, count, minimum, ties, shared);
  }
  map_row(scores, scores, count, [&](float score, int64_t i) {
    const uint32_t key = score_key(score);
    const bool stays = (key > minimum || (key == minimum && i <= last_id)) &&
                       (score == largest || exp_of(score - largest) >= args.min_p);
    return stays ? score : -INFINITY;
  });
  __syncthreads();
}

/// One block per row.
template <class T, bool sample>
__global__ void __launch_bounds__(kRowThreads) pick_tokens_kernel(const T* __restrict__ all_logits, PickArgs args) {
  __shared__ RowShared shared;
  join_chain();
  const int64_t row = blockIdx.x, slot = args.slots ? args.slots[row] : row, count = args.count;
  if (slot < 0 || slot >= args.texts.slots || !args.texts.grows(slot)) return;
  const int32_t length = args.texts.lengths[slot];
  const bool full = length >= args.texts.limit(slot);
  __syncthreads();                          // all threads have read the text's state before it changes
  if (full) {
    if (threadIdx.x == 0) args.texts.done[slot] = kLengthReached;
    return;
  }
  const T* const logits = all_logits + row * count;
  float* const scores = args.scores + row * count;
  const uint64_t best_logit = best_of_row(logits, count, shared);
  const RowSoftmax log_softmax(logits, count, score_of_ranked(best_logit), shared);

  const bool barred = args.rules.end_count > 0 && args.rules.ends_barred(length, args.texts.prompt_lengths[slot]);
  const bool plain = !sample && args.rules.repetition_penalty == 1 && !barred;
  const auto score_of_logit = [&](float logit, bool penalised) {
    const float score = penalised ? args.rules.penalised(logit) : logit;
    return sample ? score / args.temperature : score;
  };
  uint64_t best = best_logit;
  if (!plain) {
    map_row(logits, scores, count, [&](float logit, int64_t) { return score_of_logit(logit, false); });
    apply_rules(args.rules, args.texts, slot, logits, scores, count, score_of_logit);
    best = best_of_row(scores, count, shared);
  }
  const float largest = score_of_ranked(best);
  if (!is_finite(log_softmax.largest) || !is_finite(largest)) {
    if (threadIdx.x == 0) args.texts.done[slot] = kNoChoice;
    return;
  }
  int64_t token = id_of_ranked(best);
  if constexpr (sample) {
    leave_out(args, scores, largest, shared);
    uint64_t weight = 0;
    for_row(scores, count, [&](float score, int64_t) { weight += softmax_weight(score, largest); });
    const uint64_t draw = token_draw(args.seed, args.texts.keys[slot], length - args.texts.prompt_lengths[slot]);
    const uint64_t chosen = scaled_down(draw, block_sum(weight, shared));
    token = find_id(count, chosen, shared, [&](int64_t i) { return softmax_weight(scores[i], largest); });
  }
  if (threadIdx.x != 0) return;
  args.log_probs[slot * args.texts.maximum + length] = log_softmax(to_float(logits[token]));
  append_token(args.texts, args.rules, slot, static_cast<int32_t>(token));
}

}  // namespace

void CudaOps::pick_tokens(const PickTokens& args, Stream stream) {
  check_args(args);
  if (args.logits.rows() == 0) return;
  const TokenRules& rules = args.rules;
  const PickArgs pick{.texts = TextArrays::of(args.state), .rules = RuleArrays::of(rules),
                      .slots = args.slots.as<const int32_t>(), .scores = args.scores.as<float>(),
                      .log_probs = args.log_probs.as<float>(), .count = args.logits.cols(), .seed = rules.seed,
                      .top_k = rules.top_k, .temperature = rules.temperature, .top_p = rules.top_p,
                      .min_p = rules.min_p};
  dispatch_float(args.logits.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    dispatch_bool(rules.sample, [&](auto sample) {
      launch_overlapped(pick_tokens_kernel<T, decltype(sample)::value>, blocks_of(args.logits.rows()), kRowThreads, 0,
                        context(stream), args.logits.as<const T>(), pick);
    });
  });
}

}  // namespace blipft
