// The cases of the ops that decoding adds.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "blipft/decode_ops.h"
#include "ops/op_case.h"

namespace blipft::test {

inline Tensor integers(OpContext& c, const std::string& name, const std::vector<double>& numbers) {
  return c.values(name, DType::i32, numbers);
}

/// Pseudo-random whole numbers below `below`, the same everywhere.
inline int64_t mixed(int64_t i, int64_t below) { return (i * 2654435761 + 12345) % 4294967291 % below; }

/// Texts of all kinds: empty, with a prompt alone, grown, at their limit, done. Lengths are at most L.
inline DecodeState decode_state(OpContext& c, int64_t slots, int64_t maximum, int64_t vocabulary, bool all_grow = false) {
  DecodeState state;
  std::vector<double> lengths, prompts, limits, done, keys;
  for (int64_t s = 0; s < slots; ++s) {
    const bool empty = !all_grow && s % 5 == 3;
    const int64_t length = empty ? 0 : 1 + mixed(s + 7, maximum - 1);
    lengths.push_back(static_cast<double>(length));
    prompts.push_back(static_cast<double>(length > 0 ? 1 + mixed(s, length) : 0));
    limits.push_back(static_cast<double>(std::min(maximum, length + (s % 11 == 6 ? 0 : s % 3 == 0 ? 1 : 5))));
    done.push_back(!all_grow && s % 7 == 5 ? kEndToken : kRunning);
    keys.push_back(static_cast<double>(s * 3 + (s % 2 ? 5000000000 : 11)));
  }
  state.ids = c.inout("ids", DType::i32, {slots, maximum}, 0, static_cast<double>(vocabulary));
  const auto copied = [&](const char* name, const std::vector<double>& numbers) {
    return c.changing_values(name, DType::i32, numbers);
  };
  state.lengths = copied("lengths", lengths);
  state.prompt_lengths = copied("prompt_lengths", prompts);
  state.limits = copied("limits", limits);
  state.keys = c.changing_values("keys", DType::i64, keys);
  state.done = copied("done", done);
  return state;
}

struct BeginShape {
  int64_t texts, beams, rows, tokens, maximum;
  bool memory = false;
};

/// Rows of some of the texts, in an order of their own, and between them one of none.
inline BeginTexts make_begin_texts(OpContext& c, const BeginShape& v) {
  const int64_t slots = v.texts * v.beams;
  std::vector<double> texts, lengths, limits, keys;
  for (int64_t r = 0; r < v.rows; ++r) {
    texts.push_back(r == 1 ? -1 : static_cast<double>((r * 7 + 2) % v.texts));
    lengths.push_back(r == 1 ? 0 : static_cast<double>(1 + mixed(r, std::min(v.tokens, v.maximum))));
    limits.push_back(static_cast<double>(1 + mixed(r + 5, v.maximum)));
    keys.push_back(static_cast<double>(r * 3 + (r % 2 ? 5000000000 : 11)));
  }
  BeginTexts a;
  a.beams = v.beams;
  a.texts = integers(c, "texts", texts), a.lengths = integers(c, "new lengths", lengths);
  a.ids = c.input("new ids", DType::i32, {v.rows, v.tokens}, 0, 1000);
  a.limits = integers(c, "new limits", limits), a.keys = c.values("new keys", DType::i64, keys);
  a.state = decode_state(c, slots, v.maximum, 1000);
  if (v.memory) {
    a.memory_rows = c.input("memory_rows", DType::i32, {v.rows}, 1, 50);
    a.memory_lengths = c.inout("memory_lengths", DType::i32, {slots}, 1, 50);
    a.deltas = c.input("deltas", DType::i32, {v.rows}, -50, 1);
    a.slot_deltas = c.inout("slot_deltas", DType::i32, {slots}, -50, 1);
  }
  if (v.beams == 1) return a;
  a.sources = c.inout("sources", DType::i32, {slots, v.maximum + 3}, 0, static_cast<double>(slots));
  a.finished_lengths = c.inout("finished_lengths", DType::i32, {v.texts, v.beams}, 0, 9);
  a.finished_scores = c.inout("finished_scores", kF32, {v.texts, v.beams}, -9, 0);
  a.closed = c.inout("closed", DType::i32, {v.texts}, 0, 2);
  return a;
}

/// At least as many texts as rows, and a prime other than 7: no two rows begin the same text.
inline const BeginShape kBeginShapes[] = {
    {1, 1, 1, 1, 2},          {5, 1, 4, 3, 9},              {71, 1, 64, 300, 700},     {3, 4, 3, 12, 9, true},
    {11, 5, 11, 600, 650},    {5, 1, 3, 1, 5, true},        {67, 32, 64, 40, 90, true}};

inline void add_begin_texts(Cases& cases) {
  for (const BeginShape& v : kBeginShapes)
    cases.push_back({concat("begin_texts ", v.rows, " of ", v.texts, "x", v.beams, " ", v.tokens, " of ", v.maximum,
                            v.memory ? " memory" : ""), kF32, true, [=](OpContext& c) {
      const BeginTexts a = make_begin_texts(c, v);
      c.run([&](Ops& ops, Stream s) { ops.begin_texts(a, s); });
    }});
}

inline void add_next_rows(Cases& cases) {
  for (int64_t slots : {1, 7, 300})
    cases.push_back({concat("next_rows ", slots), kF32, true, [=](OpContext& c) {
      NextRows a;
      a.state = decode_state(c, slots, 9, 50);
      a.prefix_rows = slots == 7 ? 32 : 0;
      a.tokens = c.output("tokens", DType::i32, {slots, 1});
      a.positions = c.output("places", DType::i32, {slots});
      a.cache_lengths = c.output("cache_lengths", DType::i32, {slots});
      if (slots != 1) {
        a.slot_deltas = c.input("slot_deltas", DType::i32, {slots}, -9, 1);
        a.rotary_positions = c.output("rotary_positions", DType::i32, {slots});
      }
      c.run([&](Ops& ops, Stream s) { ops.next_rows(a, s); });
    }});
}

/// Codes of every kind, rows on both sides of what one launch takes, columns that are no multiple of what a warp takes.
inline void add_coded_linear(Cases& cases, DType t) {
  struct Sizes {
    int64_t m, k, n;
  };
  for (const CodeBook book : {CodeBook::nf4, CodeBook::int8})
    for (const Sizes& g : {Sizes{1, 64, 1}, Sizes{1, 4096, 520}, Sizes{1, 11008, 70}, Sizes{1, 26624, 140},
                           Sizes{1, 896, 4700}, Sizes{2, 192, 37}, Sizes{3, 1088, 129},
                           Sizes{4, 2560, 64}, Sizes{7, 512, 77}, Sizes{9, 1024, 5},
                           Sizes{2, 65600, 3}})  // more columns than fit the shared memory
      for (const bool whole : {false, true})
        cases.push_back({title(t, "coded_linear ", book == CodeBook::nf4 ? "nf4 " : "int8 ", g.m, "x", g.k, "x", g.n,
                               whole ? " bias residual" : " strided"), t, false, [=](OpContext& c) {
          const double range = std::sqrt(3.0 / static_cast<double>(g.k));
          const Tensor w = c.input("w", kF32, {g.n * g.k}, -3 * range, 3 * range);
          const int64_t blocks = g.n * g.k / code_block(book);
          CodedLinear a;
          a.w = {book, c.scratch("codes", DType::u8, {blocks * code_block(book) * code_bits(book) / 8}),
                 c.scratch("scales", kF32, {blocks}), {}};
          a.x = MatrixView(c.input("x", t, {g.m, g.k + 16})).columns(8, g.k);
          if (whole) a.bias = c.input("bias", t, {g.n});
          if (whole) a.residual = c.input("residual", t, {g.m, g.n});
          a.y = MatrixView(c.inout("y", t, {g.m, g.n + 6})).columns(whole ? 0 : 3, g.n);
          c.run([&](Ops& ops, Stream s) {
            ops.quantize(w, a.w, s);
            ops.coded_linear(a, s);
          });
        }});
}

inline void add_cache_write(Cases& cases, DType t) {
  for (int64_t width : {1, 6, 40, 512})
    for (int64_t behind : {0, 8, 3})
      cases.push_back({title(t, "cache_write ", width, " of ", behind), t, true, [=](OpContext& c) {
        constexpr int64_t kSlots = 5, kPositions = 11, kRows = 21;
        CacheWrite a, one;
        const Tensor kv = c.input("kv", t, {kRows, 2 * width + behind});
        a.k = MatrixView(kv).columns(0, width), a.v = MatrixView(kv).columns(width, width);
        std::vector<double> slots, cached_positions, own;
        for (int64_t r = 0; r < kRows; ++r) {
          slots.push_back(static_cast<double>(r % kSlots));
          cached_positions.push_back(r % 4 == 3 ? -1 : static_cast<double>(2 * (r / kSlots)));
        }
        for (int64_t s = 0; s < kSlots; ++s) own.push_back(s == 2 ? -1 : static_cast<double>(9 - 2 * (s % 3)));
        a.slots = integers(c, "slots", slots), a.positions = integers(c, "places", cached_positions);
        a.cache = {c.inout("cached keys", t, {kSlots * kPositions, width}),
                   c.inout("cached values", t, {kSlots * kPositions, width}), kPositions};
        one = a;
        one.k = a.k.row_range(0, kSlots), one.v = a.v.row_range(3, kSlots);
        one.slots = {}, one.positions = integers(c, "own places", own);
        c.run([&](Ops& ops, Stream s) {
          ops.cache_write(a, s);
          ops.cache_write(one, s);
        });
      }});
}

struct TurnedShape {
  int64_t rows, heads, kv_heads, d, rotated, behind, axes = 1;
};

/// Rotary positions on the way into the cache.
inline void add_turn_into_cache(Cases& cases, DType t) {
  for (const TurnedShape& v : {TurnedShape{1, 32, 32, 128, 0, 0}, {1, 14, 2, 64, 0, 0}, {5, 3, 1, 6, 0, 3}, {7, 4, 4, 22, 0, 0},
                               {21, 8, 2, 80, 32, 8}, {64, 4, 2, 96, 72, 0}, {3, 6, 3, 256, 64, 0}, {2, 5, 5, 2, 0, 8}, {9, 2, 1, 20, 6, 4},
                               {9, 6, 2, 32, 0, 0, 3}})
    for (const bool by_slot : {false, true})
      cases.push_back({title(t, "cache_write turned ", v.rows, "x", v.heads, "/", v.kv_heads, "x", v.d, " rotated ", v.rotated,
                             " of ", v.behind, v.axes > 1 ? " on three axes" : "", by_slot ? " slots" : ""), t, false, [=](OpContext& c) {
        constexpr int64_t kPositions = 5;
        const int64_t q = v.heads * v.d, kv = v.kv_heads * v.d;
        const Tensor qkv = c.inout("qkv", t, {v.rows, q + 2 * kv + v.behind});
        CacheWrite a{.k = MatrixView(qkv).columns(q, kv), .v = MatrixView(qkv).columns(q + kv, kv)};
        a.rotary.x = MatrixView(qkv).columns(0, q + kv), a.rotary.head_size = v.d, a.rotary.rotated = v.rotated;
        a.rotary.magnitude = v.rotated ? 1.25f : 1;
        std::vector<double> positions, slots, cached_positions;
        for (int64_t r = 0; r < v.rows; ++r) {
          slots.push_back(static_cast<double>(v.rows - 1 - r));
          cached_positions.push_back(r % 4 == 2 ? -1 : static_cast<double>(r % kPositions));
        }
        for (int64_t r = 0; r < v.axes * v.rows; ++r) positions.push_back(static_cast<double>(r * 37 % 2048));
        a.rotary.positions = integers(c, "positions", positions);
        const int64_t turned = v.rotated ? v.rotated : v.d;
        for (int64_t i = 0; i < turned / 2; ++i)
          a.rotary.frequencies[i] = std::pow(10000.0f, -2.0f * static_cast<float>(i) / static_cast<float>(turned)),
          a.rotary.axis[i] = static_cast<uint8_t>(i % v.axes);
        if (by_slot) a.slots = integers(c, "slots", slots);
        a.positions = integers(c, "places", cached_positions);
        a.cache = {c.inout("cached keys", t, {v.rows * kPositions, kv}), c.inout("cached values", t, {v.rows * kPositions, kv}), kPositions};
        c.run([&](Ops& ops, Stream s) { ops.cache_write(a, s); });
      }});
}

struct DecodeShape {
  int64_t slots, heads, kv_heads, d, positions;
  int64_t window = 0;
  float cap = 0;
  bool sources = false;
  int64_t behind = 0;          ///< columns behind the queries
  int64_t relative = 0;        ///< places behind the query with a score of their own; 0: none
  int64_t sharing = 1;
  bool beams = false;          ///< sources as beams have them: a prompt's places lie in the first slot, others in any of the text
};

/// Sources of slots that are the beams of texts: the first third of the places is the prompt's.
inline std::vector<double> beam_sources(int64_t slots, int64_t positions, int64_t beams) {
  std::vector<double> sources;
  for (int64_t s = 0; s < slots; ++s)
    for (int64_t j = 0; j < positions; ++j) {
      const int64_t of_text = j < positions / 3 ? 0 : mixed(s * positions + j, beams);
      sources.push_back(static_cast<double>(s / beams * beams + of_text));
    }
  return sources;
}

/// Lengths from none to all places, in an order that mixes them.
inline std::vector<double> decode_lengths(int64_t slots, int64_t positions) {
  std::vector<double> lengths;
  for (int64_t s = 0; s < slots; ++s)
    lengths.push_back(static_cast<double>(s == 0 ? positions : s == 2 ? 0 : s == 3 ? 1 : 1 + mixed(s, positions)));
  return lengths;
}

inline AttentionDecode make_attention_decode(OpContext& c, DType t, const DecodeShape& v) {
  AttentionDecode a;
  const int64_t width = v.heads * v.d;
  a.q = MatrixView(c.input("q", t, {v.slots, width + v.behind}, -2, 2)).columns(0, width);
  a.heads = v.heads, a.kv_heads = v.kv_heads, a.head_size = v.d;
  a.scale = 1 / std::sqrt(static_cast<float>(v.d)), a.window = v.window, a.cap = v.cap;
  a.lengths = integers(c, "lengths", decode_lengths(v.slots, v.positions));
  if (v.relative > 0) a.relative = {c.input("relative", kF32, {v.heads, v.relative + 1}, -2, 2), v.relative, 0};
  a.sharing = v.sharing;
  if (v.beams) a.sources = integers(c, "sources", beam_sources(v.slots, v.positions, v.sharing)).view({v.slots, v.positions});
  else if (v.sources)
    a.sources = c.input("sources", DType::i32, {v.slots, v.positions}, 0, static_cast<double>(v.slots));
  a.cache = {c.input("cached keys", t, {v.slots * v.positions, v.kv_heads * v.d}, -2, 2),
             c.input("cached values", t, {v.slots * v.positions, v.kv_heads * v.d}), v.positions};
  a.out = c.output("out", t, {v.slots, width});
  return a;
}

/// Head sizes that 16-byte rows have and others, grouped heads, contexts of one part and of many.
inline const DecodeShape kDecodeShapes[] = {
    {1, 1, 1, 1, 1},          {4, 2, 2, 8, 5},           {5, 3, 1, 7, 37, 0, 0, true},
    {3, 4, 2, 20, 64, 9},     {7, 8, 2, 64, 130, 0, 30}, {5, 4, 4, 100, 257, 100, 50, true, 8},
    {2, 32, 32, 128, 300},    {2, 32, 8, 128, 1025, 0, 0, true}, {3, 8, 1, 256, 515, 300},
    {1, 8, 4, 256, 2111, 0, 50, false, 16}, {6, 12, 12, 64, 77, 0, 0, false, 4},
    {4, 14, 2, 64, 1000, 0, 0, true, 3},    {64, 4, 2, 32, 200}, {3, 5, 5, 80, 700, 0, 0, true},
    {2, 71, 1, 64, 90},       {2, 28, 4, 96, 4100, 4096},
    {4, 6, 6, 64, 300, 0, 0, true, 0, 113}, {3, 8, 2, 20, 70, 0, 0, false, 0, 5}, {2, 32, 32, 64, 1200, 0, 0, true, 0, 20},
    {6, 4, 2, 16, 21, 0, 0, true, 0, 0, 3}};

/// Slots that share places, and enough of them for the kernel that reads each place once: beams, and sources of any order; grouped
/// heads that one product holds and that two do; windows, caps, scores of places; places that need more than one product. And slots
/// that share none, with few places.
inline const DecodeShape kSharedShapes[] = {
    {320, 32, 32, 80, 62, 0, 0, true, 0, 0, 5, true},    {75, 40, 40, 64, 45, 0, 0, true, 2, 0, 5},
    {84, 24, 24, 128, 33, 9, 0, true, 0, 0, 2, true},    {160, 64, 32, 40, 200, 0, 30, true, 0, 0, 8, true},
    {161, 36, 12, 72, 150, 100, 0, true, 4, 0, 7, true}, {180, 12, 12, 64, 90, 0, 0, true, 0, 17, 3, true},
    {96, 48, 48, 120, 17, 0, 50, false, 0, 0, 4},        {108, 70, 10, 96, 80, 0, 0, true, 0, 0, 2},
    {64, 36, 12, 72, 60},                                 {64, 32, 32, 80, 62, 0, 0, true, 2},
    {90, 8, 8, 128, 128, 20, 0, false, 0, 30}};

inline void add_attention_decode(Cases& cases, DType t) {
  const auto add = [&](const DecodeShape& v) {
    cases.push_back({title(t, "attention_decode ", v.slots, "x", v.heads, "/", v.kv_heads, "x", v.d, " of ", v.positions,
                           " window ", v.window, " cap ", v.cap, v.sources ? " sources" : "", " behind ", v.behind,
                           v.relative ? concat(" relative ", v.relative) : "", v.sharing > 1 ? concat(" sharing ", v.sharing) : ""),
                     t, false, [=](OpContext& c) {
      const AttentionDecode a = make_attention_decode(c, t, v);
      c.run([&](Ops& ops, Stream s) { ops.attention_decode(a, s); });
    }});
  };
  for (const DecodeShape& v : kDecodeShapes) add(v);
  for (const DecodeShape& v : kSharedShapes) add(v);
}

/// Rules that leave out much or little, and the vocabulary they work on.
struct PickShape {
  int64_t vocabulary;
  bool sample = false;
  int64_t top_k = 0;
  float top_p = 1, min_p = 0, temperature = 1, penalty = 1;
  int64_t min_new = 0;
  double range = 12;           ///< logits lie within +- so much; below 1: all are equal
};

inline const PickShape kPickShapes[] = {
    {1},        {7},          {33, false, 0, 1, 0, 1, 1.5f, 3},       {1000, false, 0, 1, 0, 1, 0.8f, 100},
    {50272},    {151936},     {2, true},                              {40, true, 5},
    {33, true, 0, 0.7f},      {1000, true, 50, 0.9f, 0, 0.7f, 1.2f},  {1001, true, 0, 0.95f, 0.02f, 1.3f, 1, 100},
    {1000, true, 0, 1, 0.1f}, {1000, true, 2000, 0.5f, 0, 1, 1, 0, 0}, {5000, true, 7, 0.3f, 0, 1, 1, 0, 0},
    {50272, true, 0, 0.9f, 0, 1, 1, 0, 40}, {151936, true, 50, 0.95f, 0, 0.8f, 1.1f}, {262144, true, 0, 0.99f}};

/// Both backends choose the same tokens to the bit.
inline void add_pick_tokens(Cases& cases, DType t) {
  for (const PickShape& v : kPickShapes)
    for (bool slots : {false, true})
      cases.push_back({title(t, "pick_tokens ", v.vocabulary, v.sample ? " sampled" : "", " top_k ", v.top_k, " top_p ",
                             v.top_p, " min_p ", v.min_p, slots ? " slots" : ""), t, true, [=](OpContext& c) {
        constexpr int64_t kSlots = 13, kMax = 21;
        PickTokens a;
        const int64_t rows = slots ? 5 : 9;
        a.state = decode_state(c, kSlots, kMax, v.vocabulary + 3);  // a picture's ids may lie outside
        a.logits = c.input("logits", t, {rows, v.vocabulary}, -v.range, v.range);
        if (slots) a.slots = integers(c, "slots", {7, -1, 1, 12, 3});
        a.rules = {v.sample, 0x123456789abcu, v.temperature, v.top_k, v.top_p, v.min_p, v.penalty, v.min_new, 0, {}};
        if (v.vocabulary > 1)
          a.rules.ends = integers(c, "ends", {1, 0, static_cast<double>(v.vocabulary / 2), 999999});
        if (v.vocabulary < 8) a.rules.ends.shape = {1};
        a.scores = v.sample ? c.inout("scores", kF32, {rows, v.vocabulary})
                            : c.scratch("scores", kF32, {rows, v.vocabulary});
        a.log_probs = c.inout("log_probs", kF32, {kSlots, kMax});
        c.run([&](Ops& ops, Stream s) { ops.pick_tokens(a, s); });
      }});
}

struct BeamShape {
  int64_t texts, beams, vocabulary;
  bool first;
  int64_t ends = 1;
  float length_penalty = 1;
  EarlyStopping early_stopping = EarlyStopping::no;
  float penalty = 1;
  double range = 6;            ///< logits lie within +- so much; 0: all are equal
  int64_t min_new = 0;
  bool odd = false;            ///< odd_logits(), and beams that are as good as none
};

/// Rows of NaN, infinity and -infinity here and there, of few finite numbers, of large ones and of usual ones.
inline std::vector<double> odd_logits(int64_t rows, int64_t vocabulary) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  std::vector<double> logits;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < vocabulary; ++i) {
      const int64_t number = mixed(r * vocabulary + i, 1009), one = mixed(r, vocabulary);
      double x = static_cast<double>(number) / 100 - 5;
      if (r % 11 == 4) {
        const double bad[] = {NAN, kInfinity, -kInfinity};
        if (i == one || r / 11 % 3 == 2) x = bad[r / 11 % 3];
      } else if (r % 3 == 1) {
        x = i == one || i == vocabulary / 2 ? x : -kInfinity;
      } else if (r % 3 == 2) {
        x *= 1e30;
      }
      logits.push_back(x);
    }
  return logits;
}

