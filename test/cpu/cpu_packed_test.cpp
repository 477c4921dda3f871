// Packed samples on the CPU: every op that takes them gives, bit for bit, the rows that it gives where all samples have
// the most rows, refuses packings that contradict themselves, and writes nothing for rows that do not exist.
#include <doctest/doctest.h>

#include <algorithm>
#include <utility>

#include "ops/op_reference.h"

namespace blipft::test {
namespace {

using Rows = std::vector<int64_t>;

// In turn: some rows, the most, one, none, nearly the most.
constexpr int64_t kMax = 12, kSamples = 5;
const Rows kRows{5, 12, 1, 0, 11};

/// Which rows of the padded matrix [samples * most, n] exist, in order.
Rows existing(const Rows& rows, int64_t maximum) {
  Rows padded;
  for (size_t b = 0; b < rows.size(); ++b)
    for (int64_t t = 0; t < rows[b]; ++t) padded.push_back(static_cast<int64_t>(b) * maximum + t);
  return padded;
}

/// Rows of n: those of `padded`, one after the other.
Vec pack(const Vec& padded, int64_t n, const Rows& rows) {
  Vec out;
  for (int64_t r : rows) out.insert(out.end(), padded.begin() + r * n, padded.begin() + (r + 1) * n);
  return out;
}

/// Zeros, but in the rows of `rows` the numbers of `padded`.
Vec only(const Vec& padded, int64_t n, const Rows& rows) {
  Vec out(padded.size());
  for (int64_t r : rows) std::copy_n(padded.begin() + r * n, n, out.begin() + r * n);
  return out;
}

/// Some numbers in (-1, 1) that dtype t holds exactly.
Vec numbers(const std::string& name, DType t, int64_t n) {
  OpContext c(cpu());
  const Tensor x = c.input(name, t, {n});
  c.run([](Ops&, Stream) {});
  return c.read(x);
}

Tensor matrix(OpContext& c, const std::string& name, DType t, const Vec& values, int64_t cols) {
  return c.values(name, t, values).view({static_cast<int64_t>(values.size()) / cols, cols});
}

/// One side of a comparison: padded or packed, the inputs of the padded one in both.
struct Side {
  bool packed;
  Rows rows = kRows;
  int64_t maximum = kMax;
  OpContext context{cpu()};

