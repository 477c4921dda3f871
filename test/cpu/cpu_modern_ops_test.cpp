// Ladder step 1: what today's families of text models ask of the ops beside LLaMA's, on the CPU against float64 and
// finite differences: forms of RMSNorm, norms of heads, other gates, windows and caps, partial rotary positions.
#include <doctest/doctest.h>

#include <cmath>

#include "blipft/head_norm.h"
#include "blipft/relative_bias.h"
#include "ops/op_reference.h"

namespace blipft::test {
namespace {

/// Groups of gamma's size: (offset + gamma) x / sqrt(mean(x^2) + eps)
Vec rms_norm(const Vec& x, const Vec& gamma, double offset, double eps) {
  const size_t n = gamma.size();
  Vec y(x.size());
  for (size_t first = 0; first < x.size(); first += n) {
    double squares = 0;
    for (size_t c = 0; c < n; ++c) squares += x[first + c] * x[first + c];
    const double rstd = 1 / std::sqrt(squares / static_cast<double>(n) + eps);
    for (size_t c = 0; c < n; ++c) y[first + c] = (offset + gamma[c]) * x[first + c] * rstd;
  }
  return y;
}

const RmsForm kForms[] = {{0, false}, {1, false}, {0, true}, {1, true}};

void check_rms_form(DType t, const RmsForm& form) {
  constexpr int64_t m = 3, n = 17;
  OpContext c(cpu());
  NormForward f;
  f.x = c.input("x", t, {m, n}, -1, 2), f.gamma = c.input("gamma", t, {n}, -0.5, 0.5);
  f.eps = 1e-3f, f.rms = form;
  f.y = c.output("y", t, {m, n}), f.rstd = c.output("rstd", kF32, {m});
  NormBackward b;
  b.dy = c.input("dy", t, {m, n}), b.x = f.x, b.rstd = f.rstd, b.gamma = f.gamma, b.rms = form;
  b.y = c.output("y again", t, {m, n}), b.dgamma = c.output("dgamma", kF32, {n}), b.dx = c.output("dx", t, {m, n});
  c.run([&](Ops& ops, Stream s) {
    ops.norm_forward(f, s);
    ops.norm_backward(b, s);
  });
  CHECK(c.read(b.y) == c.read(f.y));
  const Vec gamma = c.read(f.gamma), dy = c.read(b.dy), x = c.read(f.x);
  const auto offset = static_cast<double>(form.offset), eps = static_cast<double>(f.eps);
  CHECK_CLOSE(c.read(f.y), rms_norm(x, gamma, offset, eps), bound(t));
  CHECK_CLOSE(c.read(b.dx), differences(x, [&](const Vec& v) { return inner(dy, rms_norm(v, gamma, offset, eps)); }),
              bound(t));
  CHECK_CLOSE(c.read(b.dgamma),
              differences(gamma, [&](const Vec& g) { return inner(dy, rms_norm(x, g, offset, eps)); }), bound(kF32));
}

/// Heads in columns of a wider matrix; with `in_place`, dx where dy is.
void check_head_norm(DType t, const RmsForm& form, int64_t groups, int64_t size, bool in_place, bool accumulate) {
  constexpr int64_t m = 4, behind = 5;
  const int64_t n = groups * size;
  OpContext c(cpu());
  const Tensor wide = c.input("x", t, {m, n + behind}, -1, 2);
  HeadNormForward f{.x = MatrixView(wide).columns(0, n), .size = size, .gamma = c.input("gamma", t, {size}, -0.5, 0.5),
                    .eps = 1e-3f, .rms = form, .y = c.output("y", t, {m, n}),
                        .rstd = c.output("rstd", kF32, {m, groups})};
  const Tensor dy = in_place ? c.inout("dy", t, {m, n + 2}) : c.input("dy", t, {m, n + 2});
  const Tensor before = c.input("dy", t, {m, n + 2});     // the same numbers: of the same name
  const Tensor dgamma = accumulate ? c.inout("dgamma", kF32, {size}) : c.output("dgamma", kF32, {size});
  const Tensor old = c.input("dgamma", kF32, {size});
  HeadNormBackward b{.dy = MatrixView(dy).columns(0, n), .x = f.x, .size = size, .gamma = f.gamma, .rms = form,
                     .rstd = f.rstd, .dgamma = dgamma, .accumulate = accumulate};
  b.dx = in_place ? b.dy : MatrixView(c.output("dx", t, {m, n}));
  c.run([&](Ops& ops, Stream s) {
    ops.head_norm_forward(f, s);
    ops.head_norm_backward(b, s);
  });
  const Vec x = c.read(f.x), gamma = c.read(f.gamma), go = c.read(MatrixView(before).columns(0, n));
  const auto offset = static_cast<double>(form.offset), eps = static_cast<double>(f.eps);
  CHECK_CLOSE(c.read(f.y), rms_norm(x, gamma, offset, eps), bound(t));
  CHECK_CLOSE(c.read(b.dx), differences(x, [&](const Vec& v) { return inner(go, rms_norm(v, gamma, offset, eps)); }),
              bound(t));
  Vec expected = differences(gamma, [&](const Vec& g) { return inner(go, rms_norm(x, g, offset, eps)); });
  if (accumulate) expected = sum_of(expected, c.read(old));
  CHECK_CLOSE(c.read(dgamma), expected, bound(kF32));
  CHECK(c.read(MatrixView(dy).columns(n, 2)) == c.read(MatrixView(before).columns(n, 2)));
}

double gate(GateActivation activation, double x) {
  switch (activation) {
    case GateActivation::silu: return x / (1 + std::exp(-x));
    case GateActivation::gelu: return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    case GateActivation::gelu_tanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case GateActivation::relu: return x < 0 ? 0 : x;
  }
  return 0;
}

Vec gated(GateActivation activation, const Vec& gate_up, size_t inner) {
  Vec y;
  for (size_t first = 0; first < gate_up.size(); first += 2 * inner)
    for (size_t c = 0; c < inner; ++c) y.push_back(gate(activation, gate_up[first + c]) * gate_up[first + inner + c]);
  return y;
}

/// One head each, [tokens, d] and as many keys.
struct Scores {
  int64_t tokens, d, window, keys;
  double scale, cap;
  Vec last_keys{};       ///< empty: causal
};

Vec attention(const Scores& a, const Vec& q, const Vec& k, const Vec& v) {
  Vec out(q.size());
  for (int64_t i = 0; i < a.tokens; ++i) {
    Vec p(static_cast<size_t>(a.tokens));
    double total = 0;
    const auto last = a.last_keys.empty() ? i : static_cast<int64_t>(at(a.last_keys, i));
    for (int64_t j = 0; j <= last && j < a.keys; ++j) {
      if (a.window > 0 && j <= i - a.window) continue;
      double score = 0;
      for (int64_t c = 0; c < a.d; ++c) score += a.scale * at(q, i * a.d + c) * at(k, j * a.d + c);
      if (a.cap > 0) score = a.cap * std::tanh(score / a.cap);
      total += at(p, j) = std::exp(score);
    }
    for (int64_t j = 0; total > 0 && j < a.tokens; ++j)
      for (int64_t c = 0; c < a.d; ++c) at(out, i * a.d + c) += at(p, j) / total * at(v, j * a.d + c);
  }
  return out;
}

void check_attention(DType t, const Scores& a) {
  OpContext c(cpu());
  const Shape shape{a.tokens, a.d};
  const Tensor q = c.input("q", t, shape, -3, 3), k = c.input("k", t, shape, -3, 3), v = c.input("v", t, shape);
  const Tensor out = c.output("out", t, shape), dout = c.input("dout", t, shape);
  const Tensor dq = c.output("dq", t, shape), dk = c.output("dk", t, shape), dv = c.output("dv", t, shape);
  AttentionForward f{.dtype = t, .batch = 1, .heads = 1, .head_size = a.d, .query_tokens = a.tokens,
                     .kv_tokens = a.tokens, .scale = static_cast<float>(a.scale), .causal = true, .window = a.window,
                     .cap = static_cast<float>(a.cap)};
  const auto heads = [&](const Tensor& tensor) { return Heads::in(tensor, 0, a.tokens); };
  f.q = heads(q), f.k = heads(k), f.v = heads(v), f.out = heads(out);
  f.lse = c.scratch("lse", kF32, {1, 1, a.tokens});
  if (a.keys < a.tokens) f.kv_lengths = c.values("kv_lengths", DType::i32, {static_cast<double>(a.keys)});
  if (!a.last_keys.empty()) f.last_keys = c.values("last_keys", DType::i32, a.last_keys);
  AttentionBackward b{.forward = f, .dout = heads(dout), .dq = heads(dq), .dk = heads(dk), .dv = heads(dv),
                      .delta = c.scratch("delta", kF32, {1, 1, a.tokens})};
  c.run([&](Ops& ops, Stream s) {
    ops.attention_forward(f, s);
    ops.attention_backward(b, s);
  });
  const Vec x = c.read(q), y = c.read(k), z = c.read(v), go = c.read(dout);
  // As in cpu_attention_test.cpp: in bf16 the stored output's rounding enters a difference smaller than its parts.
  const double through_softmax = t == kF32 ? bound(t) : 2 * bound(t);
  CHECK_CLOSE(c.read(out), attention(a, x, y, z), bound(t));
  CHECK_CLOSE(c.read(dq), differences(x, [&](const Vec& n) { return inner(go, attention(a, n, y, z)); }),
      through_softmax);
  CHECK_CLOSE(c.read(dk), differences(y, [&](const Vec& n) { return inner(go, attention(a, x, n, z)); }),
      through_softmax);
  CHECK_CLOSE(c.read(dv), differences(z, [&](const Vec& n) { return inner(go, attention(a, x, y, n)); }), bound(t));
}

/// Attention with relative positions of packed samples, keys packed by themselves or not: two samples of one head, in
/// float64.
struct Relative {
  bool causal = false, own_keys = false;
  int64_t behind = 2, ahead = 3, d = 3;
  std::vector<int64_t> queries{4, 2}, keys{4, 2};
};

Vec attention(const Relative& a, const Vec& q, const Vec& k, const Vec& v, const Vec& relative) {
  Vec out(q.size());
  int64_t first_query = 0, first_key = 0;
  for (size_t b = 0; b < a.queries.size(); ++b) {
    for (int64_t i = 0; i < a.queries[b]; ++i) {
      Vec p;
      double total = 0;
      const int64_t end = a.causal ? i + 1 : a.keys[b];
      for (int64_t j = 0; j < end; ++j) {
        double score = at(relative, std::clamp(j - i, -a.behind, a.ahead) + a.behind);
        for (int64_t c = 0; c < a.d; ++c)
          score += 0.5 * at(q, (first_query + i) * a.d + c) * at(k, (first_key + j) * a.d + c);
        p.push_back(std::exp(score));
        total += p.back();
      }
      for (int64_t j = 0; j < end; ++j)
        for (int64_t c = 0; c < a.d; ++c)
          at(out, (first_query + i) * a.d + c) += at(p, j) / total * at(v, (first_key + j) * a.d + c);
    }
    first_query += a.queries[b], first_key += a.keys[b];
  }
  return out;
}

void check_relative(DType t, const Relative& a) {
  OpContext c(cpu());
  const int64_t rows = total_rows(a.queries), key_rows = total_rows(a.keys);
  const int64_t maximum = *std::max_element(a.queries.begin(), a.queries.end());
  const int64_t max_keys = *std::max_element(a.keys.begin(), a.keys.end());
  const Shape columns{1, a.behind + 1 + a.ahead};
  AttentionForward f{.dtype = t, .batch = 2, .heads = 1, .head_size = a.d, .query_tokens = maximum, .kv_tokens = max_keys,
                     .scale = 0.5f, .causal = a.causal};
  const Tensor q = c.input("q", t, {rows, a.d}), k = c.input("k", t, {key_rows, a.d}), v = c.input("v", t, {key_rows, a.d});
  const Tensor out = c.output("out", t, {rows, a.d}), dout = c.input("dout", t, {rows, a.d});
  const Tensor dq = c.output("dq", t, {rows, a.d}), dk = c.output("dk", t, {key_rows, a.d});
  const Tensor dv = c.output("dv", t, {key_rows, a.d});
  f.q = Heads::in(q, 0, maximum), f.k = Heads::in(k, 0, max_keys), f.v = Heads::in(v, 0, max_keys);
  f.out = Heads::in(out, 0, maximum), f.lse = c.scratch("lse", kF32, {2, 1, maximum});
  f.relative = {c.input("relative", kF32, columns, -1, 1), a.behind, a.ahead};
  f.packing = make_packing(c, a.queries, maximum);
  if (a.own_keys) f.key_packing = make_packing(c, a.keys, max_keys);
  AttentionBackward b{.forward = f, .dout = Heads::in(dout, 0, maximum), .dq = Heads::in(dq, 0, maximum),
                      .dk = Heads::in(dk, 0, max_keys), .dv = Heads::in(dv, 0, max_keys),
                      .delta = c.scratch("delta", kF32, {2, 1, maximum}), .drelative = c.inout("drelative", kF32, columns)};
  const Tensor before = c.input("drelative", kF32, columns);  // the same numbers: of the same name
  c.run([&](Ops& ops, Stream s) {
    ops.attention_forward(f, s);
    ops.attention_backward(b, s);
  });
  const Vec x = c.read(q), y = c.read(k), z = c.read(v), r = c.read(f.relative.values), go = c.read(dout);
  const double through_softmax = t == kF32 ? bound(t) : 2 * bound(t);
  CHECK_CLOSE(c.read(out), attention(a, x, y, z, r), bound(t));
  CHECK_CLOSE(c.read(dq), differences(x, [&](const Vec& n) { return inner(go, attention(a, n, y, z, r)); }), through_softmax);
  CHECK_CLOSE(c.read(dk), differences(y, [&](const Vec& n) { return inner(go, attention(a, x, n, z, r)); }), through_softmax);
  CHECK_CLOSE(c.read(dv), differences(z, [&](const Vec& n) { return inner(go, attention(a, x, y, n, r)); }), bound(t));
  CHECK_CLOSE(c.read(b.drelative),
              sum_of(c.read(before), differences(r, [&](const Vec& n) { return inner(go, attention(a, x, y, z, n)); })),
              through_softmax);
}

TEST_SUITE("cpu_ops") {
  TEST_CASE("RMSNorm with an offset, and rounded once: forward, gradients, the output again") {
    for (DType t : {kF32, kBf16})
      for (const RmsForm& form : kForms) check_rms_form(t, form);
  }

  TEST_CASE("norms of heads: forward, both gradients, in place, columns behind stay") {
    for (DType t : {kF32, kBf16})
      for (const RmsForm& form : kForms)
        for (auto [groups, size] : {std::pair<int64_t, int64_t>{1, 2}, {3, 6}, {1, 30}, {5, 1}})
          for (bool in_place : {false, true}) check_head_norm(t, form, groups, size, in_place, !in_place);
  }

  TEST_CASE("RMSNorm in bf16 rounds as its form says, of rows and of heads alike") {
    for (const RmsForm& form : kForms) {
      OpContext c(cpu());
      const Vec values{1.0, 2.0, 4.0, 5.0};
      NormForward f;
      f.x = c.values("x", kBf16, values).view({1, 4}), f.gamma = c.values("gamma", kBf16, {3.0, 3.0, 3.0, 3.0});
      f.eps = 0, f.rms = form;
      f.y = c.output("y", kBf16, {1, 4}), f.rstd = c.output("rstd", kF32, {1});
      const HeadNormForward heads{.x = f.x, .size = 4, .gamma = f.gamma, .eps = 0, .rms = form,
                                  .y = c.output("of heads", kBf16, {1, 4}),
                                      .rstd = c.output("rstd of heads", kF32, {1})};
      c.run([&](Ops& ops, Stream s) {
        ops.norm_forward(f, s);
        ops.head_norm_forward(heads, s);
      });
      const auto rounded = [](float x) { return bf16_to_float(float_to_bf16(x)); };
      const float rstd = 1 / std::sqrt((1.0f + 4 + 16 + 25) / 4);
      Vec expected;
      for (double x : values) {
        const float scaled = static_cast<float>(x) * rstd;
        expected.push_back(static_cast<double>(rounded((form.rounds_once ? scaled
            : rounded(scaled)) * (form.offset + 3))));
      }
      CHECK(c.read(f.y) == expected);
      CHECK(c.read(heads.y) == expected);
    }
  }

  TEST_CASE("gates: gelu, gelu with tanh, relu: forward, both gradients, in place") {
    for (DType t : {kF32, kBf16})
      for (auto activation : {GateActivation::silu, GateActivation::gelu, GateActivation::gelu_tanh,
          GateActivation::relu})
        for (auto [rows, width] : {std::pair<int64_t, int64_t>{1, 1}, {3, 5}, {2, 70}}) {
          OpContext c(cpu());
          Swiglu f{.activation = activation, .gate_up = c.input("gate_up", t, {rows, 2 * width}, -4, 4),
                   .y = c.output("y", t, {rows, width})};
          Swiglu b = f;
          b.y = c.output("y again", t, {rows, width}), b.dy = c.input("dy", t, {rows, width});
          b.dgate_up = c.output("dgate_up", t, {rows, 2 * width});
          Swiglu in_place = b;
          in_place.y = {}, in_place.gate_up = in_place.dgate_up = c.inout("gate_up", t, {rows, 2 * width}, -4, 4);
          c.run([&](Ops& ops, Stream s) {
            ops.swiglu_forward(f, s);
            ops.swiglu_backward(b, s);
            ops.swiglu_backward(in_place, s);
          });
          const Vec x = c.read(f.gate_up), dy = c.read(b.dy);
          const auto size = static_cast<size_t>(width);
          CHECK_CLOSE(c.read(f.y), gated(activation, x, size), bound(t));
          CHECK(c.read(b.y) == c.read(f.y));
          CHECK_CLOSE(c.read(b.dgate_up),
                      differences(x, [&](const Vec& v) { return inner(dy, gated(activation, v, size)); }), bound(t));
          CHECK(c.read(in_place.dgate_up) == c.read(b.dgate_up));
        }
  }

  TEST_CASE("attention in a window, with a cap, with both, with keys that are padding") {
    for (DType t : {kF32, kBf16})
      for (int64_t window : {0, 1, 3, 11, 12, 40})
        for (double cap : {0.0, 1.5, 20.0})
          for (int64_t keys : {12, 5}) check_attention(t, {12, 6, window, keys, 0.5, cap});
  }

  TEST_CASE("attention among rows of pictures in both directions, in a window, with keys that are padding") {
    for (DType t : {kF32, kBf16})
      for (int64_t window : {0, 1, 3, 12})
        for (int64_t keys : {12, 9})
          for (const Vec& last_keys : {Vec{4, 4, 4, 4, 4, 5, 6, 10, 10, 10, 10, 11}, Vec(12, 11), Vec{0, 3, 3, 3, 7, 7, 7, 7, 8, 9, 11, 11}})
            check_attention(t, {12, 6, window, keys, 0.5, 0, last_keys});
  }

  TEST_CASE("attention with relative positions, of packed samples, of keys packed by themselves") {
    for (DType t : {kF32, kBf16}) {
      check_relative(t, {});
      check_relative(t, {.causal = true, .ahead = 0});
      check_relative(t, {.own_keys = true, .queries = {3, 5}, .keys = {6, 1}});
    }
  }

  TEST_CASE("relative positions: each offset has its bucket's number, and its gradient goes there") {
    OpContext c(cpu());
    RelativeBias f{.table = c.input("table", kF32, {6, 2}), .directed = 3, .distances = 3, .first = {0, 1, 4}};
    f.scores = {c.output("scores", kF32, {2, 9}), 4, 4};
    RelativeBias b = f;
    b.scores.values = c.input("gradient", kF32, {2, 9}), b.table = c.inout("dtable", kF32, {6, 2}), b.accumulate = true;
    const Tensor before = c.input("dtable", kF32, {6, 2});
    c.run([&](Ops& ops, Stream s) {
      ops.relative_bias_forward(f, s);
      ops.relative_bias_backward(b, s);
    });
    const int64_t buckets[] = {2, 1, 1, 1, 0, 4, 4, 4, 5};  // of the offsets -4 to 4; 3, of distance 0 ahead, has none
    const Vec table = c.read(f.table), gradient = c.read(b.scores.values);
    Vec expected, sums = c.read(before);
    for (int64_t h = 0; h < 2; ++h)
      for (int64_t o = 0; o < 9; ++o) {
        expected.push_back(at(table, buckets[o] * 2 + h));
        at(sums, buckets[o] * 2 + h) += at(gradient, h * 9 + o);
      }
    CHECK(c.read(f.scores.values) == expected);
    CHECK_CLOSE(c.read(b.table), sums, bound(kF32));
  }

  TEST_CASE("rotary positions of a part of each head, with a magnitude, and their gradient") {
    for (DType t : {kF32, kBf16})
      for (auto [size, part] : {std::pair<int64_t, int64_t>{8, 6}, {16, 2}, {10, 10}}) {
        constexpr int64_t kRows = 4, kHeads = 3;
        const int64_t width = kHeads * size;
        OpContext c(cpu());
        const Tensor before = c.input("x", t, {kRows, width}), x = c.inout("x", t, {kRows, width});
        const Tensor go = c.input("dy", t, {kRows, width}), dx = c.inout("dy", t, {kRows, width});
        const Vec positions{0, 1, 2, 40};
        Rotary a{.x = x, .head_size = size, .rotated = part, .magnitude = 1.25f,
                 .positions = c.values("positions", DType::i32, positions)};
        for (int64_t i = 0; i < part / 2; ++i) a.frequencies[i] = std::pow(100.0f, -static_cast<float>(i) / 4);
        Rotary back = a;
        back.x = dx, back.inverse = true;
        c.run([&](Ops& ops, Stream s) {
          ops.rotary(a, s);
          ops.rotary(back, s);
        });
        const auto turned = [&](const Vec& v) {
          Vec y = v;
          for (int64_t r = 0; r < kRows; ++r)
            for (int64_t h = 0; h < kHeads; ++h)
              for (int64_t i = 0; i < part / 2; ++i) {
                const double angle = at(positions, r) * static_cast<double>(a.frequencies[i]);
                const int64_t first = r * width + h * size + i, second = first + part / 2;
                at(y, first) = 1.25 * (at(v, first) * std::cos(angle) - at(v, second) * std::sin(angle));
                at(y, second) = 1.25 * (at(v, second) * std::cos(angle) + at(v, first) * std::sin(angle));
              }
          return y;
        };
        const Vec vx = c.read(before), vg = c.read(go);
        CHECK_CLOSE(c.read(x), turned(vx), bound(t));
        CHECK_CLOSE(c.read(dx), differences(vx, [&](const Vec& v) { return inner(vg, turned(v)); }), bound(t));
      }
  }

  TEST_CASE("embedded tokens times a scale: of tokens alone, and their gradient") {
    for (DType t : {kF32, kBf16}) {
      OpContext c(cpu());
      const Tensor ids = c.values("ids", DType::i32, {0, 3, 3, 1}).view({2, 2});
      const Tensor lengths = c.values("lengths", DType::i32, {2, 2});
      TextEmbed f{.ids = ids, .lengths = lengths, .prefix = c.input("prefix", t, {2, 5}), .prefix_rows = 1,
                  .tokens = c.input("tokens", t, {4, 5}), .token_scale = 7.1f, .x = c.output("x", t, {6, 5})};
      TextEmbed b{.ids = ids, .lengths = lengths, .prefix = c.output("dprefix", t, {2, 5}), .prefix_rows = 1,
                  .tokens = c.output("dtokens", kF32, {4, 5}), .token_scale = 7.1f, .x = c.input("dx", t, {6, 5})};
      c.run([&](Ops& ops, Stream s) {
        ops.text_embed_forward(f, s);
        ops.text_embed_backward(b, s);
      });
      const double scale = t == kF32 ? 7.1f : bf16_to_float(float_to_bf16(7.1f));
      const Vec tokens = c.read(f.tokens), prefix = c.read(f.prefix), dx = c.read(b.x);
      Vec expected, gradient(20);
      const int64_t of_row[] = {-1, 0, 3, -1, 3, 1};
      for (int64_t r = 0; r < 6; ++r)
        for (int64_t i = 0; i < 5; ++i) {
          expected.push_back(of_row[r] < 0 ? at(prefix, r / 3 * 5 + i) : scale * at(tokens, of_row[r] * 5 + i));
          if (of_row[r] >= 0) at(gradient, of_row[r] * 5 + i) += scale * at(dx, r * 5 + i);
        }
      CHECK_CLOSE(c.read(f.x), expected, bound(t));
      CHECK_CLOSE(c.read(b.tokens), gradient, bound(kF32));
    }
  }

  TEST_CASE("cross-entropy of capped logits, and its gradient") {
    constexpr int64_t rows = 3, n = 9;
    for (DType t : {kF32, kBf16}) {
      OpContext c(cpu());
      const Tensor before = c.input("logits", t, {rows, n}, -4, 4), logits = c.inout("logits", t, {rows, n}, -4, 4);
      const Vec labels{2, -100, 8};
      const CrossEntropy a{.cap = 2.5f, .logits = logits, .labels = c.values("labels", DType::i32, labels),
                           .weight = c.values("weight", kF32, {0.5}), .row_loss = c.output("row_loss", kF32, {rows})};
      c.run([&](Ops& ops, Stream s) { ops.cross_entropy(a, s); });
      const auto row_losses = [&](const Vec& x) {
        Vec losses;
        for (int64_t r = 0; r < rows; ++r) {
          double total = 0;
          for (int64_t i = 0; i < n; ++i) total += std::exp(2.5 * std::tanh(at(x, r * n + i) / 2.5));
          const auto label = static_cast<int64_t>(at(labels, r));
          losses.push_back(label < 0 ? 0 : 0.5 * (std::log(total) - 2.5 * std::tanh(at(x, r * n + label) / 2.5)));
        }
        return losses;
      };
      const Vec x = c.read(before), ones(rows, 1.0);
      CHECK_CLOSE(c.read(a.row_loss), row_losses(x), bound(t));
      CHECK_CLOSE(c.read(logits), differences(x, [&](const Vec& v) { return inner(ones, row_losses(v)); }), bound(t));
    }
  }

  TEST_CASE("what windows, caps, parts of heads and norms of heads refuse") {
    const auto device = make_plan_device();
    const auto ops = make_plan_ops();
    const Stream s = device->compute_stream();
    const auto tensor = [&](DType t, Shape shape) {
      return Tensor{device->allocate(shape.numel() * dtype_size(t)), t, shape};
    };
    const Tensor x = tensor(kF32, {4, 8});
    AttentionForward f{.dtype = kF32, .batch = 1, .heads = 1, .head_size = 8, .query_tokens = 4, .kv_tokens = 4};
    f.q = f.k = f.v = f.out = Heads::in(x, 0, 4), f.lse = tensor(kF32, {1, 1, 4}), f.causal = true, f.window = 2;
    CHECK_NOTHROW(ops->attention_forward(f, s));
    f.causal = false;
    CHECK_THROWS_WITH_AS(ops->attention_forward(f, s), doctest::Contains("window"), Error);
    f.window = 0, f.last_keys = tensor(DType::i32, {4});
    CHECK_THROWS_WITH_AS(ops->attention_forward(f, s), doctest::Contains("last_keys"), Error);
    f.causal = true;
    CHECK_NOTHROW(ops->attention_forward(f, s));
    f.last_keys = tensor(DType::i32, {3});
    CHECK_THROWS_WITH_AS(ops->attention_forward(f, s), doctest::Contains("last_keys"), Error);
    f.last_keys = {}, f.cap = -1;
    CHECK_THROWS_WITH_AS(ops->attention_forward(f, s), doctest::Contains("cap"), Error);
    Rotary r{.x = x, .head_size = 8, .rotated = 6, .positions = tensor(DType::i32, {4})};
    CHECK_NOTHROW(ops->rotary(r, s));
    for (int64_t rotated : {3, 10, -2}) {
      r.rotated = rotated;
      CHECK_THROWS_WITH_AS(ops->rotary(r, s), doctest::Contains("rotated"), Error);
    }
    HeadNormForward h{.x = x, .size = 4, .gamma = tensor(kF32, {4}), .y = tensor(kF32, {4, 8}),
        .rstd = tensor(kF32, {4, 2})};
    CHECK_NOTHROW(ops->head_norm_forward(h, s));
    h.size = 3;
    CHECK_THROWS_WITH_AS(ops->head_norm_forward(h, s), doctest::Contains("size 3 does not divide 8 columns"), Error);
    NormForward n;
    n.x = x, n.y = tensor(kF32, {4, 8}), n.gamma = n.beta = tensor(kF32, {8}), n.mean = n.rstd = tensor(kF32, {4});
    n.rms.offset = 1;
    CHECK_THROWS_WITH_AS(ops->norm_forward(n, s), doctest::Contains("rms is RMSNorm's alone"), Error);
  }
}

}  // namespace
}  // namespace blipft::test
