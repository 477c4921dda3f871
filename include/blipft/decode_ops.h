// Arguments of the ops that decoding adds: the cache of keys and values, attention over it, and the choice of tokens.
//
// A slot is a place of the batch in which one text grows. A decode step computes one row of every slot: the last id of
// its text. Rows of slots that are empty or done are computed and mean nothing.
//
// Dimension legend: S slots, C places of a slot's cache, Q rows of a text before its first id (a picture's), L most ids
// of a text (C = Q + L), V vocabulary, B beams of a text, G texts, K heads of keys and values of size D.
#pragma once

#include "blipft/choices.h"
#include "blipft/ops.h"

namespace blipft {

/// The texts in the slots. Id i of a text has place Q + i in the cache.
struct DecodeState {
  Tensor ids;                   ///< i32 [S, L]: prompt and generated ids
  Tensor lengths;               ///< i32 [S]: how many ids there are; 0: the slot is empty
  Tensor prompt_lengths;        ///< i32 [S]: how many of them are the prompt's
  Tensor limits;                ///< i32 [S]: the length at which a text ends; at most L
  Tensor keys;                  ///< i64 [S]: number of the text, which keys its random draws
  Tensor done;                  ///< i32 [S]: a DecodeEnd
};
/// kStopped: by the host. kNoChoice: the largest logit was no finite number (a NaN or +inf among them, or nothing above
/// -inf once the ends were barred): nothing was appended.
enum DecodeEnd : int32_t { kRunning = 0, kEndToken = 1, kLengthReached = 2, kStopped = 3, kNoChoice = 4 };

/// Begins texts in their slots, as their prompts say; other slots stay as they are. Text g has slots g * B to
/// g * B + B - 1, which all begin alike. Its prompt lies in the cache of the first one, the source of all their places.
struct BeginTexts {
  int64_t beams = 1;            ///< B
  Tensor texts;                 ///< i32 [R]: the text that each prompt begins, negative: none; none of them twice
  Tensor ids;                   ///< i32 [R, T]: ids of each prompt; behind them anything
  Tensor lengths;               ///< i32 [R]: how many ids there are, 1 to L
  Tensor limits;                ///< i32 [R]
  Tensor keys;                  ///< i64 [R]
  Tensor memory_rows;           ///< i32 [R], optional: rows that an encoder made of each prompt
  DecodeState state;            ///< in and out
  Tensor memory_lengths;        ///< i32 [S], in and out: memory_rows of a slot's text; goes with memory_rows
  Tensor sources;               ///< i32 [S, C], in and out: see AttentionDecode. Optional, as all below: they go together
  Tensor finished_lengths;      ///< i32 [G, B], in and out: begins as 0
  Tensor finished_scores;       ///< f32 [G, B], in and out: begins as the score of beams that there are not
  Tensor closed;                ///< i32 [G], in and out: begins as 0
};

/// What the next decode step reads. Of a slot that is empty or done, token 0, place -1 and no places.
struct NextRows {
  DecodeState state;
  int64_t prefix_rows = 0;      ///< Q
  Tensor tokens;                ///< i32 [S, 1], out: the last id
  Tensor places;                ///< i32 [S], out: its place
  Tensor cache_lengths;         ///< i32 [S], out: places that it sees, its own among them
};

/// Keys, after norm and rotation, and values of one layer: row slot * C + place of each.
struct KvCache {
  Tensor keys, values;          ///< [S * C, K * D]
  int64_t places = 0;           ///< C
};

/// Copies rows of keys and values into the cache.
struct CacheWrite {
  MatrixView k, v;              ///< [M, K * D]
  Rotary rotary = {};           ///< optional: turns its x first, in place, of which k is the last columns
  Tensor slots;                 ///< i32 [M], of each row; absent: row r is of slot r
  Tensor places;                ///< i32 [M], of each row; negative: the row is left out
  KvCache cache;                ///< out
};

/// y = x w^T + bias + residual of a few rows x, where w [N, K] is stored as codes, which are read and never decoded
/// into memory. Nothing in the stream's last op writes w.
struct CodedLinear {
  MatrixView x;                 ///< [M, K], K a multiple of the book's block
  Quantized w;                  ///< nf4 or int8, of N * K numbers, without `outer`
  Tensor bias;                  ///< [N], optional
  MatrixView residual;          ///< [M, N], optional, may be y itself
  MatrixView y;                 ///< [M, N], out
};

/// Attention of one query a slot to its places of the cache: out = softmax(scale q k^T + relative) v over the first lengths[s]
/// places, of which with a window the last `window`; zeros where there are none. Long texts are cut over the device's
/// processors. The cache may have more slots than there are queries, and with `sources` fewer.
struct AttentionDecode {
  MatrixView q;                 ///< [S, heads * D], columns of a wider matrix
  int64_t heads = 0, kv_heads = 0, head_size = 0;
  float scale = 1;
  int64_t window = 0;           ///< as in AttentionForward
  float cap = 0;                ///< as in AttentionForward
  RelativeScores relative;      ///< as in AttentionForward; the query's place is lengths[s] - 1
  Tensor lengths;               ///< i32 [S]
  Tensor sources;               ///< i32 [S, C], optional: the slot in whose cache a place of this slot lies (beams that
                                ///< share their beginning); absent: its own
  int64_t sharing = 1;          ///< so many slots, one behind the other, mostly see the same places, as a text's beams:
                                ///< changes how fast it is and how sums are rounded. A divisor of S
  KvCache cache;
  Tensor out;                   ///< [S, heads * D], out
};

/// How the next token follows from its logits, in the order in which transformers applies it: repetition penalty, ends
/// barred before min_new_tokens (and before min_length ids in all, the prompt's among them), and then, only with
/// `sample`, temperature, top-k, top-p, min-p and one draw. Without `sample`: the largest logit, the lowest id of equal
/// ones.
struct TokenRules {
  bool sample = false;
  uint64_t seed = 0;            ///< a draw depends on seed, the text's key and the number of the new token alone
  float temperature = 1;        ///< > 0
  int64_t top_k = 0;            ///< 0: all; scores below the k-th go, equal ones stay
  float top_p = 1;              ///< 1: all; the token that crosses p stays
  float min_p = 0;              ///< 0: all; tokens of less than min_p times the largest probability go
  float repetition_penalty = 1; ///< of ids that the text has so far, its prompt's too
  int64_t min_new_tokens = 0, min_length = 0;
  Tensor ends;                  ///< i32 [E], optional: ids that end a text
};

/// Chooses the next token of texts, appends it and notes which of them are done. Texts that are empty or done stay; one
/// that has as many ids as it may gets none and is done. Each slot has one row at most. Both backends choose the same
/// tokens of the same logits, to the bit: tokens of equal scores are taken in the order of their ids.
struct PickTokens {
  Tensor logits;                ///< [R, V], compute dtype
  Tensor slots;                 ///< i32 [R], optional: the slot of each row, negative: none; absent: row r is of slot r
  TokenRules rules;
  Tensor scores;                ///< f32 [R, V]: with `sample` out: what the rules left of the rows that got a token,
                                ///< -inf of tokens that are left out; else scratch
  DecodeState state;            ///< in and out
  Tensor log_probs;             ///< f32 [S, L], out, at the new id's place: log softmax of the logits as they came
};

/// One step of beam search, as transformers' generate() does it (_beam_search of releases 4.57 and 5). Slots g * B to
/// g * B + B - 1 hold the running beams of text g, best first. Before the first step slot g * B alone has the prompt,
/// in its ids and in its cache: the step makes the others, and begins scores, finished_* and closed.
/// A text ends when it is closed, where early_stopping is `yes` when B beams are finished (kEndToken), and at its limit
/// (kLengthReached); what it gave are its finished beams. Equal scores are taken in the order of beam and id; both
/// backends choose alike.
/// Limits: B <= kMostBeams; the candidates of a text, max(2, 1 + E) B, <= kMostCandidates and <= V.
struct BeamStep {
  static constexpr int64_t kMostBeams = 32, kMostCandidates = 256;
  Tensor logits;                ///< [R * B, V], compute dtype; in the first step, after the prompt, [R, V]
  bool first = false;
  Tensor texts;                 ///< i32 [R], optional: the text of each row (of B rows, after the first step),
                                ///< negative: none; absent: row r is of text r
  int64_t beams = 1;            ///< B
  TokenRules rules;             ///< repetition penalty, ends and least lengths; they work on log probabilities
  float length_penalty = 1;
  EarlyStopping early_stopping = EarlyStopping::no;
  int64_t prefix_rows = 0;      ///< Q
  Tensor candidates;            ///< f32 [R * B, V], scratch
  DecodeState state;            ///< in and out. `done` of a text's slots is set when its search has ended
  Tensor sources;               ///< i32 [S, C], in and out: see AttentionDecode
  Tensor ids_before, sources_before;  ///< i32 [S, L] and [S, C], scratch
  Tensor scores;                ///< f32 [G, B], in and out: of the running beams, sums of log probabilities
  Tensor finished_ids;          ///< i32 [G, B, L], in and out: prompt and generated ids, best first
  Tensor finished_lengths;      ///< i32 [G, B], in and out: their lengths; 0: none
  Tensor finished_scores;       ///< f32 [G, B], in and out: of the finished ones, with length_penalty
  Tensor closed;                ///< i32 [G], in and out: whether no running beam can still beat the finished ones
};

}  // namespace blipft
