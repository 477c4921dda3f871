// Ladder step 1, continued: embeddings, ops that move rows, sums, casts, random numbers, optimizer updates.
#include <doctest/doctest.h>

#include <algorithm>
#include <tuple>

#include "blipft/patch_ops.h"
#include "blipft/philox.h"
#include "ops/op_reference.h"

namespace blipft::test {
namespace {

/// Rounds each number as a store in dtype `t` does.
Vec rounded(Vec numbers, DType t) {
  for (double& x : numbers) {
    const float f = static_cast<float>(x);
    x = static_cast<double>(t == kBf16 ? bf16_to_float(float_to_bf16(f)) : f);
  }
  return numbers;
}

/// Rows of n: out[i] = source[rows[i]], or zeros where rows[i] < 0.
Vec gather(const Vec& source, int64_t n, const std::vector<int64_t>& rows) {
  Vec out;
  for (int64_t r : rows)
    for (int64_t c = 0; c < n; ++c) out.push_back(r < 0 ? 0 : at(source, r * n + c));
  return out;
}

/// The adjoint: out [count, n] (starting from `start`), out[rows[i]] += source[i] where rows[i] >= 0.
Vec scatter(const Vec& source, int64_t n, const std::vector<int64_t>& rows, Vec start) {
  for (size_t i = 0; i < rows.size(); ++i)
    for (int64_t c = 0; c < n && rows[i] >= 0; ++c)
      at(start, rows[i] * n + c) += at(source, static_cast<int64_t>(i) * n + c);
  return start;
}

Vec zeros(int64_t n) { return Vec(static_cast<size_t>(n)); }

void check_vision_embed(DType t, DType gradient, bool accumulate, bool parameters) {
  constexpr int64_t kSamples = 3, kPatches = 4, kRows = 5, n = 7;
  OpContext c(cpu());
  VisionEmbed f, b;
  f.patches = c.input("patches", t, {kSamples * kPatches, n});
  f.class_embedding = c.input("class", t, {n});
  f.positions = c.input("positions", t, {kRows, n});
  f.x = c.output("x", t, {kSamples * kRows, n});
  b.patches = c.output("dpatches", t, {kSamples * kPatches, n});
  if (parameters) b.class_embedding = c.inout("dclass", gradient, {n});
  if (parameters) b.positions = c.inout("dpositions", gradient, {kRows, n});
  b.x = c.input("dx", t, {kSamples * kRows, n});
  b.accumulate = accumulate, b.parameters = parameters;
  c.run([&](Ops& ops, Stream s) {
    ops.vision_embed_forward(f, s);
    ops.vision_embed_backward(b, s);
  });
  // All rows that x can be made of, [class; patches], and which of them each row of x is.
  Vec table = c.read(f.class_embedding);
  const Vec patches = c.read(f.patches), dx = c.read(b.x);
  table.insert(table.end(), patches.begin(), patches.end());
  std::vector<int64_t> source, position;
  for (int64_t r = 0; r < kSamples * kRows; ++r) {
    source.push_back(r % kRows == 0 ? 0 : r / kRows * kPatches + r % kRows);
    position.push_back(r % kRows);
  }
  CHECK_CLOSE(c.read(f.x), sum_of(gather(table, n, source), gather(c.read(f.positions), n, position)), bound(t));
  const Vec dtable = scatter(dx, n, source, zeros((1 + kSamples * kPatches) * n));
  CHECK(c.read(b.patches) == Vec(dtable.begin() + n, dtable.end()));
  if (!parameters) return;
  Vec dclass(dtable.begin(), dtable.begin() + n), dpositions = scatter(dx, n, position, zeros(kRows * n));
  if (accumulate) {
    dclass = sum_of(dclass, numbers_named("dclass", gradient, {n}));
    dpositions = sum_of(dpositions, numbers_named("dpositions", gradient, {kRows, n}));
  }
  CHECK_CLOSE(c.read(b.class_embedding), dclass, bound(gradient));
  CHECK_CLOSE(c.read(b.positions), dpositions, bound(gradient));
}

void check_text_embed(DType t, DType gradient, bool accumulate, int64_t prefix, bool positions) {
  constexpr int64_t kSamples = 3, kTokens = 5, kVocabulary = 9, n = 7;
  const int64_t rows = prefix + kTokens, table_rows = rows + 4;
  const Vec ids{2, 4, 4, 8, 1, /**/ 2, 0, 1, 1, 1, /**/ 2, 4, 3, 3, 3}, lengths{4, 2, 5};
  OpContext c(cpu());
  TextEmbed f;
  f.ids = c.values("ids", DType::i32, ids).view({kSamples, kTokens});
  f.lengths = c.values("lengths", DType::i32, lengths);
  f.prefix_rows = prefix;
  f.padding_id = 1;
  TextEmbed b = f;
  if (prefix) f.prefix = c.input("prefix", t, {kSamples * prefix, n});
  f.tokens = c.input("tokens", t, {kVocabulary, n});
  if (positions) f.positions = c.input("positions", t, {table_rows, n});
  f.x = c.output("x", t, {kSamples * rows, n});
  if (prefix) b.prefix = c.output("dprefix", t, {kSamples * prefix, n});
  b.tokens = c.inout("dtokens", gradient, {kVocabulary, n});
  if (positions) b.positions = c.inout("dpositions", gradient, {table_rows, n});
  b.x = c.input("dx", t, {kSamples * rows, n});
  b.accumulate_tokens = b.accumulate_positions = accumulate;
  c.run([&](Ops& ops, Stream s) {
    ops.text_embed_forward(f, s);
    ops.text_embed_backward(b, s);
  });
  std::vector<int64_t> token, trained, from_prefix, position;
  for (int64_t r = 0; r < kSamples * rows; ++r) {
    const int64_t sample = r / rows, row = r % rows;
    const bool image = row < prefix;
    token.push_back(image ? -1 : static_cast<int64_t>(at(ids, sample * kTokens + row - prefix)));
    trained.push_back(token.back() == 1 ? -1 : token.back());
    from_prefix.push_back(image ? sample * prefix + row : -1);
    position.push_back(static_cast<double>(row) < static_cast<double>(prefix) + at(lengths, sample) ? row + 2 : 1);
  }
  Vec x = gather(c.read(f.tokens), n, token);
  if (prefix) x = sum_of(x, gather(c.read(f.prefix), n, from_prefix));
  if (positions) x = sum_of(x, gather(c.read(f.positions), n, position));
  CHECK_CLOSE(c.read(f.x), x, bound(t));
  const Vec dx = c.read(b.x);
  if (prefix) CHECK(c.read(b.prefix) == scatter(dx, n, from_prefix, zeros(kSamples * prefix * n)));
  const auto start = [&](const char* name, int64_t count) {
    return accumulate ? numbers_named(name, gradient, {count, n}) : zeros(count * n);
  };
  CHECK_CLOSE(c.read(b.tokens), scatter(dx, n, trained, start("dtokens", kVocabulary)), bound(gradient));
  if (positions)
    CHECK_CLOSE(c.read(b.positions), scatter(dx, n, position, start("dpositions", table_rows)), bound(gradient));
}

/// Rows of pictures anywhere among the tokens of three samples, one of them without a picture.
void check_scattered_text_embed(DType t, bool packed) {
  constexpr int64_t kTokens = 5, kVocabulary = 9, n = 7;
  const Vec ids{2, 4, 4, 8, 1, /**/ 2, 0, 1, 1, 1, /**/ 2, 4, 3, 3, 3}, lengths{4, 2, 5};
  const std::vector<int64_t> rows = packed ? std::vector<int64_t>{4, 2, 5} : std::vector<int64_t>{5, 5, 5};
  const std::vector<std::vector<int64_t>> pictured = {{1, 2}, {}, {0, 4}};  // tokens of each sample
  std::vector<int64_t> token, trained, picture;
  Vec picture_of_row, row_of_picture;
  for (int64_t b = 0; b < 3; ++b)
    for (int64_t k = 0; k < rows[static_cast<size_t>(b)]; ++k) {
      const auto& own = pictured[static_cast<size_t>(b)];
      const bool image = std::count(own.begin(), own.end(), k) > 0;
      token.push_back(image ? -1 : static_cast<int64_t>(at(ids, b * kTokens + k)));
      trained.push_back(token.back() == 1 ? -1 : token.back());
      picture.push_back(image ? static_cast<int64_t>(row_of_picture.size()) : -1);
      picture_of_row.push_back(static_cast<double>(picture.back()));
      if (image) row_of_picture.push_back(static_cast<double>(picture_of_row.size() - 1));
    }
  row_of_picture.push_back(-1);
  const auto m = static_cast<int64_t>(token.size());
  OpContext c(cpu());
  TextEmbed f{.ids = c.values("ids", DType::i32, ids).view({3, kTokens}), .lengths = c.values("lengths", DType::i32, lengths),
              .prefix_of_row = c.values("prefix_of_row", DType::i32, picture_of_row),
              .row_of_prefix = c.values("row_of_prefix", DType::i32, row_of_picture), .padding_id = 1, .token_scale = 2};
  if (packed) f.packing = make_packing(c, rows, kTokens);
  TextEmbed b = f;
  f.prefix = c.input("prefix", t, {5, n}), f.tokens = c.input("tokens", t, {kVocabulary, n}), f.x = c.output("x", t, {m, n});
  b.prefix = c.output("dprefix", t, {5, n}), b.tokens = c.output("dtokens", t, {kVocabulary, n});
  b.x = c.input("dx", t, {m, n});
  c.run([&](Ops& ops, Stream s) {
    ops.text_embed_forward(f, s);
    ops.text_embed_backward(b, s);
  });
  Vec tokens = gather(c.read(f.tokens), n, token), dtokens = scatter(c.read(b.x), n, trained, zeros(kVocabulary * n));
  for (Vec* scaled : {&tokens, &dtokens})
    for (double& x : *scaled) x *= 2;
  CHECK_CLOSE(c.read(f.x), sum_of(tokens, gather(c.read(f.prefix), n, picture)), bound(t));
  CHECK(c.read(b.prefix) == scatter(c.read(b.x), n, picture, zeros(5 * n)));
  CHECK_CLOSE(c.read(b.tokens), dtokens, bound(t));
}

/// One optimizer and its float64 twin over several steps with changing gradients.
struct Update {
  DType param, grad, state;
  bool master, adamw;
  double momentum;
};

/// torch.optim.AdamW (decoupled decay) and torch.optim.SGD, written as torch's single-tensor code orders them.
struct Twin {
  Vec p, m, v;
  void adamw(const Vec& g, double lr, int step, double wd) {
    const double b1 = 0.9, b2 = 0.95, eps = 1e-6;
    for (size_t i = 0; i < p.size(); ++i) {
      p[i] *= 1 - lr * wd;
      m[i] += (g[i] - m[i]) * (1 - b1);
      v[i] = v[i] * b2 + g[i] * g[i] * (1 - b2);
      const double denominator = std::sqrt(v[i]) / std::sqrt(1 - std::pow(b2, step)) + eps;
      p[i] -= lr / (1 - std::pow(b1, step)) * m[i] / denominator;
    }
  }
  void sgd(const Vec& g, double lr, int step, double wd, double momentum) {
    for (size_t i = 0; i < p.size(); ++i) {
      const double gradient = g[i] + wd * p[i];
      m[i] = step == 1 ? gradient : momentum * m[i] + gradient;
      p[i] -= lr * (momentum > 0 ? m[i] : gradient);
    }
  }
};

void check_update(const Update& u) {
  constexpr int64_t n = kSquaresSpan + 133;
  const double clip = 0.75, weight_decay = 0.1;
  const Vec start = numbers_named("param", u.param, {n});
  Twin twin{start, zeros(n), zeros(n)};
  Vec param = start, master = start, m = zeros(n), v = zeros(n);
  for (int step = 1; step <= 6; ++step) {
    const double lr = static_cast<double>(static_cast<float>(0.02 * step));
    OpContext c(cpu());
    const Tensor grad = c.input(concat("grad", step), u.grad, {n});
    const Tensor tp = c.values("p", u.param, param), tw = c.values("master", kF32, master);
    const Tensor tm = c.values("m", u.state, m), tv = c.values("v", u.state, v);
    const double correction1 = 1 - std::pow(0.9, step), correction2 = 1 - std::pow(0.95, step);
    const Tensor scalars = c.values("scalars", kF32, {lr, correction1, correction2, clip, 0, 0, 0, 0});
    // Everything is an input of the context, so copies are updated.
    const auto copy = [&](const Tensor& t) { return c.output("updated", t.dtype, t.shape); };
    const Tensor p2 = copy(tp), w2 = copy(tw), m2 = copy(tm), v2 = copy(tv);
    const Tensor squares = c.output("squares", kF32, {squares_count(n)});
    c.run([&](Ops& ops, Stream s) {
      for (auto [to, from] : {std::pair{p2, tp}, {w2, tw}, {m2, tm}, {v2, tv}}) ops.cast(from, to, s);
      if (u.adamw)
        ops.adamw_update({p2, u.master ? w2 : Tensor{}, grad, m2, v2, scalars, squares, 0.9f, 0.95f, 1e-6f,
                          0.1f}, s);
      else
        ops.sgd_update({p2, u.master ? w2 : Tensor{}, grad, u.momentum > 0 ? m2 : Tensor{}, scalars, squares,
                        static_cast<float>(u.momentum), 0.1f}, s);
    });
    param = c.read(p2), master = c.read(w2), m = c.read(m2), v = c.read(v2);
    Vec g = c.read(grad);
    Vec spans(static_cast<size_t>(squares_count(n)));
    for (size_t i = 0; i < g.size(); ++i) spans[i / kSquaresSpan] += g[i] * g[i];
    CHECK_CLOSE(c.read(squares), spans, 1e-7);  // rounded to f32 once
    for (double& value : g) value *= clip;
    if (u.adamw) twin.adamw(g, lr, step, weight_decay);
    else twin.sgd(g, lr, step, weight_decay, u.momentum);
  }
  if (u.master) CHECK(param == rounded(master, u.param));
  // f32 everywhere: six steps of a few roundings of 6e-8. bf16 moments: 2^-9 at each step, carried on with 0.9: less
  // than 10 * 2^-9 of the part of p that the updates made (about 1 per element, as p itself). A bf16 param without
  // master: each of 6 steps rounds by at most 2^-9, at random: 6 * 2^-9 covers it.
  const bool exact = u.state == kF32 && (u.master || u.param == kF32);
  CHECK_CLOSE(u.master ? master : param, twin.p, exact ? 2e-6 : 10.0 / 512);
  // The change itself, so that an error in it cannot hide behind p.
  Vec change = u.master ? master : param, expected = twin.p;
  for (size_t i = 0; i < change.size(); ++i) change[i] -= start[i], expected[i] -= start[i];
  CHECK_CLOSE(change, expected, exact ? 4e-6 : 20.0 / 512);
}

TEST_SUITE("cpu_rows") {
  TEST_CASE("embeddings: forward, gradients, accumulation, padding, positions") {
    for (DType t : {kF32, kBf16})
      for (DType gradient : {kF32, kBf16})
        for (bool accumulate : {false, true}) {
          if (t == kF32 && gradient == kBf16) continue;  // gradients have f32 or the compute dtype
          CAPTURE(name_of(t)); CAPTURE(name_of(gradient)); CAPTURE(accumulate);
          check_vision_embed(t, gradient, accumulate, true);
          check_vision_embed(t, gradient, accumulate, false);
          check_text_embed(t, gradient, accumulate, 3, true);
          check_text_embed(t, gradient, accumulate, 0, true);
          check_text_embed(t, gradient, accumulate, 2, false);
        }
    for (const DType t : {kF32, kBf16})
      for (const bool packed : {false, true}) check_scattered_text_embed(t, packed);
    OpContext c(cpu());
    TextEmbed wrong{.ids = c.values("ids", DType::i32, {0, 9}).view({1, 2}),
                    .lengths = c.values("lengths", DType::i32, {2}),
                    .tokens = c.input("tokens", kF32, {9, 4}),
                    .x = c.output("x", kF32, {2, 4})};
    CHECK_THROWS_WITH_AS(c.run([&](Ops& ops, Stream s) { ops.text_embed_forward(wrong, s); }),
                         doctest::Contains("token id 9 is outside of the table of 9 rows"), Error);
  }

  TEST_CASE("gather_rows copies the rows of a table by their numbers, and refuses numbers outside of it") {
    for (DType t : {kF32, kBf16}) {
      constexpr int64_t n = 5;
      OpContext c(cpu());
      const Tensor table = c.input("table", t, {7, n}), rows = c.output("rows", t, {4, n});
      const Tensor numbers = c.values("numbers", DType::i32, {6, 0, 3, 3});
      c.run([&](Ops& ops, Stream s) { ops.gather_rows(table, numbers, rows, s); });
      CHECK(c.read(rows) == gather(c.read(table), n, {6, 0, 3, 3}));
      const Tensor wrong = c.values("wrong", DType::i32, {0, 7, 1, 2});
      CHECK_THROWS_WITH_AS(c.run([&](Ops& ops, Stream s) { ops.gather_rows(table, wrong, rows, s); }),
                           doctest::Contains(", but the table has 7 rows"), Error);
    }
  }

  TEST_CASE("means of rows and their gradient") {
    for (DType t : {kF32, kBf16})
      for (int64_t count : {1, 4, 9}) {
        OpContext c(cpu());
        const Tensor x = c.input("x", t, {3 * count, 5}), means = c.output("means", t, {3, 5});
        const Tensor dmeans = c.input("dmeans", t, {3, 5}), dx = c.output("dx", t, x.shape);
        const Tensor wrong = c.scratch("wrong", t, {2, 5});
        c.run([&](Ops& ops, Stream s) {
          ops.mean_rows(x, means, s);
          ops.mean_rows_backward(dmeans, dx, s);
          if (count % 2) CHECK_THROWS_WITH_AS(ops.mean_rows(x, wrong, s), doctest::Contains("no multiple of the means"), Error);
        });
        const auto mean = [&](const Vec& v) {
          Vec all(15);
          for (int64_t i = 0; i < 15 * count; ++i) at(all, i / 5 / count * 5 + i % 5) += at(v, i) / static_cast<double>(count);
          return all;
        };
        const Vec values = c.read(x), gradient = c.read(dmeans);
        CHECK_CLOSE(c.read(means), mean(values), bound(t));
        CHECK_CLOSE(c.read(dx), differences(values, [&](const Vec& v) { return inner(gradient, mean(v)); }), bound(t));
      }
  }

  TEST_CASE("tiles, picked and spread rows") {
    for (DType t : {kF32, kBf16}) {
      constexpr int64_t n = 5;
      OpContext c(cpu());
      const Tensor rows = c.input("rows", t, {3, n}), tiled = c.output("tiled", t, {6, n});
      const Tensor dtiled = c.input("dtiled", t, {6, n}), drows = c.output("drows", kF32, {3, n});
      const Tensor more = c.inout("more", t, {3, n});
      RowBlocks pick{c.input("blocks", t, {2 * 6, n}), c.output("picked", t, {2 * 3, n}), 6, 2, 3}, spread = pick;
      spread.rows = c.input("drow", t, {2 * 3, n}), spread.blocks = c.output("spread", t, {2 * 6, n});
      c.run([&](Ops& ops, Stream s) {
        ops.tile_rows(rows, tiled, s);
        ops.sum_tiles(dtiled, drows, false, s);
        ops.sum_tiles(dtiled, more, true, s);
        ops.pick_rows(pick, s);
        ops.spread_rows(spread, s);
      });
      const std::vector<int64_t> tiles{0, 1, 2, 0, 1, 2}, picked{2, 3, 4, 8, 9, 10};
      CHECK(c.read(tiled) == gather(c.read(rows), n, tiles));
      CHECK_CLOSE(c.read(drows), scatter(c.read(dtiled), n, tiles, zeros(3 * n)), 1e-6);
      CHECK_CLOSE(c.read(more), scatter(c.read(dtiled), n, tiles, numbers_named("more", t, {3, n})), bound(t));
      CHECK(c.read(pick.rows) == gather(c.read(pick.blocks), n, picked));
      CHECK(c.read(spread.blocks) == scatter(c.read(spread.rows), n, picked, zeros(12 * n)));
    }
  }

  TEST_CASE("add_rows adds rows to those with their numbers, and gather_rows reads zeros for a negative number") {
    for (DType t : {kF32, kBf16}) {
      OpContext c(cpu());
      const Tensor rows = c.input("rows", t, {4, 7}), x = c.inout("x", t, {5, 7}), back = c.output("back", t, {4, 7});
      const Tensor numbers = c.values("numbers", DType::i32, {3, -1, 0, 4});
      c.run([&](Ops& ops, Stream s) {
        ops.add_rows(rows, numbers, x, s);
        ops.gather_rows(x, numbers, back, s);
      });
      const Vec sum = scatter(c.read(rows), 7, {3, -1, 0, 4}, numbers_named("x", t, {5, 7}));
      CHECK_CLOSE(c.read(x), sum, bound(t));
      CHECK(c.read(back) == gather(c.read(x), 7, {3, -1, 0, 4}));
      const Tensor twice = c.values("twice", DType::i32, {3, 3, -1, 0}), outside = c.values("outside", DType::i32, {5, -1, -1, -1});
      for (const Tensor& wrong : {twice, outside})
        CHECK_THROWS_AS(c.run([&](Ops& ops, Stream s) { ops.add_rows(rows, wrong, x, s); }), Error);
    }
  }

  TEST_CASE("the signs of a relu's output serve its derivative as the output does") {
    for (DType t : {kF32, kBf16})
      for (auto [m, k, n] : {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1}, {3, 5, 2}, {7, 24, 9}, {65, 128, 3}}) {
        OpContext c(cpu());
        const Tensor x = c.input("x", t, {m, k}, -1, 1), relu = c.output("relu", t, {m, k});
        const Tensor signs = c.output("signs", DType::u8, {(m * k + 7) / 8});
        const Tensor dy = c.input("dy", t, {m, n}), w = c.input("w", t, {n, k});
        const Tensor dx = c.output("dx", t, {m, k}), dx_signs = c.output("dx from signs", t, {m, k});
        const Tensor sums = c.output("sums", kF32, {k}), sums_signs = c.output("sums from signs", kF32, {k});
        c.run([&](Ops& ops, Stream s) {
          ops.activate(x, relu, Activation::relu, s);
          ops.pack_signs(relu, signs, s);
          LinearBackwardInput a;
          a.dy = dy, a.w = w, a.activation = Activation::relu;
          a.saved = relu, a.dbias = sums, a.dx = dx;
          ops.linear_backward_input(a, s);
          a.saved = signs, a.dbias = sums_signs, a.dx = dx_signs;
          ops.linear_backward_input(a, s);
        });
        CHECK(c.read(dx) == c.read(dx_signs));
        CHECK(c.read(sums) == c.read(sums_signs));
        const Vec in = c.read(x), bits = c.read(signs);
        for (size_t i = 0; i < 8 * bits.size(); ++i)
          CHECK((static_cast<int>(bits[i / 8]) >> i % 8 & 1) == (i < in.size() && in[i] > 0));
      }
    OpContext c(cpu());
    const Tensor odd = c.values("odd", kF32, {0, -0.0, std::nan(""), 1e-40, INFINITY, -INFINITY});
    const Tensor signs = c.output("signs", DType::u8, {1});
    c.run([&](Ops& ops, Stream s) { ops.pack_signs(odd, signs, s); });
    CHECK(c.read(signs) == Vec{0b011000});
  }

