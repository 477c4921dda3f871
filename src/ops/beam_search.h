// Bookkeeping of beam search, shared by both backends: which candidates continue, which are finished, and whether the
// text's search has ended. The rules are those of transformers' _beam_search (see BeamStep).
#pragma once

#include "ops/token_rules.h"

namespace blipft {

/// A possible continuation of one of a text's running beams: the beam, the next id, and the score of both.
struct BeamCandidate {
  float score;                  ///< sum of log probabilities
  int32_t beam, token;

  /// Candidates are ordered by score, and on ties by beam and id.
  BLIPFT_HOST_DEVICE bool before(const BeamCandidate& other) const {
    if (score != other.score) return score > other.score;
    return beam != other.beam ? beam < other.beam : token < other.token;
  }
};

constexpr float kNoBeamScore = -1e9f;  ///< the score of a missing beam

/// Raw pointers and sizes of a BeamStep.
struct BeamArrays {
  TextArrays texts;
  RuleArrays rules;
  float length_penalty;
  EarlyStopping early_stopping;
  bool first;
  int64_t beams, candidates, prefix_rows, positions;
  int32_t *sources, *ids_before, *sources_before;
  float *scores, *finished_scores;
  int32_t *finished_ids, *finished_lengths, *closed;

  static BeamArrays of(const BeamStep& args) {
    const RuleArrays rules = RuleArrays::of(args.rules);
    return {.texts = TextArrays::of(args.state), .rules = rules, .length_penalty = args.length_penalty,
            .early_stopping = args.early_stopping, .first = args.first, .beams = args.beams,
            .candidates = (rules.end_count > 1 ? 1 + rules.end_count : 2) * args.beams, .prefix_rows = args.prefix_rows,
            .positions = args.sources.cols(), .sources = args.sources.as<int32_t>(),
            .ids_before = args.ids_before.as<int32_t>(), .sources_before = args.sources_before.as<int32_t>(),
            .scores = args.scores.as<float>(), .finished_scores = args.finished_scores.as<float>(),
            .finished_ids = args.finished_ids.as<int32_t>(), .finished_lengths = args.finished_lengths.as<int32_t>(),
            .closed = args.closed.as<int32_t>()};
  }
  /// Returns the slot of the text's first beam, which is also its row of logits (after the first step, without
  /// BeamStep::texts).
  BLIPFT_HOST_DEVICE int64_t slot_of(int64_t text) const { return text * beams; }
  /// True if the text takes part in this step.
  BLIPFT_HOST_DEVICE bool steps(int64_t text) const {
    return text >= 0 && text * beams < texts.slots && texts.grows(slot_of(text));
  }
};

/// Result of one step for a text: the origins of its new running and finished beams.
struct BeamPlan {
  bool ended;
  int32_t end;                                     ///< a DecodeEnd
  BeamCandidate next[BeamStep::kMaxBeams];        ///< the running beams
  int32_t finished_from[BeamStep::kMaxBeams];     ///< old finished beam, or kMaxBeams + candidate
};

/// Plans the step of a text with `length` ids; `best` are its candidates in order. Updates the text's scalars and the
/// values of each beam; move_beams() then moves the rows of ids and sources.
BLIPFT_HOST_DEVICE void plan_beams(const BeamArrays& a, int64_t text, const BeamCandidate* best, int64_t length,
                                   BeamPlan& plan) {
  const int64_t first_slot = a.slot_of(text), beams = a.beams, prompt = a.texts.prompt_lengths[first_slot];
  float* scores = a.scores + first_slot;
  float* finished_scores = a.finished_scores + first_slot;
  int32_t* finished_lengths = a.finished_lengths + first_slot;
  const bool last = length + 1 >= a.texts.limit(first_slot);
  if (a.first) {
    a.closed[text] = 0;
    for (int64_t b = 0; b < beams; ++b) finished_scores[b] = kNoBeamScore, finished_lengths[b] = 0;
  }

  // The best candidates that do not end continue. At the limit none continues, and any candidates will do.
  int64_t running = 0;
  for (int64_t i = 0; i < a.candidates && running < beams; ++i)
    if (last || !a.rules.is_end(best[i].token)) plan.next[running++] = best[i];
  for (; running < beams; ++running) plan.next[running] = {kNoBeamScore, best[0].beam, best[0].token};
  for (int64_t b = 0; b < beams; ++b) scores[b] = plan.next[b].score;

  // Candidates among the first B that have ended join the finished beams.
  for (int64_t b = 0; b < beams; ++b) plan.finished_from[b] = static_cast<int32_t>(b);
  const bool full_before = finished_lengths[beams - 1] > 0;
  const bool takes = a.closed[text] == 0 && !(full_before && a.early_stopping == EarlyStopping::yes);
  const float factor = length_factor(length + 1 - prompt, a.length_penalty);
  for (int64_t i = 0; i < beams && takes; ++i) {
    if (!last && !a.rules.is_end(best[i].token)) continue;
    const float score = best[i].score / factor;
    int64_t rank = beams;
    while (rank > 0 && (finished_lengths[rank - 1] == 0 || score > finished_scores[rank - 1])) --rank;
    if (rank == beams) continue;
    for (int64_t b = beams - 1; b > rank; --b) {
      finished_scores[b] = finished_scores[b - 1], finished_lengths[b] = finished_lengths[b - 1];
      plan.finished_from[b] = plan.finished_from[b - 1];
    }
    finished_scores[rank] = score, finished_lengths[rank] = static_cast<int32_t>(length + 1);
    plan.finished_from[rank] = static_cast<int32_t>(BeamStep::kMaxBeams + i);
  }

  // Closes the text if the best running beam cannot beat the worst finished one under length_penalty.
  const bool full = finished_lengths[beams - 1] > 0;
  const bool hopes = a.early_stopping == EarlyStopping::never && a.length_penalty > 0;
  const int64_t longest = hopes ? a.texts.limit(first_slot) - prompt : length + 1 - prompt;
  if (full && !(scores[0] / length_factor(longest, a.length_penalty) > finished_scores[beams - 1])) a.closed[text] = 1;
  const bool ended = a.closed[text] != 0 || (full && a.early_stopping == EarlyStopping::yes);
  plan.ended = ended || last;
  plan.end = ended ? kEndToken : kLengthReached;
}

/// Moves column `column` of all rows of a text (ids, finished ids and sources) as planned. There are max(L, C) columns.
/// They are independent and may be moved in any order or concurrently.
BLIPFT_HOST_DEVICE void move_beams(const BeamArrays& a, int64_t text, const BeamCandidate* best, int64_t length,
                                   const BeamPlan& plan, int64_t column) {
  const int64_t first_slot = a.slot_of(text), beams = a.beams, maximum = a.texts.maximum;
  if (column <= length && column < maximum) {
    int32_t* ids = a.texts.ids + first_slot * maximum + column;
    int32_t* before = a.ids_before + first_slot * maximum + column;
    int32_t* finished = a.finished_ids + first_slot * maximum + column;
    for (int64_t b = 0; b < (a.first ? 1 : beams); ++b) before[b * maximum] = ids[b * maximum];
    const auto id_of = [&](const BeamCandidate& candidate) {
      return column == length ? candidate.token : before[candidate.beam * maximum];
    };
    for (int64_t b = 0; b < beams; ++b) ids[b * maximum] = id_of(plan.next[b]);
    for (int64_t b = beams - 1; b >= 0; --b) {  // finished beams only move to higher indices
      const int32_t from = plan.finished_from[b];
      if (from >= BeamStep::kMaxBeams) finished[b * maximum] = id_of(best[from - BeamStep::kMaxBeams]);
      else if (from != b) finished[b * maximum] = finished[from * maximum];
    }
  }
  const int64_t own = a.prefix_rows + length;       // position of the new ids, which each beam has in its slot
  if (column <= own && column < a.positions) {
    int32_t* sources = a.sources + first_slot * a.positions + column;
    int32_t* before = a.sources_before + first_slot * a.positions + column;
    for (int64_t b = 0; b < beams && !a.first; ++b) before[b * a.positions] = sources[b * a.positions];
    for (int64_t b = 0; b < beams; ++b)
      sources[b * a.positions] = column == own ? static_cast<int32_t>(first_slot + b)
                              : a.first     ? static_cast<int32_t>(first_slot)
                                            : before[plan.next[b].beam * a.positions];
  }
}

/// Updates the scalars of beam b's slot after the step.
BLIPFT_HOST_DEVICE void finish_beam(const BeamArrays& a, int64_t text, int64_t b, int64_t length,
                                    const BeamPlan& plan) {
  const int64_t first_slot = a.slot_of(text), slot = first_slot + b;
  if (a.first) {
    a.texts.prompt_lengths[slot] = a.texts.prompt_lengths[first_slot];
    a.texts.limits[slot] = a.texts.limits[first_slot];
    a.texts.keys[slot] = a.texts.keys[first_slot];
  }
  a.texts.lengths[slot] = static_cast<int32_t>(length + 1);
  a.texts.done[slot] = plan.ended ? plan.end : kRunning;
}

/// Ends a text that gets no token because it has reached its limit or because its logits allow no choice.
BLIPFT_HOST_DEVICE void end_beams(const BeamArrays& a, int64_t text, int32_t end) {
  const int64_t first_slot = a.slot_of(text);
  if (a.first) a.closed[text] = 0;
  for (int64_t b = 0; b < a.beams; ++b) {
    a.texts.done[first_slot + b] = end;
    if (a.first) a.finished_lengths[first_slot + b] = 0, a.finished_scores[first_slot + b] = kNoBeamScore;
  }
}

}  // namespace blipft