/// A step in the middle of a search: texts with finished beams and without, one that is done, one at its limit.
inline BeamStep make_beam_step(OpContext& c, DType t, const BeamShape& v) {
  constexpr int64_t kMax = 12, kPrefix = 2, kPositions = kMax + kPrefix + 1;
  const int64_t slots = v.texts * v.beams;
  std::vector<double> lengths, prompts, limits, keys, done, scores, finished_lengths, finished_scores, closed, texts;
  for (int64_t g = 0; g < v.texts; ++g) {
    const int64_t length = 4 + g % 5, finished = g % 3 == 0 ? v.beams : g % 3 == 1 ? v.beams - 1 : 0;
    closed.push_back(g % 6 == 3);
    texts.push_back(static_cast<double>(v.texts - 1 - g));
    for (int64_t b = 0; b < v.beams; ++b) {
      lengths.push_back(static_cast<double>(length));
      prompts.push_back(static_cast<double>(1 + g % 3));
      limits.push_back(static_cast<double>(g == 4 ? length : g % 4 == 2 ? length + 1 : 11));
      keys.push_back(static_cast<double>(g));
      done.push_back(g == 5 ? kEndToken : kRunning);
      scores.push_back(v.odd && b > 0 && g % 2 == 1 ? -1e9 : v.range > 0 ? -3.0 - 0.7 * static_cast<double>(b * (1 + g % 2)) : -3);
      finished_lengths.push_back(b < finished ? static_cast<double>(length) : 0);
      finished_scores.push_back(b < finished ? -1.1 - 0.4 * static_cast<double>(b) : -1e9);
    }
  }
  const auto changing = [&](const char* name, const std::vector<double>& numbers) {
    return c.changing_values(name, DType::i32, numbers);
  };
  BeamStep a;
  a.state = {c.inout("ids", DType::i32, {slots, kMax}, 0, static_cast<double>(v.vocabulary)),
             changing("lengths", lengths), changing("prompt_lengths", prompts), changing("limits", limits),
             c.changing_values("keys", DType::i64, keys), changing("done", done)};
  if (v.texts > 1) texts[0] = -1, a.texts = integers(c, "texts", texts);
  const int64_t rows = v.texts * (v.first ? 1 : v.beams);
  a.logits = v.odd ? c.values("logits", t, odd_logits(rows, v.vocabulary)).view({rows, v.vocabulary})
                   : c.input("logits", t, {rows, v.vocabulary}, -v.range, v.range);
  a.first = v.first, a.beams = v.beams, a.prefix_rows = kPrefix;
  a.rules.repetition_penalty = v.penalty, a.rules.min_new_tokens = v.penalty != 1 ? 5 : v.min_new;
  if (v.ends > 0) a.rules.ends = c.input("ends", DType::i32, {v.ends}, 0, static_cast<double>(v.vocabulary));
  a.length_penalty = v.length_penalty, a.early_stopping = v.early_stopping;
  a.candidates = c.scratch("candidates", kF32, {v.texts * v.beams, v.vocabulary});
  a.sources = c.inout("sources", DType::i32, {slots, kPositions}, 0, static_cast<double>(slots));
  a.ids_before = c.scratch("ids_before", DType::i32, {slots, kMax});
  a.sources_before = c.scratch("sources_before", DType::i32, {slots, kPositions});
  a.scores = c.changing_values("scores", kF32, scores).view({v.texts, v.beams});
  a.finished_ids = c.inout("finished_ids", DType::i32, {v.texts, v.beams, kMax}, 0, 9);
  a.finished_lengths = changing("finished_lengths", finished_lengths).view({v.texts, v.beams});
  a.finished_scores = c.changing_values("finished_scores", kF32, finished_scores).view({v.texts, v.beams});
  a.closed = changing("closed", closed);
  return a;
}