  TEST_CASE("activations, sums, casts, adds and fills") {
    for (DType t : {kF32, kBf16})
      for (int64_t n : {1, 5, 4096, 9001}) {
        OpContext c(cpu());
        const Tensor x = c.input("x", t, {n}, -3, 3), relu = c.output("relu", t, {n}), gelu = c.output("gelu", t, {n});
        const Tensor gelu_tanh = c.output("gelu_tanh", t, {n});
        const Tensor f32 = c.inout("f32", kF32, {n}), bf16 = c.inout("bf16", kBf16, {n});
        const Tensor half = c.output("half", DType::f16, {n}), filled = c.output("filled", t, {n});
        const Tensor integers = c.output("integers", DType::i32, {n});
        const Tensor squares = c.output("squares", kF32, {1}), sums = c.inout("sums", kF32, {1});
        c.run([&](Ops& ops, Stream s) {
          ops.activate(x, relu, Activation::relu, s);
          ops.activate(x, gelu, Activation::gelu, s);
          ops.activate(x, gelu_tanh, Activation::gelu_tanh, s);
          ops.add(x, f32, s);
          ops.add(x, bf16, s);
          ops.cast(x, half, s);
          ops.sum_squares(x, squares, false, s);
          ops.sum(f32, sums, false, s);
          ops.sum(f32, sums, true, s);
          ops.fill(filled, 1.5f, s);
          ops.fill_i32(integers, 16777217, s);   // no float holds it
        });
        const Vec in = c.read(x);
        Vec expected_relu = in, expected_gelu = in;
        for (double& value : expected_relu) value = std::max(value, 0.0);
        for (double& value : expected_gelu) value = 0.5 * value * std::erfc(-value / std::sqrt(2.0));
        CHECK(c.read(relu) == expected_relu);
        CHECK_CLOSE(c.read(gelu), expected_gelu, bound(t));
        Vec expected_tanh = in;
        for (double& value : expected_tanh)
          value = 0.5 * value * (1 + std::tanh(std::sqrt(2 / M_PI) * (value + 0.044715 * value * value * value)));
        CHECK_CLOSE(c.read(gelu_tanh), expected_tanh, bound(t));
        CHECK_CLOSE(c.read(f32), sum_of(in, numbers_named("f32", kF32, {n})), 1e-6);
        CHECK_CLOSE(c.read(bf16), sum_of(in, numbers_named("bf16", kBf16, {n})), 1.0 / 512);
        CHECK_CLOSE(c.read(half), in, 1.0 / 4096);  // f16 keeps 11 bits
        CHECK_CLOSE(c.read(squares), Vec{inner(in, in)}, 1e-6);
        double total = 0;
        for (double value : c.read(f32)) total += value;
        CHECK_CLOSE(c.read(sums), Vec{2 * total}, 1e-6);
        CHECK(c.read(filled) == Vec(static_cast<size_t>(n), 1.5));
        CHECK(c.read(integers) == Vec(static_cast<size_t>(n), 16777217));
      }
  }

