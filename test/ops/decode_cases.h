// The cases of the ops that decoding adds.
#pragma once

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
inline DecodeState decode_state(OpContext& c, int64_t slots, int64_t most, int64_t vocabulary, bool all_grow = false) {
  DecodeState state;
  std::vector<double> lengths, prompts, limits, done, keys;
  for (int64_t s = 0; s < slots; ++s) {
    const bool empty = !all_grow && s % 5 == 3;
    const int64_t length = empty ? 0 : 1 + mixed(s + 7, most - 1);
    lengths.push_back(static_cast<double>(length));
    prompts.push_back(static_cast<double>(length > 0 ? 1 + mixed(s, length) : 0));
    limits.push_back(static_cast<double>(std::min(most, length + (s % 3 == 0 ? 1 : 5))));
    done.push_back(!all_grow && s % 7 == 5 ? kEndToken : kRunning);
    keys.push_back(static_cast<double>(s * 3 + (s % 2 ? 5000000000 : 11)));
  }
  state.ids = c.inout("ids", DType::i32, {slots, most}, 0, static_cast<double>(vocabulary));
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

inline void add_next_rows(Cases& cases) {
  for (int64_t slots : {1, 7, 300})
    cases.push_back({concat("next_rows ", slots), kF32, true, [=](OpContext& c) {
      NextRows a;
      a.state = decode_state(c, slots, 9, 50);
      a.prefix_rows = slots == 7 ? 32 : 0;
      a.tokens = c.output("tokens", DType::i32, {slots, 1});
      a.places = c.output("places", DType::i32, {slots});
      a.cache_lengths = c.output("cache_lengths", DType::i32, {slots});
      c.run([&](Ops& ops, Stream s) { ops.next_rows(a, s); });
    }});
}

inline void add_cache_write(Cases& cases, DType t) {
  for (int64_t width : {1, 6, 40, 512})
    for (int64_t behind : {0, 8, 3})
      cases.push_back({title(t, "cache_write ", width, " of ", behind), t, true, [=](OpContext& c) {
        constexpr int64_t kSlots = 5, kPlaces = 11, kRows = 21;
        CacheWrite a, one;
        const Tensor kv = c.input("kv", t, {kRows, 2 * width + behind});
        a.k = MatrixView(kv).columns(0, width), a.v = MatrixView(kv).columns(width, width);
        std::vector<double> slots, places, own;
        for (int64_t r = 0; r < kRows; ++r) {
          slots.push_back(static_cast<double>(r % kSlots));
          places.push_back(r % 4 == 3 ? -1 : static_cast<double>(2 * (r / kSlots)));
        }
        for (int64_t s = 0; s < kSlots; ++s) own.push_back(s == 2 ? -1 : static_cast<double>(9 - 2 * (s % 3)));
        a.slots = integers(c, "slots", slots), a.places = integers(c, "places", places);
        a.cache = {c.inout("cached keys", t, {kSlots * kPlaces, width}),
                   c.inout("cached values", t, {kSlots * kPlaces, width}), kPlaces};
        one = a;
        one.k = a.k.row_range(0, kSlots), one.v = a.v.row_range(3, kSlots);
        one.slots = {}, one.places = integers(c, "own places", own);
        c.run([&](Ops& ops, Stream s) {
          ops.cache_write(a, s);
          ops.cache_write(one, s);
        });
      }});
}

struct DecodeShape {
  int64_t slots, heads, kv_heads, d, places;
  int64_t window = 0;
  float cap = 0;
  bool sources = false;
  int64_t behind = 0;          ///< columns behind the queries
};

/// Lengths from none to all places, in an order that mixes them.
inline std::vector<double> decode_lengths(int64_t slots, int64_t places) {
  std::vector<double> lengths;
  for (int64_t s = 0; s < slots; ++s)
    lengths.push_back(static_cast<double>(s == 0 ? places : s == 2 ? 0 : s == 3 ? 1 : 1 + mixed(s, places)));
  return lengths;
}

inline AttentionDecode make_attention_decode(OpContext& c, DType t, const DecodeShape& v) {
  AttentionDecode a;
  const int64_t width = v.heads * v.d;
  a.q = MatrixView(c.input("q", t, {v.slots, width + v.behind}, -2, 2)).columns(0, width);
  a.heads = v.heads, a.kv_heads = v.kv_heads, a.head_size = v.d;
  a.scale = 1 / std::sqrt(static_cast<float>(v.d)), a.window = v.window, a.cap = v.cap;
  a.lengths = integers(c, "lengths", decode_lengths(v.slots, v.places));
  if (v.sources)
    a.sources = c.input("sources", DType::i32, {v.slots, v.places}, 0, static_cast<double>(v.slots));
  a.cache = {c.input("cached keys", t, {v.slots * v.places, v.kv_heads * v.d}, -2, 2),
             c.input("cached values", t, {v.slots * v.places, v.kv_heads * v.d}), v.places};
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
    {2, 71, 1, 64, 90},       {2, 28, 4, 96, 4100, 4096}};

inline void add_attention_decode(Cases& cases, DType t) {
  for (const DecodeShape& v : kDecodeShapes)
    cases.push_back({title(t, "attention_decode ", v.slots, "x", v.heads, "/", v.kv_heads, "x", v.d, " of ", v.places,
                           " window ", v.window, " cap ", v.cap, v.sources ? " sources" : "", " behind ", v.behind),
                     t, false, [=](OpContext& c) {
      const AttentionDecode a = make_attention_decode(c, t, v);
      c.run([&](Ops& ops, Stream s) { ops.attention_decode(a, s); });
    }});
}

inline void add_decode_ops(Cases& cases) {
  add_next_rows(cases);
  for (DType t : {kF32, kBf16}) {
    add_cache_write(cases, t);
    add_attention_decode(cases, t);
  }
}

}  // namespace blipft::test
