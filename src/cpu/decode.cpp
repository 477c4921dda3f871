// Decoding of one token a step: start of texts, input rows of the next step, KV cache, and attention over it.
#include <cmath>
#include <cstring>
#include <limits>

#include "blipft/decode_ops.h"
#include "cpu/cpu_ops.h"
#include "ops/beam_search.h"
#include "ops/ops_check.h"

namespace blipft::cpu {
namespace {

/// Returns the row of the cache that holds position j of slot s.
int64_t cache_row(const AttentionDecode& args, int64_t s, int64_t j) {
  const int64_t positions = args.cache.positions;
  return (args.sources ? args.sources.as<const int32_t>()[s * positions + j] : s) * positions + j;
}

/// The range [first, end) of cache positions that slot s sees.
struct PositionRange {
  int64_t first, end;
};
PositionRange positions_of(const AttentionDecode& args, int64_t s) {
  const int64_t end = args.lengths.as<const int32_t>()[s];
  return {args.window > 0 ? std::max<int64_t>(0, end - args.window) : 0, end};
}

/// Throws if a slot sees positions outside of the cache.
void check_numbers(const AttentionDecode& args) {
  const int64_t slots = args.cache.keys.rows() / args.cache.positions;
  for (int64_t s = 0; s < args.q.rows(); ++s) {
    const auto [first, end] = positions_of(args, s);
    BLIPFT_CHECK(end >= 0 && end <= args.cache.positions, "attention_decode: lengths[", s, "] is ", end,
                 ", but a slot has ", args.cache.positions, " places");
    for (int64_t j = first; args.sources && j < end; ++j) {
      const int64_t source = cache_row(args, s, j) / args.cache.positions;
      BLIPFT_CHECK(cache_row(args, s, j) >= 0 && source < slots, "attention_decode: sources[", s, ", ", j, "] is ",
                   args.sources.as<const int32_t>()[s * args.cache.positions + j], ", but there are ", slots, " slots");
    }
  }
}

/// Returns the bias of head h for a key that is `offset` positions after the query.
float relative_score(const RelativeScores& relative, int64_t h, int64_t offset) {
  const int64_t column = std::clamp(offset, -relative.behind, relative.ahead) + relative.behind;
  return relative.values.as<const float>()[h * relative.columns() + column];
}

void attend(const AttentionDecode& args, int64_t s, int64_t h) {
  const int64_t d = args.head_size, column = h / (args.heads / args.kv_heads) * d;
  const auto [first, end] = positions_of(args, s);
  float* q = thread_buffer(0, d);
  float* kv = thread_buffer(1, d);
  float* out = thread_buffer(2, d);
  float* p = thread_buffer(3, end);
  const auto row = [&](const Tensor& matrix, int64_t j) {
    load(matrix, cache_row(args, s, j) * matrix.cols() + column, d, kv);
    return kv;
  };
  load(args.q.data, args.q.dtype, s * args.q.row_stride + h * d, d, q);
  std::fill_n(out, d, 0.0f);
  float highest = -std::numeric_limits<float>::infinity(), total = 0;
  for (int64_t j = first; j < end; ++j) {
    p[j] = args.scale * dot(q, row(args.cache.keys, j), d);
    if (args.cap > 0) p[j] = args.cap * std::tanh(p[j] / args.cap);
    if (args.relative) p[j] += relative_score(args.relative, h, j - (end - 1));
    highest = std::max(highest, p[j]);
  }
  for (int64_t j = first; j < end; ++j) total += p[j] = std::exp(p[j] - highest);
  for (int64_t j = first; j < end; ++j) add_scaled(out, p[j] / total, row(args.cache.values, j), d);
  store(out, args.out, (s * args.heads + h) * d, d);
}

/// Starts the text of row r in `slot`.
void begin_slot(const BeginTexts& args, int64_t r, int64_t slot) {
  const DecodeState& state = args.state;
  const int32_t length = args.lengths.as<const int32_t>()[r];
  const int32_t* const ids = args.ids.as<const int32_t>() + r * args.ids.cols();
  std::copy_n(ids, length, state.ids.as<int32_t>() + slot * state.ids.cols());
  state.lengths.as<int32_t>()[slot] = state.prompt_lengths.as<int32_t>()[slot] = length;
  state.limits.as<int32_t>()[slot] = args.limits.as<const int32_t>()[r];
  state.keys.as<int64_t>()[slot] = args.keys.as<const int64_t>()[r];
  state.done.as<int32_t>()[slot] = kRunning;
  if (args.memory_rows) args.memory_lengths.as<int32_t>()[slot] = args.memory_rows.as<const int32_t>()[r];
  if (args.deltas) args.slot_deltas.as<int32_t>()[slot] = args.deltas.as<const int32_t>()[r];
  if (!args.sources) return;
  const int64_t positions = args.sources.cols(), first = slot / args.beams * args.beams;
  std::fill_n(args.sources.as<int32_t>() + slot * positions, positions, static_cast<int32_t>(first));
  args.finished_lengths.as<int32_t>()[slot] = 0;
  args.finished_scores.as<float>()[slot] = kNoBeamScore;
}

}  // namespace

void CpuOps::begin_texts(const BeginTexts& args, Stream) {
  check_args(args);
  const int64_t texts = args.state.lengths.numel() / args.beams;
  const int64_t maximum = std::min(args.ids.cols(), args.state.ids.cols());
  for (int64_t r = 0; r < args.texts.numel(); ++r) {
    const int64_t text = args.texts.as<const int32_t>()[r], length = args.lengths.as<const int32_t>()[r];
    if (text < 0) continue;
    BLIPFT_CHECK(text < texts, "begin_texts: texts[", r, "] is ", text, ", but there are ", texts, " texts");
    BLIPFT_CHECK(length >= 1 && length <= maximum, "begin_texts: lengths[", r, "] is ", length, ", expected 1 to ", maximum);
    for (int64_t beam = 0; beam < args.beams; ++beam) begin_slot(args, r, text * args.beams + beam);
    if (args.closed) args.closed.as<int32_t>()[text] = 0;
  }
}

void CpuOps::next_rows(const NextRows& args, Stream) {
  check_args(args);
  const DecodeState& state = args.state;
  const int64_t maximum = state.ids.cols();
  for (int64_t s = 0; s < state.lengths.numel(); ++s) {
    const int32_t length = state.lengths.as<const int32_t>()[s];
    BLIPFT_CHECK(length >= 0 && length <= maximum, "next_rows: lengths[", s, "] is ", length, ", but a text has at most ",
                 maximum, " ids");
    const bool grows = length > 0 && state.done.as<const int32_t>()[s] == kRunning;
    const auto end = static_cast<int32_t>(args.prefix_rows + length);
    args.tokens.as<int32_t>()[s] = grows ? state.ids.as<const int32_t>()[s * maximum + length - 1] : 0;
    args.positions.as<int32_t>()[s] = grows ? end - 1 : -1;
    args.cache_lengths.as<int32_t>()[s] = grows ? end : 0;
    if (args.slot_deltas)
      args.rotary_positions.as<int32_t>()[s] = grows ? end - 1 + args.slot_deltas.as<const int32_t>()[s] : 0;
  }
}

void CpuOps::cache_write(const CacheWrite& args, Stream stream) {
  check_args(args);
  if (args.rotary.x) rotary(args.rotary, stream);
  const int64_t positions = args.cache.positions, slots = args.cache.keys.rows() / positions;
  const auto copy = [&](const MatrixView& from, int64_t r, const Tensor& to, int64_t row) {
    const int64_t size = dtype_size(from.dtype);
    std::memcpy(to.as<char>() + row * to.cols() * size, from.as<const char>() + r * from.row_stride * size,
                static_cast<size_t>(from.cols() * size));
  };
  for (int64_t r = 0; r < args.k.rows(); ++r) {
    const int64_t slot = args.slots ? args.slots.as<const int32_t>()[r] : r;
    const int64_t position = args.positions.as<const int32_t>()[r];
    if (position < 0) continue;
    BLIPFT_CHECK(slot >= 0 && slot < slots && position < positions, "cache_write: row ", r, " goes to place ", position,
                 " of slot ", slot, ", but there are ", slots, " slots of ", positions, " places");
    copy(args.k, r, args.cache.keys, slot * positions + position);
    copy(args.v, r, args.cache.values, slot * positions + position);
  }
}

void CpuOps::attention_decode(const AttentionDecode& args, Stream) {
  check_args(args);
  check_numbers(args);
  for_each(args.q.rows() * args.heads, [&](int64_t i) { attend(args, i / args.heads, i % args.heads); });
}

}  // namespace blipft::cpu