  TEST_CASE("fill_normal: moments, independence of cuts, distinct streams") {
    constexpr int64_t n = 200000;
    OpContext c(cpu());
    const Tensor whole = c.output("whole", kF32, {n}), parts = c.output("parts", kF32, {n});
    const Tensor other = c.output("other", kF32, {n}), shifted = c.output("shifted", kF32, {n});
    c.run([&](Ops& ops, Stream s) {
      ops.fill_normal(whole, 42, 3, 10, 0, 1, s);
      ops.fill_normal(other, 42, 4, 10, 0, 1, s);
      ops.fill_normal(shifted, 42, 3, 10, 5, 0.5f, s);
      for (int64_t first : {0, 1, 4097, 100002}) {
        const int64_t end = first == 0 ? 1 : first == 1 ? 4097 : first == 4097 ? 100002 : n;
        ops.fill_normal(parts.part(first, {end - first}), 42, 3, 10 + first, 0, 1, s);
      }
    });
    const Vec x = c.read(whole), y = c.read(other);
    CHECK(x == c.read(parts));
    Vec affine = x;
    for (double& value : affine) value = 5 + 0.5 * value;
    CHECK_CLOSE(c.read(shifted), affine, 1e-6);
    // Standard deviations at n = 200000: mean 1 / sqrt(n) = 0.0022, variance sqrt(2 / n) = 0.0032, fourth moment
    // sqrt(96 / n) = 0.022, correlations 0.0022. Five of them allowed.
    const Vec ones(x.size(), 1);
    Vec squared = x;
    for (double& value : squared) value *= value;
    const Vec next(x.begin() + 1, x.end());
    CHECK(std::abs(inner(x, ones) / n) < 0.011);
    CHECK(std::abs(inner(x, x) / n - 1) < 0.016);
    CHECK(std::abs(inner(squared, squared) / n - 3) < 0.11);
    CHECK(std::abs(inner(x, y) / n) < 0.011);
    CHECK(std::abs(inner(next, x) / n) < 0.011);
    CHECK(*std::max_element(x.begin(), x.end()) > 3.5);  // missed with probability e^-46
  }

