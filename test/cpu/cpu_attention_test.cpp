// Attention on the CPU against float64: forward against a plain reference, backward against its central differences;
// grouped queries, masks, dropout, the bias gradient.
#include <doctest/doctest.h>

#include <utility>

#include "ops/op_reference.h"

namespace blipft::test {
namespace {

struct AttentionShape {
  int64_t batch, heads, d, nq, nk;
  bool causal;
  Vec lengths;           ///< empty: all keys
  double scale;
  int64_t kv_heads = 0;  ///< 0: as many as heads

  int64_t of_kv() const { return kv_heads > 0 ? kv_heads : heads; }
};

/// q [batch, nq, heads, d], k and v [batch, nk, kv_heads, d], factors [batch, heads, nq, nk]; lse may be null.
Vec attention(const AttentionShape& a, const Vec& q, const Vec& k, const Vec& v, const Vec& factors, Vec* lse) {
  Vec out(q.size());
  if (lse) lse->assign(static_cast<size_t>(a.batch * a.heads * a.nq), -INFINITY);
  for (int64_t b = 0; b < a.batch; ++b)
    for (int64_t h = 0; h < a.heads; ++h)
      for (int64_t i = 0; i < a.nq; ++i) {
        const int64_t group = a.heads / a.of_kv(), query = ((b * a.nq + i) * a.heads + h) * a.d;
        const auto key = [&](int64_t j) { return ((b * a.nk + j) * a.of_kv() + h / group) * a.d; };
        Vec p(static_cast<size_t>(a.nk));
        double total = 0;
        for (int64_t j = 0; j < a.nk; ++j) {
          if ((a.causal && j > i) || (!a.lengths.empty() && static_cast<double>(j) >= at(a.lengths, b))) continue;
          double score = 0;
          for (int64_t c = 0; c < a.d; ++c) score += at(q, query + c) * at(k, key(j) + c);
          total += at(p, j) = std::exp(a.scale * score);
        }
        if (total == 0) continue;
        if (lse) at(*lse, (b * a.heads + h) * a.nq + i) = std::log(total);
        for (int64_t j = 0; j < a.nk; ++j)
          for (int64_t c = 0; c < a.d; ++c)
            at(out, query + c) += at(p, j) / total * at(factors, ((b * a.heads + h) * a.nq + i) * a.nk + j) *
                                  at(v, key(j) + c);
      }
  return out;
}

/// Columns [first, first + count) of each row of `width`.
Vec columns(const Vec& matrix, int64_t width, int64_t first, int64_t count) {
  Vec out;
  for (int64_t r = 0; r < static_cast<int64_t>(matrix.size()) / width; ++r)
    for (int64_t c = 0; c < count; ++c) out.push_back(at(matrix, r * width + first + c));
  return out;
}

/// Queries alone; keys and values side by side in one matrix.
void check_attention(DType t, AttentionShape a, float p, const ProbabilityNumbers& numbers = {}) {
  const int64_t width = a.heads * a.d, kv_width = a.of_kv() * a.d;
  OpContext c(cpu());
  const Tensor q = c.input("q", t, {a.batch * a.nq, width}), kv = c.input("kv", t, {a.batch * a.nk, 2 * kv_width});
  const Tensor out = c.output("out", t, {a.batch * a.nq, width}), dout = c.input("dout", t, {a.batch * a.nq, width});
  const Tensor dq = c.output("dq", t, q.shape), dkv = c.output("dkv", t, kv.shape);
  AttentionForward f;
  f.dtype = t, f.batch = a.batch, f.heads = a.heads, f.head_size = a.d, f.query_tokens = a.nq, f.kv_tokens = a.nk;
  f.kv_heads = a.kv_heads;
  f.causal = a.causal;
  f.scale = static_cast<float>(a.scale);
  f.q = Heads::in(q, 0, a.nq);
  f.k = Heads::in(kv, 0, a.nk);
  f.v = Heads::in(kv, kv_width, a.nk);
  f.out = Heads::in(out, 0, a.nq);
  f.lse = c.output("lse", kF32, {a.batch, a.heads, a.nq});
  if (!a.lengths.empty()) f.kv_lengths = c.values("kv_lengths", DType::i32, a.lengths);
  if (p > 0) f.dropout = make_dropout(c, p, a.batch, a.nq);
  f.numbers = numbers;
  AttentionBackward backward{f, Heads::in(dout, 0, a.nq), Heads::in(dq, 0, a.nq), Heads::in(dkv, 0, a.nk),
                             Heads::in(dkv, kv_width, a.nk), c.scratch("delta", kF32, {a.batch, a.heads, a.nq}), {}, {}, false};
  c.run([&](Ops& ops, Stream s) {
    ops.attention_forward(f, s);
    ops.attention_backward(backward, s);
  });
  const ProbabilityNumbers of = f.dropout_numbers();
  const int64_t count = (a.heads - 1) * of.head + (a.nq - 1) * of.query + a.nk;
  const Vec numbered = dropout_factors(c, f.dropout, a.batch, count);
  Vec factors;
  for (int64_t b = 0; b < a.batch; ++b)
    for (int64_t h = 0; h < a.heads; ++h)
      for (int64_t i = 0; i < a.nq; ++i)
        for (int64_t j = 0; j < a.nk; ++j) factors.push_back(at(numbered, b * count + h * of.head + i * of.query + j));
  const Vec rq = c.read(q);
  const Vec rk = columns(c.read(kv), 2 * kv_width, 0, kv_width);
  const Vec rv = columns(c.read(kv), 2 * kv_width, kv_width, kv_width), go = c.read(dout);
  // The rounding of the stored output enters dp - rowsum(do o), a difference smaller than its parts: in bf16 the
  // gradients through the softmax get twice the bound.
  const double through_softmax = t == kF32 ? bound(t) : 2 * bound(t);
  Vec lse;
  CHECK_CLOSE(c.read(out), attention(a, rq, rk, rv, factors, &lse), bound(t));
  CHECK_CLOSE(c.read(f.lse), lse, bound(kF32));
  const auto loss = [&](const Vec& x, const Vec& y, const Vec& z) {
    return inner(go, attention(a, x, y, z, factors, nullptr));
  };
  CHECK_CLOSE(c.read(dq), differences(rq, [&](const Vec& x) { return loss(x, rk, rv); }), through_softmax);
  CHECK_CLOSE(columns(c.read(dkv), 2 * kv_width, 0, kv_width),
              differences(rk, [&](const Vec& x) { return loss(rq, x, rv); }), through_softmax);
  CHECK_CLOSE(columns(c.read(dkv), 2 * kv_width, kv_width, kv_width),
              differences(rv, [&](const Vec& x) { return loss(rq, rk, x); }), bound(t));
}

/// dbias against the sums of the dq, dk and dv that the op wrote.
void check_attention_bias(DType t, DType gradient, bool accumulate, float p, int64_t kv_heads) {
  constexpr int64_t kBatch = 3, kHeads = 4, kTokens = 9, kHeadSize = 5, kWidth = kHeads * kHeadSize;
  const int64_t kv_width = kv_heads * kHeadSize, all_columns = kWidth + 2 * kv_width;
  OpContext c(cpu());
  AttentionForward f;
  f.dtype = t, f.batch = kBatch, f.heads = kHeads, f.head_size = kHeadSize, f.kv_heads = kv_heads;
  f.query_tokens = f.kv_tokens = kTokens, f.causal = true, f.scale = 0.5f;
  const Tensor qkv = c.input("qkv", t, {kBatch * kTokens, all_columns}, -2, 2);
  const Tensor out = c.output("out", t, {kBatch * kTokens, kWidth});
  const Tensor dout = c.input("dout", t, out.shape), dqkv = c.output("dqkv", t, qkv.shape);
  const auto part = [&](const Tensor& matrix, int64_t i) {
    return Heads::in(matrix, i == 0 ? 0 : kWidth + (i - 1) * kv_width, kTokens);
  };
  f.q = part(qkv, 0), f.k = part(qkv, 1), f.v = part(qkv, 2), f.out = part(out, 0);
  f.lse = c.scratch("lse", kF32, {kBatch, kHeads, kTokens});
  f.kv_lengths = c.values("kv_lengths", DType::i32, {9, 0, 4});
  if (p > 0) f.dropout = make_dropout(c, p, kBatch, kTokens);
  AttentionBackward b{f, part(dout, 0), part(dqkv, 0), part(dqkv, 1), part(dqkv, 2),
                      c.scratch("delta", kF32, {kBatch, kHeads, kTokens}), {}, {}, accumulate};
  const Vec before = [&] {
    OpContext twin(cpu());
    const Tensor same = twin.input("dbias", gradient, {all_columns});
    twin.run([](Ops&, Stream) {});
    return twin.read(same);
  }();
  b.dbias = c.inout("dbias", gradient, {all_columns});
  c.run([&](Ops& ops, Stream s) {
    ops.attention_forward(f, s);
    ops.attention_backward(b, s);
  });
  const Vec written = c.read(dqkv);
  Vec expected = accumulate ? before : Vec(static_cast<size_t>(all_columns));
  for (int64_t r = 0; r < kBatch * kTokens; ++r)
    for (int64_t i = 0; i < all_columns; ++i) at(expected, i) += at(written, r * all_columns + i);
  CHECK_CLOSE(c.read(b.dbias), expected, bound(t));
}

TEST_SUITE("cpu_attention") {
  TEST_CASE("attention: forward, and gradients against differences") {
    for (DType t : {kF32, kBf16})
      for (float p : {0.0f, 0.25f}) {
        CAPTURE(name_of(t)); CAPTURE(p);
        check_attention(t, {1, 1, 3, 1, 1, false, {}, 1}, 0);
        check_attention(t, {2, 2, 5, 4, 7, false, {}, 0.4}, p);
        check_attention(t, {2, 3, 4, 6, 6, true, {}, 0.5}, p);
        check_attention(t, {3, 2, 5, 6, 6, true, {6, 2, 4}, 0.5}, p);
        check_attention(t, {3, 2, 5, 3, 7, false, {7, 1, 5}, 0.5}, p);
        check_attention(t, {2, 1, 5, 3, 4, false, {0, 3}, 0.5}, p);  // a sample without keys gives zeros
        check_attention(t, {2, 4, 3, 4, 5, false, {}, 0.5, 2}, p);
        check_attention(t, {2, 4, 5, 5, 5, true, {5, 2}, 0.5, 1}, p);
        check_attention(t, {1, 6, 4, 4, 4, true, {}, 0.5, 2}, p);
        check_attention(t, {2, 3, 4, 3, 6, false, {0, 4}, 0.5, 3}, p);
        check_attention(t, {2, 3, 4, 6, 6, true, {}, 0.5}, p, {8, 24});    // heads of a query side by side
        check_attention(t, {2, 2, 5, 4, 7, false, {}, 0.4}, p, {64, 16});
      }
  }

  TEST_CASE("numbers of probabilities that do not depend on padding hold texts of any length that fit") {
    for (const auto& [heads, keys] : {std::pair<int64_t, int64_t>{1, 131072}, {6, 65536}, {8, 65536}, {12, 32768}, {64, 16384},
                                      {128, 16384}}) {
      const ProbabilityNumbers numbers = ProbabilityNumbers::independent_of_padding(heads);
      CHECK(numbers.head == keys);
      CHECK(numbers.query == heads * keys);
      CHECK(keys * numbers.query <= kMaxDropoutElements);
    }
  }

  TEST_CASE("attention: bias gradient against sums of dq, dk and dv, and what it asks of them") {
    for (bool accumulate : {false, true})
      for (float p : {0.0f, 0.25f}) {
        CAPTURE(accumulate); CAPTURE(p);
        for (int64_t kv_heads : {4, 2, 1}) {
          CAPTURE(kv_heads);
          check_attention_bias(kF32, kF32, accumulate, p, kv_heads);
          check_attention_bias(kBf16, kF32, accumulate, p, kv_heads);
          check_attention_bias(kBf16, kBf16, accumulate, p, kv_heads);
        }
      }
    const auto plan_device = make_plan_device();
    const auto plan_ops = make_plan_ops();
    const auto tensor = [&](DType t, Shape shape) {
      return Tensor{plan_device->allocate(shape.numel() * dtype_size(t)), t, shape};
    };
    const Tensor qkv = tensor(kBf16, {2 * 7, 3 * 8}), out = tensor(kBf16, {2 * 7, 8});
    AttentionForward f;
    f.dtype = kBf16, f.batch = 2, f.heads = 2, f.head_size = 4, f.query_tokens = f.kv_tokens = 7;
    f.q = Heads::in(qkv, 0, 7), f.k = Heads::in(qkv, 8, 7), f.v = Heads::in(qkv, 16, 7), f.out = Heads::in(out, 0, 7);
    f.lse = tensor(kF32, {2, 2, 7});
    const AttentionBackward good{f, f.out, f.q, f.k, f.v, f.lse, {}, tensor(kF32, {24}), false};
    const auto run = [&](auto change) {
      AttentionBackward args = good;
      change(args);
      plan_ops->attention_backward(args, plan_device->compute_stream());
    };
    CHECK_NOTHROW(run([](AttentionBackward&) {}));
    CHECK_NOTHROW(run([&](AttentionBackward& b) { b.dbias = tensor(kBf16, {24}); }));
    // One head of keys and values: dq, dk and dv are 8, 4 and 4 columns of 16.
    const auto grouped = [&](AttentionBackward& b, int64_t columns) {
      b.forward.kv_heads = 1;
      const Tensor dqkv = tensor(kBf16, {2 * 7, columns});
      b.dq = Heads::in(dqkv, 0, 7), b.dk = Heads::in(dqkv, 8, 7), b.dv = Heads::in(dqkv, 12, 7);
      b.dbias = tensor(kF32, {columns});
    };
    CHECK_NOTHROW(run([&](AttentionBackward& b) { grouped(b, 16); }));
    CHECK_THROWS(run([&](AttentionBackward& b) { grouped(b, 24); }));
    CHECK_THROWS(run([](AttentionBackward& b) { b.forward.kv_heads = 1; }));  // the matrix has more columns
    CHECK_THROWS(run([](AttentionBackward& b) {
      b.dbias = {};
      b.forward.kv_heads = 3;
    }));
    CHECK_THROWS(run([&](AttentionBackward& b) { b.dbias = tensor(DType::f16, {24}); }));
    CHECK_THROWS(run([&](AttentionBackward& b) { b.dbias = tensor(kF32, {8}); }));
    CHECK_THROWS(run([](AttentionBackward& b) { std::swap(b.dk, b.dv); }));
    CHECK_THROWS(run([](AttentionBackward& b) { b.dv = b.dk; }));
    CHECK_THROWS(run([&](AttentionBackward& b) { b.dq = Heads::in(out, 0, 7); }));
    CHECK_THROWS(run([](AttentionBackward& b) { b.dk.batch_stride *= 2; }));
    CHECK_THROWS(run([&](AttentionBackward& b) {
      b.forward.kv_tokens = 6;
      b.dk.batch_stride = b.dv.batch_stride = 6 * 24;
    }));
  }
}

}  // namespace
}  // namespace blipft::test
