// Arguments of the decoding ops: the KV cache, attention over it, and the choice of tokens.
//
// A slot is a batch index in which one text is generated. A decode step computes one row for every slot: the row of the
// last id of its text. Rows of empty or finished slots are computed too, and their results are undefined.
//
// Dimensions: S slots, C positions of a slot's cache, Q rows of a text before its first id (image features), L maximum
// number of ids of a text (C = Q + L), V vocabulary, B beams of a text, G texts, K heads of keys and values, D head
// size.
#pragma once

#include "blipft/choices.h"
#include "blipft/ops.h"

namespace blipft {

/// generate.early_stopping of beam search, with the meaning of transformers' generate().
enum class EarlyStopping { no, yes, never };
BLIPFT_CHOICE_WORDS(EarlyStopping, "false", "true", "never");

/// The texts in the slots. Id i of a text has position Q + i in the cache.
struct DecodeState {
  Tensor ids;                   ///< i32 [S, L]: prompt and generated ids
  Tensor lengths;               ///< i32 [S]: number of ids; 0: the slot is empty
  Tensor prompt_lengths;        ///< i32 [S]: number of ids of the prompt
  Tensor limits;                ///< i32 [S]: maximum number of ids of the text; at most L
  Tensor keys;                  ///< i64 [S]: number of the text; key of its random draws
  Tensor done;                  ///< i32 [S]: a DecodeEnd
};
/// kStopped: stopped by the host. kNoChoice: the largest logit is not finite (a logit is NaN or +inf, or all logits
/// that are not barred ends are -inf); no token was appended.
enum DecodeEnd : int32_t { kRunning = 0, kEndToken = 1, kLengthReached = 2, kStopped = 3, kNoChoice = 4 };

/// Starts texts in their slots from their prompts; other slots do not change. Text g has slots g * B to g * B + B - 1,
/// which all start with the same state. The cache of the first of them holds the prompt and is the source of all their
/// positions.
struct BeginTexts {
  int64_t beams = 1;            ///< B
  Tensor texts;                 ///< i32 [R]: the text that each prompt starts, without duplicates; negative: none
  Tensor ids;                   ///< i32 [R, T]: ids of each prompt, followed by undefined values
  Tensor lengths;               ///< i32 [R]: number of ids, 1 to L
  Tensor limits;                ///< i32 [R]
  Tensor keys;                  ///< i64 [R]
  Tensor memory_rows;           ///< i32 [R], optional: number of encoder rows of each prompt
  Tensor deltas;                ///< i32 [R], optional: difference between rotary and cache position of new tokens
  DecodeState state;            ///< in and out
  Tensor memory_lengths;        ///< i32 [S], in and out: memory_rows of the text in each slot; goes with memory_rows
  Tensor slot_deltas;           ///< i32 [S], in and out: `deltas` of the text in each slot; goes with deltas
  Tensor sources;               ///< i32 [S, C], in and out: see AttentionDecode. Optional, together with all below
  Tensor finished_lengths;      ///< i32 [G, B], in and out: set to 0
  Tensor finished_scores;       ///< f32 [G, B], in and out: set to the score of missing beams
  Tensor closed;                ///< i32 [G], in and out: set to 0
};

/// Input rows of the next decode step. An empty or finished slot gets token 0, position -1 and cache length 0.
struct NextRows {
  DecodeState state;
  int64_t prefix_rows = 0;      ///< Q
  Tensor slot_deltas;           ///< i32 [S], optional: see BeginTexts
  Tensor tokens;                ///< i32 [S, 1], out: the last id
  Tensor positions;                ///< i32 [S], out: cache position of the last id
  Tensor cache_lengths;         ///< i32 [S], out: number of cache positions that it sees, its own included
  Tensor rotary_positions;      ///< i32 [S], out: position plus slot_deltas; 0 in an empty or finished slot. Goes with
                                ///< slot_deltas
};

/// Keys (after norm and rotary embedding) and values of one layer; position p of slot s is row s * C + p.
struct KvCache {
  Tensor keys, values;          ///< [S * C, K * D]
  int64_t positions = 0;           ///< C
};

/// Copies rows of keys and values into the cache.
struct CacheWrite {
  MatrixView k, v;              ///< [M, K * D]
  Rotary rotary = {};           ///< optional: first rotates its x in place; k must be the last columns of this x
  Tensor slots;                 ///< i32 [M], slot of each row; absent: row r belongs to slot r
  Tensor positions;                ///< i32 [M], cache position of each row; negative: the row is skipped
  KvCache cache;                ///< out
};

/// y = x w^T + bias + residual for few rows x, where w [N, K] is quantized and decoded only in registers. The preceding
/// op in the stream must not write w.
struct CodedLinear {
  MatrixView x;                 ///< [M, K], K a multiple of the book's block
  Quantized w;                  ///< nf4 or int8, of N * K numbers, without `outer`
  Tensor bias;                  ///< [N], optional
  MatrixView residual;          ///< [M, N], optional, may be y itself
  MatrixView y;                 ///< [M, N], out
};

/// Attention of one query per slot to its cache positions: out = softmax(scale q k^T + relative) v over the first
/// lengths[s] positions, or with a window the last `window` of them; 0 if there are none. Long texts are split over the
/// device's multiprocessors. The cache may have more slots than there are queries, and with `sources` also fewer.
struct AttentionDecode {
  MatrixView q;                 ///< [S, heads * D], columns of a wider matrix
  int64_t heads = 0, kv_heads = 0, head_size = 0;
  float scale = 1;
  int64_t window = 0;           ///< as in AttentionForward
  float cap = 0;                ///< as in AttentionForward
  RelativeScores relative;      ///< as in AttentionForward; the position of the query is lengths[s] - 1
  Tensor lengths;               ///< i32 [S]
  Tensor sources;               ///< i32 [S, C], optional: the slot whose cache holds each position of this slot (beams
                                ///< share their beginnings); absent: the slot itself
  int64_t sharing = 1;          ///< divisor of S: groups of this many consecutive slots mostly see the same cache
                                ///< positions (the beams of a text). It affects speed and the rounding of sums
  KvCache cache;
  Tensor out;                   ///< [S, heads * D], out
};

/// How the next token is chosen from its logits. The rules are applied in the order of transformers: repetition
/// penalty; end tokens barred before min_new_tokens new ids and before min_length ids including the prompt; then, only
/// with `sample`, temperature, top-k, top-p, min-p and one random draw. Without `sample`: the largest logit, the lowest
/// id on ties.
struct TokenRules {
  bool sample = false;
  uint64_t seed = 0;            ///< a draw depends only on seed, the text's key and the index of the new token
  float temperature = 1;        ///< > 0
  int64_t top_k = 0;            ///< 0: all; removes scores below the k-th largest, keeps ties
  float top_p = 1;              ///< 1: all; keeps the token that crosses p
  float min_p = 0;              ///< 0: all; removes tokens below min_p times the largest probability
  float repetition_penalty = 1; ///< applied to ids that the text contains, prompt included
  int64_t min_new_tokens = 0, min_length = 0;
  Tensor ends;                  ///< i32 [E], optional: ids that end a text
};

/// Chooses the next token of texts, appends it and marks the texts that are done. Empty and finished slots do not
/// change; a text that has reached its limit gets no token and is marked as done. Each slot has at most one row. Both
/// backends choose bitwise the same tokens for the same logits: equal scores are ordered by id.
struct PickTokens {
  Tensor logits;                ///< [R, V], compute dtype
  Tensor slots;                 ///< i32 [R], optional: slot of each row, negative: none; absent: row r is of slot r
  TokenRules rules;
  Tensor scores;                ///< f32 [R, V]: with `sample` an output: scores after the rules of rows that got a
                                ///< token, -inf for removed tokens; without `sample` scratch
  DecodeState state;            ///< in and out
  Tensor log_probs;             ///< f32 [S, L], out, at the position of the new id: log softmax of the original logits
};

/// One step of beam search, as in transformers' generate() (_beam_search of releases 4.57 and 5). Slots g * B to g * B
/// + B - 1 hold the running beams of text g, best first. Before the first step only slot g * B holds the prompt, in its
/// ids and in its cache; the first step fills the other slots and initializes scores, finished_* and closed. A text
/// ends when it is closed, when B beams are finished if early_stopping is `yes` (both kEndToken), or at its limit
/// (kLengthReached); its results are its finished beams. Equal scores are ordered by beam and id, so that both backends
/// choose the same.
/// Limits: B <= kMaxBeams; the number of candidates of a text, max(2, 1 + E) B, is <= kMaxCandidates and <= V.
struct BeamStep {
  static constexpr int64_t kMaxBeams = 32, kMaxCandidates = 256;
  Tensor logits;                ///< [R * B, V], compute dtype; in the first step, after the prompt, [R, V]
  bool first = false;
  Tensor texts;                 ///< i32 [R], optional: the text of each row (of each B rows after the first step),
                                ///< negative: none; absent: row r belongs to text r
  int64_t beams = 1;            ///< B
  TokenRules rules;             ///< only repetition penalty, ends and minimum lengths; applied to log probabilities
  float length_penalty = 1;
  EarlyStopping early_stopping = EarlyStopping::no;
  int64_t prefix_rows = 0;      ///< Q
  Tensor candidates;            ///< f32 [R * B, V], scratch
  DecodeState state;            ///< in and out. `done` of a text's slots is set when its search ends
  Tensor sources;               ///< i32 [S, C], in and out: see AttentionDecode
  Tensor ids_before, sources_before;  ///< i32 [S, L] and [S, C], scratch
  Tensor scores;                ///< f32 [G, B], in and out: sums of log probabilities of the running beams
  Tensor finished_ids;          ///< i32 [G, B, L], in and out: prompt and generated ids, best first
  Tensor finished_lengths;      ///< i32 [G, B], in and out: lengths of finished_ids; 0: no beam
  Tensor finished_scores;       ///< f32 [G, B], in and out: scores of the finished beams, with length_penalty
  Tensor closed;                ///< i32 [G], in and out: 1 if no running beam can still beat the finished ones
};

}  // namespace blipft