  TEST_CASE("Philox4x32-10 gives the published words") {
    // Known answers of the Random123 distribution (kat_vectors): counter and key all zeros, then all ones.
    const Philox4 zero = philox({0, 0, 0, 0}, 0, 0);
    CHECK(zero.x == 0x6627e8d5u);
    CHECK(zero.y == 0xe169c58du);
    CHECK(zero.z == 0xbc57ac4cu);
    CHECK(zero.w == 0x9b00dbd8u);
    const Philox4 one = philox({~0u, ~0u, ~0u, ~0u}, ~0u, ~0u);
    CHECK(one.x == 0x408f276du);
    CHECK(one.y == 0x41c83b0eu);
    CHECK(one.z == 0xa20bc7c6u);
    CHECK(one.w == 0x6d5451fdu);
  }

  TEST_CASE("AdamW and SGD follow torch over six steps") {
    for (bool adamw : {true, false})
      for (double momentum : {0.0, 0.9})
        for (const Update& u : {Update{kF32, kF32, kF32, false, adamw, momentum},
                                Update{kBf16, kF32, kF32, true, adamw, momentum},
                                Update{kBf16, kBf16, kF32, true, adamw, momentum},
                                Update{kBf16, kBf16, kBf16, false, adamw, momentum}}) {
          CAPTURE(name_of(u.param)); CAPTURE(name_of(u.grad)); CAPTURE(name_of(u.state));
          CAPTURE(adamw); CAPTURE(momentum);
          check_update(u);
        }
  }

