// The CPU ops of one-token steps: begin_texts, next_rows, cache_write, attention_decode against float64 and against
// attention_forward's last row, positions of single rows.
#include <doctest/doctest.h>

#include "ops/decode_cases.h"
#include "ops/op_reference.h"

namespace blipft::test {
namespace {

/// softmax(scale q k^T, capped) v over the places that each slot sees.
Vec attention_reference(const OpContext& c, const AttentionDecode& a) {
  const Vec q = c.read(a.q), keys = c.read(a.cache.keys), values = c.read(a.cache.values), lengths = c.read(a.lengths);
  const Vec sources = a.sources ? c.read(a.sources) : Vec{}, relative = a.relative ? c.read(a.relative.values) : Vec{};
  const int64_t d = a.head_size, positions = a.cache.positions, group = a.heads / a.kv_heads;
  Vec out(q.size());
  for (int64_t s = 0; s < a.q.rows(); ++s)
    for (int64_t h = 0; h < a.heads; ++h) {
      const auto end = static_cast<int64_t>(at(lengths, s));
      const int64_t first = a.window ? std::max<int64_t>(0, end - a.window) : 0;
      const auto element = [&](int64_t j) {
        const int64_t slot = a.sources ? static_cast<int64_t>(at(sources, s * positions + j)) : s;
        return (slot * positions + j) * a.kv_heads * d + h / group * d;
      };
      Vec p;
      double total = 0;
      for (int64_t j = first; j < end; ++j) {
        double score = 0;
        for (int64_t i = 0; i < d; ++i) score += at(q, (s * a.heads + h) * d + i) * at(keys, element(j) + i);
        score *= static_cast<double>(a.scale);
        if (a.cap > 0) score = static_cast<double>(a.cap) * std::tanh(score / static_cast<double>(a.cap));
        if (a.relative) {
          const int64_t column = std::clamp(j - (end - 1), -a.relative.behind, a.relative.ahead) + a.relative.behind;
          score += at(relative, h * a.relative.columns() + column);
        }
        p.push_back(std::exp(score));
        total += p.back();
      }
      for (int64_t j = first; j < end; ++j)
        for (int64_t i = 0; i < d; ++i)
          at(out, (s * a.heads + h) * d + i) += at(p, j - first) / total * at(values, element(j) + i);
    }
  return out;
}

/// Texts of 1 to 9 rows, packed: attention_decode of each text's last row is attention_forward's.
void check_last_rows(DType t, int64_t heads, int64_t kv_heads) {
  constexpr int64_t kTexts = 4, kMax = 9, kHeadSize = 6;
  const int64_t width = heads * kHeadSize, kv_width = kv_heads * kHeadSize;
  const auto rows = uneven_rows(kTexts, 1, kMax);
  const int64_t m = total_rows(rows);
  OpContext c(cpu());
  const Tensor qkv = c.input("qkv", t, {m, width + 2 * kv_width}, -2, 2), all = c.output("all", t, {m, width});
  AttentionForward f;
  f.dtype = t, f.batch = kTexts, f.heads = heads, f.kv_heads = kv_heads, f.head_size = kHeadSize;
  f.query_tokens = f.kv_tokens = kMax, f.causal = true, f.scale = 0.5f;
  f.q = Heads::in(qkv, 0, kMax), f.k = Heads::in(qkv, width, kMax), f.v = Heads::in(qkv, width + kv_width, kMax);
  f.out = Heads::in(all, 0, kMax), f.lse = c.scratch("lse", kF32, {kTexts, heads, kMax});
  f.packing = make_packing(c, rows, kMax);
  Vec slots, positions, lengths;
  for (int64_t b = 0; b < kTexts; ++b)
    for (int64_t r = 0; r < rows[static_cast<size_t>(b)]; ++r)
      slots.push_back(static_cast<double>(kTexts - 1 - b)), positions.push_back(static_cast<double>(r));
  for (int64_t b = kTexts - 1; b >= 0; --b) lengths.push_back(static_cast<double>(rows[static_cast<size_t>(b)]));
  CacheWrite write;
  write.k = MatrixView(qkv).columns(width, kv_width), write.v = MatrixView(qkv).columns(width + kv_width, kv_width);
  write.slots = integers(c, "slots", slots), write.positions = integers(c, "places", positions);
  const Shape cache{kTexts * kMax, kv_width};
  write.cache = {c.inout("keys", t, cache), c.inout("values", t, cache), kMax};
  const Tensor queries = c.scratch("queries", t, {kTexts, width}), out = c.output("out", t, {kTexts, width});
  AttentionDecode a;
  a.q = queries, a.heads = heads, a.kv_heads = kv_heads, a.head_size = kHeadSize, a.scale = 0.5f;
  a.lengths = integers(c, "lengths", lengths), a.cache = write.cache, a.out = out;
  c.run([&](Ops& ops, Stream s) {
    ops.attention_forward(f, s);
    ops.cache_write(write, s);
    int64_t end = 0;
    for (int64_t b = 0; b < kTexts; ++b) {
      end += rows[static_cast<size_t>(b)];
      const MatrixView last = MatrixView(qkv).columns(0, width).row_range(end - 1, 1);
      ops.cast(last.tensor(), queries.row_range(kTexts - 1 - b, 1), s);
    }
    ops.attention_decode(a, s);
  });
  Vec expected;
  int64_t end = m;
  for (int64_t b = kTexts - 1; b >= 0; --b) {
    for (double x : c.read(all.row_range(end - 1, 1))) expected.push_back(x);
    end -= rows[static_cast<size_t>(b)];
  }
  CHECK_CLOSE(c.read(out), expected, bound(t));
}

}  // namespace

TEST_SUITE("cpu_decode") {
  TEST_CASE("begin_texts writes the slots of its texts, all beams alike, and no other") {
    OpContext c(cpu());
    BeginTexts a;
    a.beams = 2;
    a.texts = integers(c, "texts", {2, -1, 0}), a.lengths = integers(c, "new lengths", {2, 9, 1});
    a.ids = c.values("new ids", DType::i32, {21, 22, 23, 31, 32, 33, 41, 42, 43}).view({3, 3});
    a.limits = integers(c, "new limits", {4, 9, 3}), a.keys = c.values("new keys", DType::i64, {5000000000, 9, 7});
    a.memory_rows = integers(c, "memory_rows", {6, 9, 8}), a.deltas = integers(c, "deltas", {-3, 9, -2});
    const auto all = [&](const char* name, const std::vector<double>& numbers) {
      return c.changing_values(name, DType::i32, numbers);
    };
    a.state.ids = all("ids", Vec(24, -7)).view({6, 4});
    a.state.lengths = all("lengths", {1, 1, 2, 2, 3, 3}), a.state.prompt_lengths = all("prompts", Vec(6, 1));
    a.state.limits = all("limits", Vec(6, 4)), a.state.keys = c.changing_values("keys", DType::i64, Vec(6, 1));
    a.state.done = all("done", Vec(6, kEndToken)), a.memory_lengths = all("memory_lengths", Vec(6, 5));
    a.slot_deltas = all("slot_deltas", Vec(6, -1));
    a.sources = all("sources", Vec(30, 1)).view({6, 5}), a.closed = all("closed", {1, 1, 1});
    a.finished_lengths = all("finished_lengths", Vec(6, 3)).view({3, 2});
    a.finished_scores = c.changing_values("finished_scores", kF32, Vec(6, -2)).view({3, 2});
    c.run([&](Ops& ops, Stream s) { ops.begin_texts(a, s); });
    CHECK(c.read(a.state.ids) == Vec{41, -7, -7, -7, 41, -7, -7, -7, -7, -7, -7, -7,
                                     -7, -7, -7, -7, 21, 22, -7, -7, 21, 22, -7, -7});
    CHECK(c.read(a.state.lengths) == Vec{1, 1, 2, 2, 2, 2});
    CHECK(c.read(a.state.prompt_lengths) == Vec{1, 1, 1, 1, 2, 2});
    CHECK(c.read(a.state.limits) == Vec{3, 3, 4, 4, 4, 4});
    CHECK(c.read(a.state.keys) == Vec{7, 7, 1, 1, 5000000000, 5000000000});
    CHECK(c.read(a.state.done) == Vec{kRunning, kRunning, kEndToken, kEndToken, kRunning, kRunning});
    CHECK(c.read(a.memory_lengths) == Vec{8, 8, 5, 5, 6, 6});
    CHECK(c.read(a.slot_deltas) == Vec{-2, -2, -1, -1, -3, -3});
    CHECK(c.read(a.sources) == Vec{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1,
                                   1, 1, 1, 1, 1, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4});
    CHECK(c.read(a.finished_lengths) == Vec{0, 0, 3, 3, 0, 0});
    CHECK(c.read(a.finished_scores) == Vec{-1e9, -1e9, -2, -2, -1e9, -1e9});
    CHECK(c.read(a.closed) == Vec{0, 1, 0});
  }

  TEST_CASE("begin_texts refuses texts that there are not, ids that do not fit, and half of what beams have") {
    const auto refused = [](const std::string& words, auto change) {
      OpContext c(cpu());
      BeginTexts a = make_begin_texts(c, {3, 2, 2, 4, 9});
      change(c, a);
      CHECK_THROWS_WITH_AS(c.run([&](Ops& ops, Stream s) { ops.begin_texts(a, s); }),
                           doctest::Contains(words.c_str()), Error);
    };
    refused("begin_texts: texts[1] is 3, but there are 3 texts",
            [](OpContext& c, BeginTexts& a) { a.texts = integers(c, "far", {0, 3}); });
    refused("begin_texts: lengths[0] is 5, expected 1 to 4",
            [](OpContext& c, BeginTexts& a) { a.lengths = integers(c, "long", {5, 1}); });
    refused("lengths[0] is 0, expected 1 to 4",
            [](OpContext& c, BeginTexts& a) { a.lengths = integers(c, "none", {0, 1}); });
    refused("sources, finished_lengths, finished_scores and closed come all or not at all",
            [](OpContext&, BeginTexts& a) { a.closed = {}; });
    refused("beams have no sources",
            [](OpContext&, BeginTexts& a) { a.sources = a.finished_lengths = a.finished_scores = a.closed = {}; });
    refused("memory_rows and memory_lengths come both or not at all",
            [](OpContext& c, BeginTexts& a) { a.memory_rows = integers(c, "memory_rows", {1, 1}); });
    refused("deltas and slot_deltas come both or not at all",
            [](OpContext& c, BeginTexts& a) { a.deltas = integers(c, "deltas", {1, 1}); });
    refused("beams is 4, expected a divisor of 6 slots", [](OpContext&, BeginTexts& a) { a.beams = 4; });
    refused("keys has dtype i32, expected i64", [](OpContext&, BeginTexts& a) { a.keys = a.limits; });
  }

  TEST_CASE("next_rows gives the last id, its place and what it sees; nothing of slots that are empty or done") {
    OpContext c(cpu());
    NextRows a;
    a.state.ids = c.changing_values("ids", DType::i32, {7, 8, 9, 4, 5, 6, 1, 2, 3, 9, 9, 9}).view({4, 3});
    a.state.lengths = integers(c, "lengths", {2, 0, 3, 1});
    a.state.prompt_lengths = integers(c, "prompts", {1, 0, 1, 1});
    a.state.limits = integers(c, "limits", {3, 3, 3, 3});
    a.state.keys = c.values("keys", DType::i64, {0, 1, 2, 3});
    a.state.done = integers(c, "done", {kRunning, kRunning, kEndToken, kRunning});
    a.prefix_rows = 32;
    a.tokens = c.output("tokens", DType::i32, {4, 1});
    a.positions = c.output("places", DType::i32, {4}), a.cache_lengths = c.output("cache_lengths", DType::i32, {4});
    a.slot_deltas = integers(c, "slot_deltas", {-5, -5, -5, -30});
    a.rotary_positions = c.output("rotary_positions", DType::i32, {4});
    c.run([&](Ops& ops, Stream s) { ops.next_rows(a, s); });
    CHECK(c.read(a.tokens) == Vec{8, 0, 0, 9});
    CHECK(c.read(a.positions) == Vec{33, -1, -1, 32});
    CHECK(c.read(a.cache_lengths) == Vec{34, 0, 0, 33});
    CHECK(c.read(a.rotary_positions) == Vec{28, 0, 0, 2});
  }

  TEST_CASE("cache_write puts rows at their slots and places, leaves negative ones out, and refuses others") {
    OpContext c(cpu());
    CacheWrite a;
    a.k = c.input("k", kBf16, {4, 3}), a.v = c.input("v", kBf16, {4, 3});
    a.slots = integers(c, "slots", {1, 0, 1, 0}), a.positions = integers(c, "places", {0, 2, -1, 1});
    a.cache = {c.inout("keys", kBf16, {6, 3}), c.inout("values", kBf16, {6, 3}), 3};
    const auto before = [&](const char* name) {
      OpContext other(cpu());
      const Tensor t = other.input(name, kBf16, {6, 3});
      other.run([](Ops&, Stream) {});
      return other.read(t);
    };
    Vec keys = before("keys"), values = before("values");
    c.run([&](Ops& ops, Stream s) { ops.cache_write(a, s); });
    const Vec k = c.read(a.k), v = c.read(a.v);
    for (auto [from, to] : {std::pair{0, 3}, {1, 2}, {3, 1}})
      for (int64_t i = 0; i < 3; ++i) {
        at(keys, to * 3 + i) = at(k, from * 3 + i);
        at(values, to * 3 + i) = at(v, from * 3 + i);
      }
    CHECK(c.read(a.cache.keys) == keys);
    CHECK(c.read(a.cache.values) == values);
    OpContext other(cpu());
    CacheWrite wrong;
    wrong.k = other.input("k", kF32, {1, 3}), wrong.v = other.input("v", kF32, {1, 3});
    wrong.positions = integers(other, "places", {3});
    wrong.cache = {other.inout("keys", kF32, {6, 3}), other.inout("values", kF32, {6, 3}), 3};
    CHECK_THROWS_WITH_AS(other.run([&](Ops& ops, Stream s) { ops.cache_write(wrong, s); }),
                         doctest::Contains("row 0 goes to place 3 of slot 0, but there are 2 slots of 3 places"),
                         Error);
  }

  TEST_CASE("cache_write first rotates where requested, and refuses keys that lie elsewhere") {
    constexpr int64_t kHeads = 3, kKvHeads = 2, kSize = 6, kQ = kHeads * kSize, kKv = kKvHeads * kSize;
    const auto arguments = [&](OpContext& c) {
      const Tensor qkv = c.inout("qkv", kF32, {2, kQ + 2 * kKv});
      CacheWrite a{.k = MatrixView(qkv).columns(kQ, kKv), .v = MatrixView(qkv).columns(kQ + kKv, kKv)};
      a.positions = integers(c, "places", {1, 2});
      a.cache = {c.inout("keys", kF32, {6, kKv}), c.inout("values", kF32, {6, kKv}), 3};
      a.rotary.x = MatrixView(qkv).columns(0, kQ + kKv), a.rotary.head_size = kSize;
      a.rotary.positions = integers(c, "positions", {4, 9});
      a.rotary.frequencies[0] = 1, a.rotary.frequencies[1] = 0.1f, a.rotary.frequencies[2] = 0.01f;
      return a;
    };
    OpContext at_once(cpu()), apart(cpu());
    const CacheWrite one = arguments(at_once), other = arguments(apart);
    at_once.run([&](Ops& ops, Stream s) { ops.cache_write(one, s); });
    apart.run([&](Ops& ops, Stream s) {
      ops.rotary(other.rotary, s);
      CacheWrite write = other;
      write.rotary = {};
      ops.cache_write(write, s);
    });
    for (const auto& [found, expected] : {std::pair{one.cache.keys, other.cache.keys}, {one.cache.values, other.cache.values}})
      CHECK(at_once.read(found) == apart.read(expected));
    CHECK(at_once.read(one.rotary.x) == apart.read(other.rotary.x));
    OpContext refused(cpu());
    CacheWrite wrong = arguments(refused);
    wrong.rotary.x = wrong.rotary.x.columns(0, kQ);
    CHECK_THROWS_WITH_AS(refused.run([&](Ops& ops, Stream s) { ops.cache_write(wrong, s); }),
                         doctest::Contains("cache_write: k is not the last columns of what turns"), Error);
  }

  TEST_CASE("attention_decode against float64: windows, caps, grouped heads, shared places, empty slots") {
    for (DType t : {kF32, kBf16})
      for (const DecodeShape& v : kDecodeShapes) {
        if (v.slots * v.heads * v.d * v.positions > 1'500'000) continue;
        CAPTURE(name_of(t)); CAPTURE(v.slots); CAPTURE(v.d); CAPTURE(v.positions);
        OpContext c(cpu());
        const AttentionDecode a = make_attention_decode(c, t, v);
        c.run([&](Ops& ops, Stream s) { ops.attention_decode(a, s); });
        CHECK_CLOSE(c.read(a.out), attention_reference(c, a), bound(t));
      }
  }

  TEST_CASE("attention_decode of a text's last row is attention_forward's") {
    for (DType t : {kF32, kBf16})
      for (auto [heads, kv_heads] : {std::pair{3, 3}, {4, 2}, {4, 1}}) {
        CAPTURE(name_of(t)); CAPTURE(heads);
        check_last_rows(t, heads, kv_heads);
      }
  }

  TEST_CASE("attention_decode refuses numbers of slots that share places and do not divide them") {
    OpContext c(cpu());
    AttentionDecode a = make_attention_decode(c, kF32, {6, 2, 1, 4, 3, 0, 0, true, 0, 0, 4});
    CHECK_THROWS_WITH_AS(c.run([&](Ops& ops, Stream s) { ops.attention_decode(a, s); }),
                         doctest::Contains("sharing is 4, expected a divisor of 6 slots"), Error);
  }

  TEST_CASE("attention_decode refuses lengths and sources beyond the cache") {
    OpContext c(cpu());
    AttentionDecode a = make_attention_decode(c, kF32, {2, 2, 1, 4, 3, 0, 0, true});
    AttentionDecode far = a;
    a.lengths = integers(c, "too long", {3, 4});
    far.lengths = integers(c, "right", {3, 3}), far.sources = integers(c, "far", {0, 0, 0, 0, 2, 0}).view({2, 3});
    CHECK_THROWS_WITH_AS(c.run([&](Ops& ops, Stream s) { ops.attention_decode(a, s); }),
                         doctest::Contains("lengths[1] is 4, but a slot has 3 places"), Error);
    CHECK_THROWS_WITH_AS(c.run([&](Ops& ops, Stream s) { ops.attention_decode(far, s); }),
                         doctest::Contains("sources[1, 1] is 2, but there are 2 slots"), Error);
  }

  TEST_CASE("text_embed of one place takes OPT's position of it, and the padding's of a negative one") {
    for (DType t : {kF32, kBf16}) {
      OpContext c(cpu());
      TextEmbed f;
      f.ids = integers(c, "ids", {2, 0, 1}).view({3, 1}), f.row_positions = integers(c, "row_positions", {5, -1, 0});
      f.tokens = c.input("tokens", t, {3, 4}), f.positions = c.input("positions", t, {8, 4});
      f.x = c.output("x", t, {3, 4});
      c.run([&](Ops& ops, Stream s) { ops.text_embed_forward(f, s); });
      Vec expected;
      const Vec tokens = c.read(f.tokens), positions = c.read(f.positions);
      for (auto [id, row] : {std::pair{2, 7}, {0, 1}, {1, 2}})
        for (int64_t i = 0; i < 4; ++i) expected.push_back(at(tokens, id * 4 + i) + at(positions, row * 4 + i));
      CHECK_CLOSE(c.read(f.x), expected, t == kF32 ? 1e-7 : 1.0 / 256);
      f.row_positions = integers(c, "beyond", {6, 0, 0});
      CHECK_THROWS_WITH_AS(c.run([&](Ops& ops, Stream s) { ops.text_embed_forward(f, s); }),
                           doctest::Contains("row_positions[0] is 6, but positions has 8 rows"), Error);
    }
  }
}

}  // namespace blipft::test
