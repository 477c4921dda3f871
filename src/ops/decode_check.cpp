// Argument checks of the decoding ops (see ops_check.h).
#include <algorithm>
#include <cmath>

#include "blipft/decode_ops.h"
#include "ops/checker.h"
#include "ops/ops_check.h"

namespace blipft {
namespace {

/// Maximum length of a row of logits: its weights, each up to 2^44, are summed in 64 bits (ops/token_math.h).
constexpr int64_t kMaxTokens = int64_t{1} << 19;

/// Returns the number of slots.
int64_t check_state(const Checker& check, const DecodeState& state) {
  check.dtype(state.ids, "state.ids", DType::i32);
  if (state.ids.shape.rank != 2 || state.ids.numel() < 1) [[unlikely]]
    check.fail(concat("state.ids has shape ", state.ids.shape.str(), ", expected [slots, most ids of a text]"));
  const int64_t slots = state.ids.shape[0];
  check.vector(state.lengths, "state.lengths", DType::i32, slots);
  check.vector(state.prompt_lengths, "state.prompt_lengths", DType::i32, slots);
  check.vector(state.limits, "state.limits", DType::i32, slots);
  check.vector(state.keys, "state.keys", DType::i64, slots);
  check.vector(state.done, "state.done", DType::i32, slots);
  return slots;
}

/// Returns the number of slots of the cache.
int64_t check_cache(const Checker& check, const KvCache& cache, DType dtype, int64_t width) {
  check.dtype(cache.keys, "cache.keys", dtype);
  if (cache.positions < 1 || cache.keys.cols() != width || cache.keys.rows() % cache.positions != 0 ||
      cache.keys.rows() < 1) [[unlikely]]
    check.fail(concat("cache.keys has shape ", cache.keys.shape.str(), ", expected a multiple of ", cache.positions,
                      " places with rows of ", width));
  check.matrix(cache.values, "cache.values", dtype, cache.keys.rows(), width);
  return cache.keys.rows() / cache.positions;
}

void check_rules(const Checker& check, const TokenRules& rules) {
  const auto number = [&](bool good, const char* name, double found, const char* expected) {
    if (!good) [[unlikely]] check.fail(concat("rules.", name, " is ", found, ", expected ", expected));
  };
  number(rules.temperature > 0 && std::isfinite(rules.temperature), "temperature", rules.temperature,
         "a number above 0");
  number(rules.top_k >= 0, "top_k", static_cast<double>(rules.top_k), "0 or more");
  number(rules.top_p > 0 && rules.top_p <= 1, "top_p", rules.top_p, "0 < top_p <= 1");
  number(rules.min_p >= 0 && rules.min_p <= 1, "min_p", rules.min_p, "0 <= min_p <= 1");
  number(rules.repetition_penalty > 0 && std::isfinite(rules.repetition_penalty), "repetition_penalty",
         rules.repetition_penalty, "a number above 0");
  number(rules.min_new_tokens >= 0, "min_new_tokens", static_cast<double>(rules.min_new_tokens), "0 or more");
  number(rules.min_length >= 0, "min_length", static_cast<double>(rules.min_length), "0 or more");
  if (rules.ends) check.dtype(rules.ends, "rules.ends", DType::i32);
}

void check_logits(const Checker& check, const Tensor& logits) {
  check.floating(logits, "logits");
  if (logits.cols() < 1 || logits.cols() > kMaxTokens) [[unlikely]]
    check.fail(concat("logits has rows of ", logits.cols(), ", expected 1 to ", kMaxTokens));
}

}  // namespace

void check_args(const BeginTexts& args) {
  const Checker check{"begin_texts"};
  const int64_t slots = check_state(check, args.state), beams = args.beams;
  if (beams < 1 || slots % beams != 0) [[unlikely]]
    check.fail(concat("beams is ", beams, ", expected a divisor of ", slots, " slots"));
  check.dtype(args.texts, "texts", DType::i32);
  const int64_t rows = args.texts.numel(), texts = slots / beams;
  check.matrix(args.ids, "ids", DType::i32, rows, args.ids.cols());
  check.vector(args.lengths, "lengths", DType::i32, rows);
  check.vector(args.limits, "limits", DType::i32, rows);
  check.vector(args.keys, "keys", DType::i64, rows);
  check.require(bool(args.memory_rows) == bool(args.memory_lengths),
                "memory_rows and memory_lengths come both or not at all");
  if (args.memory_rows) {
    check.vector(args.memory_rows, "memory_rows", DType::i32, rows);
    check.vector(args.memory_lengths, "memory_lengths", DType::i32, slots);
  }
  check.require(bool(args.deltas) == bool(args.slot_deltas), "deltas and slot_deltas come both or not at all");
  if (args.deltas) {
    check.vector(args.deltas, "deltas", DType::i32, rows);
    check.vector(args.slot_deltas, "slot_deltas", DType::i32, slots);
  }
  for (const Tensor& tensor : {args.finished_lengths, args.finished_scores, args.closed})
    check.require(bool(tensor) == bool(args.sources),
                  "sources, finished_lengths, finished_scores and closed come all or not at all");
  check.require(args.sources || beams == 1, "beams have no sources");
  if (!args.sources) return;
  check.matrix(args.sources, "sources", DType::i32, slots, args.sources.cols());
  check.matrix(args.finished_lengths, "finished_lengths", DType::i32, texts, beams);
  check.matrix(args.finished_scores, "finished_scores", DType::f32, texts, beams);
  check.vector(args.closed, "closed", DType::i32, texts);
}

void check_args(const NextRows& args) {
  const Checker check{"next_rows"};
  const int64_t slots = check_state(check, args.state);
  check.require(args.prefix_rows >= 0, "prefix_rows is negative");
  check.vector(args.tokens, "tokens", DType::i32, slots);
  check.vector(args.positions, "positions", DType::i32, slots);
  check.vector(args.cache_lengths, "cache_lengths", DType::i32, slots);
  check.require(bool(args.slot_deltas) == bool(args.rotary_positions),
                "slot_deltas and rotary_positions come both or not at all");
  if (!args.slot_deltas) return;
  check.vector(args.slot_deltas, "slot_deltas", DType::i32, slots);
  check.vector(args.rotary_positions, "rotary_positions", DType::i32, slots);
}

void check_args(const CodedLinear& args) {
  const Checker check{"coded_linear"};
  check.floating(args.x, "x");
  check.layout(args.x, "x");
  const int64_t rows = args.x.rows(), k = args.x.cols(), n = args.y.cols();
  check.matrix(args.y, "y", args.x.dtype, rows, n);
  check.require(args.w.book == CodeBook::nf4 || args.w.book == CodeBook::int8, "w is in codes of neither nf4 nor int8");
  check.require(!args.w.outer, "w is quantised doubly");
  if (k % code_block(args.w.book) != 0) [[unlikely]]
    check.fail(concat("x has ", k, " columns, expected a multiple of ", code_block(args.w.book)));
  check.quantized(args.w, "w", n * k);
  if (args.bias) check.vector(args.bias, "bias", args.x.dtype, n);
  if (args.residual) check.addend(args.residual, "residual", args.y);
}

void check_args(const CacheWrite& args) {
  const Checker check{"cache_write"};
  check.floating(args.k, "k");
  check.layout(args.k, "k");
  const int64_t rows = args.k.rows(), width = args.k.cols();
  check.matrix(args.v, "v", args.k.dtype, rows, width);
  if (args.slots) check.vector(args.slots, "slots", DType::i32, rows);
  check.vector(args.positions, "places", DType::i32, rows);
  const int64_t slots = check_cache(check, args.cache, args.k.dtype, width);
  if (!args.slots && rows > slots) [[unlikely]]
    check.fail(concat("there are ", rows, " rows without slots, but the cache has ", slots, " slots"));
  const Rotary& turned = args.rotary;
  if (!turned.x) return;
  check_args(turned);
  const int64_t before = turned.x.cols() - width;
  check.require(!turned.inverse && !turned.amax, "rotary is inverse, or finds a magnitude");
  check.require(turned.x.dtype == args.k.dtype && turned.x.rows() == rows && before >= 0 && width % turned.head_size == 0 &&
                    turned.x.columns(before, width).data == args.k.data && (rows < 2 || turned.x.row_stride == args.k.row_stride),
                "k is not the last columns of what turns");
}

void check_args(const AttentionDecode& args) {
  const Checker check{"attention_decode"};
  check.floating(args.q, "q");
  if (args.heads < 1 || args.kv_heads < 1 || args.head_size < 1 || args.heads % args.kv_heads != 0) [[unlikely]]
    check.fail(concat("sizes must be positive, and kv_heads divide heads: heads ", args.heads, ", kv_heads ",
                      args.kv_heads, ", head_size ", args.head_size));
  const int64_t slots = args.q.rows(), width = args.heads * args.head_size;
  check.matrix(args.q, "q", args.q.dtype, slots, width);
  check.matrix(args.out, "out", args.q.dtype, slots, width);
  const int64_t cached = check_cache(check, args.cache, args.q.dtype, args.kv_heads * args.head_size);
  if (!args.sources && cached < slots) [[unlikely]]
    check.fail(concat("there are ", slots, " queries, but the cache has ", cached, " slots"));
  check.vector(args.lengths, "lengths", DType::i32, slots);
  if (args.sources) check.matrix(args.sources, "sources", DType::i32, slots, args.cache.positions);
  if (args.sharing < 1 || slots % args.sharing != 0) [[unlikely]]
    check.fail(concat("sharing is ", args.sharing, ", expected a divisor of ", slots, " slots"));
  check.require(args.window >= 0, "window is negative");
  check.require(args.cap >= 0, "cap is negative");
  check.relative(args.relative, args.heads);
}

void check_args(const PickTokens& args) {
  const Checker check{"pick_tokens"};
  check_logits(check, args.logits);
  const int64_t slots = check_state(check, args.state), rows = args.logits.rows();
  if (args.slots) check.vector(args.slots, "slots", DType::i32, rows);
  else if (rows > slots) [[unlikely]]
    check.fail(concat("there are ", rows, " rows without slots, but ", slots, " slots"));
  check_rules(check, args.rules);
  check.matrix(args.scores, "scores", DType::f32, rows, args.logits.cols());
  check.matrix(args.log_probs, "log_probs", DType::f32, slots, args.state.ids.cols());
}

void check_args(const BeamStep& args) {
  const Checker check{"beam_step"};
  check_logits(check, args.logits);
  const int64_t slots = check_state(check, args.state), beams = args.beams, maximum = args.state.ids.cols();
  if (beams < 1 || slots % beams != 0) [[unlikely]]
    check.fail(concat("beams is ", beams, ", expected a divisor of ", slots, " slots"));
  const int64_t texts = slots / beams, of_text = args.first ? 1 : beams, rows = args.logits.rows() / of_text;
  if (args.logits.rows() % of_text != 0) [[unlikely]]
    check.fail(concat("logits has ", args.logits.rows(), " rows, expected a multiple of ", beams, " beams"));
  if (args.texts) check.vector(args.texts, "texts", DType::i32, rows);
  else if (rows > texts) [[unlikely]]
    check.fail(concat("there are rows of ", rows, " texts without numbers, but ", texts, " texts"));
  const int64_t candidates = std::max<int64_t>(2, 1 + (args.rules.ends ? args.rules.ends.numel() : 0)) * beams;
  if (beams > BeamStep::kMaxBeams || candidates > std::min(BeamStep::kMaxCandidates, args.logits.cols())) [[unlikely]]
    check.fail(concat(beams, " beams with ", candidates, " candidates, expected at most ", BeamStep::kMaxBeams,
                      " beams and ", std::min(BeamStep::kMaxCandidates, args.logits.cols()), " candidates"));
  check.require(!args.rules.sample, "beams are not sampled: rules.sample must be off");
  check_rules(check, args.rules);
  check.require(std::isfinite(args.length_penalty), "length_penalty is not a finite number");
  check.require(args.prefix_rows >= 0, "prefix_rows is negative");
  check.matrix(args.candidates, "candidates", DType::f32, rows * beams, args.logits.cols());
  const int64_t positions = args.sources.cols();
  check.matrix(args.sources, "sources", DType::i32, slots, positions);
  if (positions < args.prefix_rows + maximum) [[unlikely]]
    check.fail(concat("sources has rows of ", positions, ", expected ", args.prefix_rows, " + ", maximum, " places"));
  check.matrix(args.ids_before, "ids_before", DType::i32, slots, maximum);
  check.matrix(args.sources_before, "sources_before", DType::i32, slots, positions);
  check.matrix(args.scores, "scores", DType::f32, texts, beams);
  check.matrix(args.finished_ids, "finished_ids", DType::i32, slots, maximum);
  check.matrix(args.finished_lengths, "finished_lengths", DType::i32, texts, beams);
  check.matrix(args.finished_scores, "finished_scores", DType::f32, texts, beams);
  check.vector(args.closed, "closed", DType::i32, texts);
}

}  // namespace blipft