  TEST_CASE("loss weights and the clip coefficient") {
    OpContext c(cpu());
    const Tensor counts = c.values("counts", kF32, {4, 0, 10}), weights = c.output("weights", kF32, {3});
    const Tensor squares = c.values("squares", kF32, {25}), small = c.values("small", kF32, {0.0625});
    Tensor scalars[3];
    for (int i = 0; i < 3; ++i) scalars[i] = c.output(concat("scalars", i), kF32, {kStepScalars});
    c.run([&](Ops& ops, Stream s) {
      ops.loss_weights(counts, weights, 8, s);
      ops.clip_coefficient(squares, scalars[0], 2, s);
      ops.clip_coefficient(squares, scalars[1], 0, s);
      ops.clip_coefficient(small, scalars[2], 2, s);
    });
    CHECK_CLOSE(c.read(weights), (Vec{1.0 / 32, 0, 1.0 / 80}), 1e-7);
    CHECK(c.read(scalars[0])[kGradNorm] == 5);
    CHECK(c.read(scalars[0])[kClipCoefficient] == doctest::Approx(2 / (5 + 1e-6)).epsilon(1e-6));
    CHECK(c.read(scalars[1])[kGradNorm] == 5);
    CHECK(c.read(scalars[1])[kClipCoefficient] == 1);
    CHECK(c.read(scalars[2])[kGradNorm] == 0.25);
    CHECK(c.read(scalars[2])[kClipCoefficient] == 1);
    CHECK(std::isnan(c.read(scalars[0])[kLearningRate]));  // the other scalars stay as they are
  }
}

}  // namespace
}  // namespace blipft::test
