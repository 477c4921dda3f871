// One step of beam search.
#include <vector>

#include "cpu/cpu_ops.h"
#include "cpu/token_scores.h"
#include "ops/beam_search.h"
#include "ops/ops_check.h"

namespace blipft::cpu {
namespace {

/// Adds the candidates that row `row` of the logits gives for beam `beam` of a text. Returns false if no token can be
/// chosen.
bool add_candidates(const BeamStep& args, const BeamArrays& a, int64_t row, int64_t text, int64_t beam,
                    std::vector<BeamCandidate>& all) {
  const int64_t count = args.logits.cols(), slot = a.slot_of(text) + beam;
  float* scores = args.candidates.as<float>() + row * count;
  load(args.logits, row * count, count, scores);
  const LogSoftmax log_softmax(scores, count);
  if (!is_finite(log_softmax.largest)) return false;
  for (int64_t i = 0; i < count; ++i) scores[i] = log_softmax(scores[i]);
  apply_rules(a.rules, a.texts, slot, scores, count);
  const float before = args.first ? 0 : a.scores[slot];
  for (int64_t i = 0; i < count; ++i)
    all.push_back({scores[i] + before, static_cast<int32_t>(beam), static_cast<int32_t>(i)});
  return true;
}

void step_text(const BeamStep& args, const BeamArrays& a, int64_t first_row, int64_t text) {
  const int64_t length = a.texts.lengths[a.slot_of(text)];
  if (length >= a.texts.limit(a.slot_of(text))) return end_beams(a, text, kLengthReached);
  std::vector<BeamCandidate> all;
  for (int64_t b = 0; b < (args.first ? 1 : args.beams); ++b)
    if (!add_candidates(args, a, first_row + b, text, b, all)) return end_beams(a, text, kNoChoice);
  std::partial_sort(all.begin(), all.begin() + a.candidates, all.end(),
                    [](const BeamCandidate& x, const BeamCandidate& y) { return x.before(y); });
  BeamPlan plan;
  plan_beams(a, text, all.data(), length, plan);
  for (int64_t column = 0; column < std::max(a.texts.maximum, a.positions); ++column)
    move_beams(a, text, all.data(), length, plan, column);
  for (int64_t b = 0; b < a.beams; ++b) finish_beam(a, text, b, length, plan);
}

}  // namespace

void CpuOps::beam_step(const BeamStep& args, Stream) {
  check_args(args);
  const BeamArrays a = BeamArrays::of(args);
  const int64_t of_text = args.first ? 1 : args.beams;
  for_each(args.logits.rows() / of_text, [&](int64_t r) {
    const int64_t text = args.texts ? args.texts.as<const int32_t>()[r] : r;
    if (a.steps(text)) step_text(args, a, r * of_text, text);
  });
}

}  // namespace blipft::cpu