inline const BeamShape kBeamShapes[] = {
    {1, 1, 2, true, 0},   {7, 1, 9, false},   {7, 3, 40, true},      {7, 3, 40, false, 2, -1},
    {7, 4, 33, false, 3, 2, EarlyStopping::yes},          {8, 5, 1000, false, 1, 0.7f, EarlyStopping::never, 1.3f},
    {7, 5, 1000, false, 5, 0, EarlyStopping::no, 0.8f},   {7, 4, 30, false, 2, 1, EarlyStopping::no, 1, 0},
    {6, 32, 300, false, 2, 1.5f, EarlyStopping::yes},     {3, 5, 50272, false}, {3, 5, 151936, true, 2},
    {7, 5, 50272, false, 1, 1, EarlyStopping::no, 1, 6, 5},   {7, 4, 900, false, 6, 1, EarlyStopping::no, 1, 6, 5},
    {7, 32, 3001, false, 2, 1, EarlyStopping::no, 1, 6, 5},   {7, 3, 3001, false, 2, 1, EarlyStopping::no, 1, 1e-3, 5},
    {23, 3, 40, false, 2, 1, EarlyStopping::no, 1, 6, 5, true},      {40, 1, 3001, true, 0, 1, EarlyStopping::no, 1, 6, 0, true},
    {17, 5, 3001, false, 1, -1, EarlyStopping::never, 1, 6, 0, true}, {17, 4, 300, false, 2, 2, EarlyStopping::yes, 1.2f, 6, 0, true}};

/// Both backends choose the same beams to the bit.
inline void add_beam_step(Cases& cases, DType t) {
  for (const BeamShape& v : kBeamShapes)
    cases.push_back({title(t, "beam_step ", v.texts, "x", v.beams, "x", v.vocabulary, v.first ? " first" : "", " ends ",
                           v.ends, " length_penalty ", v.length_penalty, " early ", int(v.early_stopping),
                           v.min_new ? concat(" min_new ", v.min_new) : "", v.odd ? " odd" : ""), t, true,
                     [=](OpContext& c) {
      const BeamStep a = make_beam_step(c, t, v);
      c.run([&](Ops& ops, Stream s) { ops.beam_step(a, s); });
    }});
}

inline void add_decode_ops(Cases& cases) {
  add_begin_texts(cases);
  add_next_rows(cases);
  for (DType t : {kF32, kBf16}) {
    add_cache_write(cases, t);
    add_turn_into_cache(cases, t);
    if (t == kBf16) add_coded_linear(cases, t);  // f32 is decoded first
    add_attention_decode(cases, t);
    add_pick_tokens(cases, t);
    add_beam_step(cases, t);
  }
}

}  // namespace blipft::test