  /// The padded input `values`: itself, or its existing rows.
  Tensor input(const std::string& name, DType t, const Vec& values, int64_t cols) {
    return matrix(context, name, t, packed ? pack(values, cols, existing(rows, maximum)) : values, cols);
  }
  Tensor output(const std::string& name, DType t, int64_t cols) { return context.output(name, t, {count(), cols}); }
  int64_t count() const { return packed ? total_rows(rows) : static_cast<int64_t>(rows.size()) * maximum; }
  Packing packing() { return packed ? make_packing(context, rows, maximum) : Packing{}; }
  /// The expected packed rows of the output `t`.
  Vec kept(const Tensor& t) const {
    const Vec all = context.read(t);
    return packed ? all : pack(all, t.cols(), existing(rows, maximum));
  }
};

struct Attended {
  Vec out, lse, delta, dq, dkv, dbias;
};

constexpr int64_t kHeads = 4, kHeadSize = 7, kWidth = kHeads * kHeadSize;

/// Queries beside keys and values, or (with the bias gradient) all three in one matrix.
Attended attend(bool packed, DType t, bool causal, bool lengths, bool bias, bool accumulate, int64_t kv_heads,
                float dropout) {
  Side side{packed};
  OpContext& c = side.context;
  const int64_t all = kSamples * kMax, kv_width = kv_heads * kHeadSize, columns = kWidth + 2 * kv_width;
  const Rows exist = existing(kRows, kMax);
  const auto part = [&](const Tensor& m, int64_t i) {  // 0: queries; 1, 2: keys, values of a matrix with queries
    return Heads::in(m, i == 0 ? 0 : kWidth + (i - 1) * kv_width, kMax);
  };
  const auto kv_part = [&](const Tensor& m, int64_t i) {
    return bias ? part(m, 1 + i) : Heads::in(m, i * kv_width, kMax);
  };
  AttentionForward f;
  f.dtype = t, f.batch = kSamples, f.heads = kHeads, f.kv_heads = kv_heads, f.head_size = kHeadSize;
  f.query_tokens = f.kv_tokens = kMax, f.causal = causal, f.scale = 0.5f;
  const Tensor q = side.input("q", t, numbers("q", t, all * (bias ? columns : kWidth)), bias ? columns : kWidth);
  const Tensor kv = bias ? q : side.input("kv", t, numbers("kv", t, all * 2 * kv_width), 2 * kv_width);
  f.q = part(q, 0), f.k = kv_part(kv, 0), f.v = kv_part(kv, 1);
  const Tensor out = side.output("out", t, kWidth);
  f.out = part(out, 0);
  f.lse = c.output("lse", kF32, {kSamples, kHeads, kMax});
  f.packing = side.packing();
  if (dropout > 0) f.dropout = make_dropout(c, dropout, kSamples, kMax);
  // Padded samples see no key that does not exist; packed ones need no lengths for that.
  Vec visible;
  for (size_t b = 0; b < kRows.size(); ++b)
    visible.push_back(static_cast<double>(lengths && b % 2 == 0 ? kRows[b] - kRows[b] / 3 : kRows[b]));
  if (lengths || !packed) f.kv_lengths = c.values("kv_lengths", DType::i32, visible);
  Vec last_keys;                           // pictures of three rows
  for (const int64_t rows : kRows)
    for (int64_t i = 0; i < (packed ? rows : kMax); ++i)
      last_keys.push_back(static_cast<double>(i < rows ? std::min(rows - 1, i / 3 * 3 + 2) : i));
  if (causal && lengths) f.last_keys = c.values("last_keys", DType::i32, last_keys);
  AttentionBackward b;
  b.forward = f;
  // The gradient of rows that do not exist is 0.
  b.dout = part(side.input("dout", t, only(numbers("dout", t, all * kWidth), kWidth, exist), kWidth), 0);
  const Tensor dq = side.output("dq", t, bias ? columns : kWidth);
  const Tensor dkv = bias ? dq : side.output("dkv", t, 2 * kv_width);
  b.dq = part(dq, 0), b.dk = kv_part(dkv, 0), b.dv = kv_part(dkv, 1);
  b.delta = c.output("delta", kF32, f.lse.shape);
  b.accumulate_dbias = accumulate;
  if (bias) b.dbias = c.inout("dbias", kF32, {columns});
  c.run([&](Ops& ops, Stream s) {
    ops.attention_forward(f, s);
    ops.attention_backward(b, s);
  });
  return {side.kept(out), c.read(f.lse), c.read(b.delta), side.kept(dq), side.kept(dkv),
          bias ? c.read(b.dbias) : Vec{}};
}

/// Entries [sample, head, query] agree where the query exists; packed, the others are still the poison.
void check_queries(const Vec& packed, const Vec& padded) {
  for (size_t i = 0; i < packed.size(); ++i) {
    const size_t query = i % kMax, sample = i / (kMax * kHeads);
    CAPTURE(sample); CAPTURE(query);
    if (static_cast<int64_t>(query) < kRows[sample]) CHECK(packed[i] == padded[i]);
    else CHECK(std::isnan(packed[i]));
  }
}

/// Dropout, norm with dropout before it, and both backwards: sum, y, dx, dropped and the parameters' gradients.
std::vector<Vec> normed(bool packed, DType t, bool residual) {
  constexpr int64_t n = 37;
  Side side{packed};
  OpContext& c = side.context;
  const int64_t all = kSamples * kMax;
  const Rows exist = existing(kRows, kMax);
  NormForward f;
  f.x = side.input("x", t, numbers("x", t, all * n), n);
  if (residual) f.residual = side.input("residual", t, numbers("residual", t, all * n), n);
  f.dropout = make_dropout(c, 0.4f, kSamples, kMax);
  f.dropout.packing = side.packing();
  f.sum = side.output("sum", t, n), f.y = side.output("y", t, n);
  f.gamma = c.input("gamma", t, {n}), f.beta = c.input("beta", t, {n});
  f.mean = side.output("mean", kF32, 1), f.rstd = side.output("rstd", kF32, 1);
  NormBackward b;
  b.dy = side.input("dy", t, only(numbers("dy", t, all * n), n, exist), n);
  b.x = f.sum, b.mean = f.mean, b.rstd = f.rstd, b.gamma = f.gamma, b.dropout = f.dropout;
  b.dgamma = c.output("dgamma", kF32, {n}), b.dbeta = c.output("dbeta", kF32, {n});
  b.dbias = c.inout("dbias", kF32, {n}), b.accumulate_dbias = true;
  b.dx = side.output("dx", t, n), b.dropped = side.output("dropped", t, n);
  const DropoutAdd add{f.x, f.residual, f.dropout, side.output("dropout_add", t, n)};
  c.run([&](Ops& ops, Stream s) {
    ops.norm_forward(f, s);
    ops.norm_backward(b, s);
    ops.dropout_add(add, s);
  });
  return {side.kept(f.sum), side.kept(f.y), side.kept(f.mean), side.kept(f.rstd), side.kept(b.dx),
          side.kept(b.dropped), side.kept(add.y), c.read(b.dgamma), c.read(b.dbeta), c.read(b.dbias)};
}

/// x, and the gradients of the prefix, tokens and positions.
std::vector<Vec> text(bool packed, DType t, bool accumulate, bool positions) {
  constexpr int64_t kPrefix = 3, kTokens = 6, kVocabulary = 9, n = 5, maximum = kPrefix + kTokens;
  const Rows rows{7, 9, 4, 8};
  const int64_t samples = 4;
  Side side{packed, rows, maximum};
  OpContext& c = side.context;
  // Packed, ids without a row are in no table.
  Vec ids{2, 4, 4, 8, 1, 1, /**/ 2, 0, 3, 1, 5, 1, /**/ 2, 4, 3, 3, 3, 3, /**/ 7, 2, 2, 1, 6, 6};
  for (size_t i = 0; i < ids.size() && packed; ++i)
    if (static_cast<int64_t>(i) % kTokens >= rows[i / kTokens] - kPrefix) ids[i] = i % 2 ? 1000000 : -7;
  TextEmbed f;
  f.ids = matrix(c, "ids", DType::i32, ids, kTokens);
  f.lengths = c.values("lengths", DType::i32, {4, 5, 1, 3});  // the first and third have no padding
  f.prefix_rows = kPrefix, f.padding_id = 1;
  f.packing = side.packing();
  TextEmbed b = f;
  f.prefix = c.input("prefix", t, {samples * kPrefix, n});
  f.tokens = c.input("tokens", t, {kVocabulary, n});
  if (positions) f.positions = c.input("positions", t, {maximum + 2, n});
  f.x = side.output("x", t, n);
  b.prefix = c.output("dprefix", t, {samples * kPrefix, n});
  b.tokens = c.inout("dtokens", kF32, {kVocabulary, n});
  if (positions) b.positions = c.inout("dpositions", kF32, {maximum + 2, n});
  b.accumulate_tokens = b.accumulate_positions = accumulate;
  b.x = side.input("dx", t, only(numbers("dx", t, samples * maximum * n), n, existing(rows, maximum)), n);
  c.run([&](Ops& ops, Stream s) {
    ops.text_embed_forward(f, s);
    ops.text_embed_backward(b, s);
  });
  return {side.kept(f.x), c.read(b.prefix), c.read(b.tokens), positions ? c.read(b.positions) : Vec{}};
}

/// Every row is written once: picked rows are those of the padded blocks, and spreading them is the adjoint.
/// With `fixed` each block gives that many, and spreading keeps what the other rows hold.
void check_blocks(DType t, int64_t offset, int64_t left_out, const Rows& rows, int64_t fixed = 0) {
  constexpr int64_t n = 3;
  Rows exist, picked;                        // padded rows, all and those that are picked
  for (size_t b = 0; b < rows.size(); ++b)
    for (int64_t r = 0; r < rows[b]; ++r) {
      exist.push_back(static_cast<int64_t>(b) * kMax + r);
      if (r >= offset && (fixed > 0 ? r < offset + fixed : r < rows[b] - left_out)) picked.push_back(exist.back());
    }
  const Vec padded = numbers("blocks", t, static_cast<int64_t>(rows.size()) * kMax * n);
  Side side{true, rows};
  OpContext& c = side.context;
  RowBlocks pick;
  pick.block_rows = kMax, pick.offset = offset, pick.count = fixed > 0 ? fixed : kMax - offset - left_out;
  pick.fixed = pick.keep = fixed > 0;
  pick.packing = side.packing();
  RowBlocks spread = pick;
  pick.blocks = side.input("blocks", t, padded, n);
  pick.rows = c.output("rows", t, {static_cast<int64_t>(picked.size()), n});
  spread.rows = pick.rows;
  Vec expected = pack(only(padded, n, picked), n, exist), before = pack(padded, n, exist);
  for (double& value : before) value = -value;
  if (fixed > 0) {
    const Vec written = pack(only(Vec(padded.size(), 1), n, picked), n, exist);
    for (size_t i = 0; i < expected.size(); ++i)
      if (written[i] == 0) expected[i] = before[i];
  }
  spread.blocks =
      fixed > 0 ? c.changing_values("spread", t, before).view({side.count(), n}) : side.output("spread", t, n);
  c.run([&](Ops& ops, Stream s) {
    ops.pick_rows(pick, s);
    ops.spread_rows(spread, s);
  });
  CHECK(c.read(pick.rows) == pack(padded, n, picked));
  CHECK(c.read(spread.blocks) == expected);
}

/// Checks that a call with these arguments throws an error with this text, on the CPU and in the plan backend: `contents` are
/// seen by the CPU alone.
template <class F>
void check_refused(const char* text, bool contents, F f) {
  CAPTURE(text);
  OpContext c(cpu());
  CHECK_THROWS_WITH_AS(f(c), doctest::Contains(text), Error);
  const auto device = make_plan_device();
  const auto ops = make_plan_ops();
  Backend plan(*device, *ops);
  OpContext planned(plan);
  if (contents) CHECK_NOTHROW(f(planned));
  else CHECK_THROWS_WITH_AS(f(planned), doctest::Contains(text), Error);
}

/// dropout_add over six rows of samples with at most four.
void refuse_dropout(const char* text, bool contents, const Vec& starts, const Vec& padded_rows, int64_t maximum = 4,
                    DType index = DType::i32) {
  check_refused(text, contents, [&](OpContext& c) {
    DropoutAdd a;
    a.x = c.input("x", kF32, {6, 3}), a.y = c.output("y", kF32, {6, 3});
    a.dropout = make_dropout(c, 0.5f, 2, maximum);
    if (!starts.empty()) a.dropout.packing.starts = c.values("starts", index, starts);
    if (!padded_rows.empty()) a.dropout.packing.padded_rows = c.values("padded_rows", index, padded_rows);
    c.run([&](Ops& ops, Stream s) { ops.dropout_add(a, s); });
  });
}

/// Attention over samples of two and four rows; `change` breaks it.
template <class F>
void refuse_attention(const char* text, bool contents, F change) {
  check_refused(text, contents, [&](OpContext& c) {
    AttentionForward f;
    f.batch = 2, f.heads = 1, f.head_size = 3, f.query_tokens = f.kv_tokens = 4;
    f.packing = make_packing(c, {2, 4}, 4);
    const Tensor qkv = c.input("qkv", kF32, {6, 9});
    f.q = Heads::in(qkv, 0, 4), f.k = Heads::in(qkv, 3, 4), f.v = Heads::in(qkv, 6, 4);
    f.out = Heads::in(c.output("out", kF32, {6, 3}), 0, 4);
    f.lse = c.output("lse", kF32, {2, 1, 4});
    change(c, f);
    c.run([&](Ops& ops, Stream s) { ops.attention_forward(f, s); });
  });
}

TEST_SUITE("cpu_packed") {
  TEST_CASE("attention of packed samples is that of padded ones; queries that do not exist are not written") {
    for (DType t : {kF32, kBf16})
      for (bool causal : {false, true})
        for (bool lengths : {false, true})
          for (auto [bias, kv_heads] : {std::pair<int, int64_t>{0, kHeads}, {1, kHeads}, {2, kHeads}, {0, 2}, {1, 1},
                                        {2, 2}}) {
            CAPTURE(name_of(t)); CAPTURE(causal); CAPTURE(lengths); CAPTURE(bias); CAPTURE(kv_heads);
            const float dropout = causal ? 0.0f : 0.3f;
            const Attended packed = attend(true, t, causal, lengths, bias > 0, bias == 2, kv_heads, dropout);
            const Attended padded = attend(false, t, causal, lengths, bias > 0, bias == 2, kv_heads, dropout);
            CHECK(packed.out == padded.out);
            CHECK(packed.dq == padded.dq);
            CHECK(packed.dkv == padded.dkv);
            CHECK(packed.dbias == padded.dbias);
            const int64_t columns = bias ? kWidth + 2 * kv_heads * kHeadSize : kWidth;
            CHECK(packed.dq.size() == static_cast<size_t>(total_rows(kRows) * columns));
            check_queries(packed.lse, padded.lse);
            check_queries(packed.delta, padded.delta);
          }
  }

  TEST_CASE("dropout, norms and their gradients: packing changes no mask") {
    for (DType t : {kF32, kBf16})
      for (bool residual : {false, true}) {
        CAPTURE(name_of(t)); CAPTURE(residual);
        const std::vector<Vec> packed = normed(true, t, residual), padded = normed(false, t, residual);
        for (size_t i = 0; i < packed.size(); ++i) {
          CAPTURE(i);
          CHECK(packed[i] == padded[i]);
        }
        // Without a residual the sum is 0 exactly where the mask drops: some, not all.
        const auto dropped = std::count(packed[0].begin(), packed[0].end(), 0.0);
        if (!residual) CHECK(dropped > 100);
        if (!residual) CHECK(dropped < static_cast<int64_t>(packed[0].size()) - 100);
      }
  }

  TEST_CASE("embedded text: rows, and gradients from the rows that exist") {
    for (DType t : {kF32, kBf16})
      for (bool accumulate : {false, true})
        for (bool positions : {false, true}) {
          CAPTURE(name_of(t)); CAPTURE(accumulate); CAPTURE(positions);
          const std::vector<Vec> packed = text(true, t, accumulate, positions);
          const std::vector<Vec> padded = text(false, t, accumulate, positions);
          for (size_t i = 0; i < packed.size(); ++i) {
            CAPTURE(i);
            CHECK(packed[i] == padded[i]);
          }
        }
  }

  TEST_CASE("picked and spread rows") {
    for (DType t : {kF32, kBf16}) {
      check_blocks(t, 4, 1, {7, 12, 5, 11});  // the third block gives no row
      check_blocks(t, 0, 0, kRows);
      check_blocks(t, 0, 3, {3, 12, 4});
      check_blocks(t, 5, 0, {12});
      check_blocks(t, 0, 0, {5, 12, 1, 11}, 1);  // each has as many
      check_blocks(t, 1, 0, {4, 12, 5}, 3);
    }
  }

  TEST_CASE("arguments that contradict each other are refused by every backend") {
    const Vec starts{0, 2, 6}, padded_rows{0, 1, 4, 5, 6, 7};
    refuse_dropout("packing.padded_rows come both or not at all", false, starts, {});
    refuse_dropout("packing.starts is missing", false, {}, padded_rows);
    refuse_dropout("packing.padded_rows has shape [5], expected 6 elements", false, starts, {0, 1, 4, 5, 6});
    refuse_dropout("dropout.sample_keys has shape [2], expected 3", false, {0, 2, 4, 6}, padded_rows);
    refuse_dropout("packing.starts has dtype f32, expected i32", false, starts, padded_rows, 4, kF32);
    refuse_dropout("6 packed rows are more than 2 samples of at most 2 have", false, starts, padded_rows, 2);
    refuse_dropout("rows_per_sample is not positive", false, starts, padded_rows, 0);
    refuse_attention("packing needs query_tokens == kv_tokens", false,
                     [](OpContext&, AttentionForward& f) { f.kv_tokens = 3; });
    refuse_attention("key_packing goes with packing, and is not for causal attention", false,
                     [](OpContext&, AttentionForward& f) { f.key_packing = f.packing, f.causal = true; });
    refuse_attention("key_packing goes with packing, and is not for causal attention", false,
                     [](OpContext&, AttentionForward& f) { std::swap(f.key_packing, f.packing), f.causal = false; });
    refuse_attention("dropout.packing is for rows, not for probabilities", false,
                     [](OpContext& c, AttentionForward& f) {
                       f.dropout = make_dropout(c, 0.5f, 2, 4);
                       std::swap(f.dropout.packing, f.packing);
                     });
    refuse_attention("numbers.head 8 and numbers.query 8 are too small for 1 heads, 4 queries and 4 keys", false,
                     [](OpContext& c, AttentionForward& f) {
                       f.dropout = make_dropout(c, 0.5f, 2, 4);
                       f.dropout.packing = {}, f.numbers = {8, 8};
                     });
    refuse_attention("numbers are not multiples of a dropout block", false, [](OpContext& c, AttentionForward& f) {
      f.dropout = make_dropout(c, 0.5f, 2, 4);
      f.dropout.packing = {}, f.numbers = {20, 4};
    });
    refuse_attention("packing.starts has shape [3], expected 4 elements", false,
                     [](OpContext& c, AttentionForward& f) { f.batch = 3, f.lse = c.output("more", kF32, {3, 1, 4}); });
    refuse_attention("packing.padded_rows come both or not at all", false,
                     [](OpContext&, AttentionForward& f) { f.packing.padded_rows = {}; });
    check_refused("x has 3 rows, fewer than 2 samples with 2 prefix rows each", false, [](OpContext& c) {
      TextEmbed a;
      a.ids = c.values("ids", DType::i32, {0, 1, 2, 3}).view({2, 2});
      a.lengths = c.values("lengths", DType::i32, {0, 0});
      a.prefix = c.input("prefix", kF32, {4, 2}), a.prefix_rows = 2;
      a.tokens = c.input("tokens", kF32, {4, 2});
      a.packing = make_packing(c, {2, 1}, 4);
      a.x = c.output("x", kF32, {3, 2});
      c.run([&](Ops& ops, Stream s) { ops.text_embed_forward(a, s); });
    });
    const auto blocks = [](int64_t count, int64_t rows) {
      return [=](OpContext& c) {
        const RowBlocks a{c.input("blocks", kF32, {6, 2}), c.output("rows", kF32, {rows, 2}), 4, 1, count,
                          make_packing(c, {2, 4}, 4)};
        c.run([&](Ops& ops, Stream s) { ops.pick_rows(a, s); });
      };
    };
    check_refused("rows has shape [3, 2], expected 2 rows", false, blocks(2, 3));
    check_refused("blocks has 6 rows, but 4 are left out of each of 2 blocks", false, [](OpContext& c) {
      const RowBlocks a{c.input("blocks", kF32, {6, 2}), c.output("rows", kF32, {1, 2}), 5, 1, 1,
                        make_packing(c, {2, 4}, 5)};
      c.run([&](Ops& ops, Stream s) { ops.spread_rows(a, s); });
    });
  }

  TEST_CASE("numbers that contradict each other are refused on the CPU") {
    refuse_dropout("packing.starts goes from 1 to 6, expected from 0 to 6", true, {1, 2, 6}, {0, 1, 4, 5, 6, 7});
    refuse_dropout("packing.starts goes from 0 to 5, expected from 0 to 6", true, {0, 2, 5}, {0, 1, 4, 5, 6, 7});
    refuse_dropout("packed sample 1 has rows 1 up to 6, expected 0 to 4 rows", true, {0, 1, 6}, {0, 4, 5, 6, 7, 8});
    refuse_dropout("packed sample 0 has rows 0 up to 7", true, {0, 7, 6}, {0, 1, 2, 3, 4, 5});
    refuse_dropout("packed sample 1 has rows 7 up to 6", true, {0, 7, 6}, {0, 1, 2, 3, 4, 5}, 8);
    refuse_dropout("packing.padded_rows[2] is 2, expected 4", true, {0, 2, 6}, {0, 1, 2, 5, 6, 7});
    refuse_attention("packed sample 0 has kv_lengths 3, but 2 rows", true, [](OpContext& c, AttentionForward& f) {
      f.kv_lengths = c.values("kv_lengths", DType::i32, {3, 4});
    });
    check_refused("packed block 0 has 1 rows, but 2 are left out of it", true, [](OpContext& c) {
      const RowBlocks a{c.input("blocks", kF32, {5, 2}), c.output("rows", kF32, {1, 2}), 4, 1, 2,
                        make_packing(c, {1, 4}, 4)};
      c.run([&](Ops& ops, Stream s) { ops.pick_rows(a, s); });
    });
    check_refused("packed sample 1 has 3 rows, expected at least 2 + 2", true, [](OpContext& c) {
      TextEmbed a;
      a.ids = c.values("ids", DType::i32, {0, 1, 2, 3}).view({2, 2});
      a.lengths = c.values("lengths", DType::i32, {2, 2});
      a.prefix = c.input("prefix", kF32, {4, 2}), a.prefix_rows = 2;
      a.tokens = c.input("tokens", kF32, {4, 2});
      a.packing = make_packing(c, {4, 3}, 4);
      a.x = c.output("x", kF32, {7, 2});
      c.run([&](Ops& ops, Stream s) { ops.text_embed_forward(a, s); });
    });
  }
}

}  // namespace
}  // namespace blipft::test
