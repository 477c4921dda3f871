// Ladder step 1: every CPU op against float64. Forward: a plain reference in double. Backward: central differences of
// that reference. References know nothing of the ops' code.
#include <doctest/doctest.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "ops/op_reference.h"

namespace blipft::test {
namespace {

double activated(Activation activation, double x) {
  switch (activation) {
    case Activation::none: return x;
    case Activation::relu: return std::max(x, 0.0);
    case Activation::gelu: return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    case Activation::gelu_tanh: return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
  }
  return 0;
}

/// x [m, k] w^T [k, n] + bias
Vec linear(const Vec& x, const Vec& w, const Vec& bias, int64_t m, int64_t k, int64_t n) {
  Vec y(static_cast<size_t>(m * n));
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      double total = bias.empty() ? 0 : at(bias, j);
      for (int64_t c = 0; c < k; ++c) total += at(x, i * k + c) * at(w, j * k + c);
      at(y, i * n + j) = total;
    }
  return y;
}

/// Layer norm of rows of n.
Vec norm(const Vec& x, const Vec& gamma, const Vec& beta, double eps) {
  const int64_t n = static_cast<int64_t>(gamma.size()), m = static_cast<int64_t>(x.size()) / n;
  Vec y(x.size());
  for (int64_t r = 0; r < m; ++r) {
    double mean = 0, variance = 0;
    for (int64_t c = 0; c < n; ++c) mean += at(x, r * n + c) / static_cast<double>(n);
    for (int64_t c = 0; c < n; ++c) variance += std::pow(at(x, r * n + c) - mean, 2) / static_cast<double>(n);
    for (int64_t c = 0; c < n; ++c)
      at(y, r * n + c) = (at(x, r * n + c) - mean) / std::sqrt(variance + eps) * at(gamma, c) + at(beta, c);
  }
  return y;
}

void check_linear_forward(DType t, int64_t m, int64_t k, int64_t n, Activation activation, bool bias, bool residual) {
  OpContext c(cpu());
  LinearForward a;
  a.x = c.input("x", t, {m, k});
  a.w = c.input("w", t, {n, k});
  if (bias) a.bias = c.input("bias", t, {n});
  if (residual) a.residual = c.input("residual", t, {m, n});
  a.activation = activation;
  if (is_gelu(activation)) a.pre_activation = c.output("pre", t, {m, n});
  a.y = c.output("y", t, {m, n});
  c.run([&](Ops& ops, Stream s) { ops.linear_forward(a, s); });
  Vec y = linear(c.read(a.x), c.read(a.w), bias ? c.read(a.bias) : Vec{}, m, k, n);
  if (a.pre_activation) CHECK_CLOSE(c.read(a.pre_activation), y, bound(t));
  for (double& value : y) value = activated(activation, value);
  if (residual) y = sum_of(y, c.read(a.residual));
  CHECK_CLOSE(c.read(a.y), y, bound(t));
}

/// loss = dy . (act(u) w^T): its gradient over u, and over the bias that u ended with.
void check_linear_backward_input(DType t, int64_t m, int64_t k, int64_t n, Activation activation, bool accumulate) {
  OpContext c(cpu());
  LinearBackwardInput a;
  a.dy = c.input("dy", t, {m, n});
  a.w = c.input("w", t, {n, k});
  a.activation = activation;
  if (activation != Activation::none) a.saved = c.input("saved", t, {m, k}, -1.5, 1.5);
  if (activation == Activation::none) a.add = c.input("add", t, {m, k});
  if (is_gelu(activation)) a.activated = c.output("activated", t, {m, k});
  a.dbias = c.inout("dbias", kF32, {k});
  a.accumulate_dbias = accumulate;
  a.dx = c.output("dx", t, {m, k});
  const Vec before = [&] {
    OpContext twin(cpu());
    const Tensor same = twin.input("dbias", kF32, {k});
    twin.run([](Ops&, Stream) {});
    return twin.read(same);
  }();
  c.run([&](Ops& ops, Stream s) { ops.linear_backward_input(a, s); });
  const Vec w = c.read(a.w), dy = c.read(a.dy);
  const Vec u = a.saved ? c.read(a.saved) : Vec(static_cast<size_t>(m * k));
  Vec dx = differences(u, [&](const Vec& x) {
    Vec h = x;
    for (double& value : h) value = activated(activation, value);
    return inner(dy, linear(h, w, {}, m, k, n));
  });
  if (a.add) dx = sum_of(dx, c.read(a.add));
  CHECK_CLOSE(c.read(a.dx), dx, bound(t));
  if (a.activated) {
    Vec h = u;
    for (double& value : h) value = activated(activation, value);
    CHECK_CLOSE(c.read(a.activated), h, bound(t));
  }
  Vec dbias = accumulate ? before : Vec(static_cast<size_t>(k));
  for (int64_t i = 0; i < m * k; ++i) at(dbias, i % k) += at(dx, i);
  CHECK_CLOSE(c.read(a.dbias), dbias, bound(t));
}

void check_linear_backward_weight(DType t, DType gradient, int64_t m, int64_t k, int64_t n, bool accumulate) {
  OpContext c(cpu());
  LinearBackwardWeight a;
  a.dy = c.input("dy", t, {m, n});
  a.x = c.input("x", t, {m, k});
  const Tensor dw_before = c.input("dw", gradient, {n, k}), dbias_before = c.input("dbias", gradient, {n});
  a.dw = accumulate ? c.inout("dw", gradient, {n, k}) : c.output("dw", gradient, {n, k});
  a.dbias = accumulate ? c.inout("dbias", gradient, {n}) : c.output("dbias", gradient, {n});
  a.accumulate = accumulate;
  c.run([&](Ops& ops, Stream s) { ops.linear_backward_weight(a, s); });
  const Vec x = c.read(a.x), dy = c.read(a.dy), zero_w(static_cast<size_t>(n * k)), zero_b(static_cast<size_t>(n));
  // Linear in w and bias: differences are exact anywhere.
  Vec dw = differences(zero_w, [&](const Vec& w) { return inner(dy, linear(x, w, zero_b, m, k, n)); });
  Vec dbias = differences(zero_b, [&](const Vec& b) { return inner(dy, linear(x, zero_w, b, m, k, n)); });
  if (accumulate) dw = sum_of(dw, c.read(dw_before)), dbias = sum_of(dbias, c.read(dbias_before));
  const double limit = bound(gradient == kBf16 ? kBf16 : kF32);  // bf16 products are exact in f32
  CHECK_CLOSE(c.read(a.dw), dw, limit);
  CHECK_CLOSE(c.read(a.dbias), dbias, limit);
}

void check_norm(DType t, int64_t samples, int64_t tokens, int64_t n, bool residual, float p, bool add, float kept_scale = 1) {
  const int64_t m = samples * tokens;
  OpContext c(cpu());
  NormForward f;
  f.x = c.input("x", t, {m, n}, -1, 2);
  if (residual) f.residual = c.input("residual", t, {m, n});
  if (p > 0) f.dropout = make_dropout(c, p, samples, tokens);
  f.dropout.scale = kept_scale;
  if (residual || f.dropout) f.sum = c.output("sum", t, {m, n});
  f.gamma = c.input("gamma", t, {n}, 0.5, 1.5);
  f.beta = c.input("beta", t, {n});
  f.eps = 1e-3f;
  f.y = c.output("y", t, {m, n});
  f.mean = c.output("mean", kF32, {m});
  f.rstd = c.output("rstd", kF32, {m});
  NormBackward b;
  b.dy = c.input("dy", t, {m, n});
  b.x = f.sum ? f.sum : f.x;
  b.mean = f.mean, b.rstd = f.rstd, b.gamma = f.gamma, b.dropout = f.dropout;
  b.beta = f.beta, b.y = c.output("y again", t, {m, n});
  if (add) b.add = c.input("add", t, {m, n});
  b.dgamma = c.output("dgamma", kF32, {n});
  b.dbeta = c.output("dbeta", kF32, {n});
  b.dx = c.output("dx", t, {m, n});
  if (f.dropout) b.dropped = c.output("dropped", t, {m, n});
  b.dbias = c.output("dbias", kF32, {n});
  c.run([&](Ops& ops, Stream s) {
    ops.norm_forward(f, s);
    ops.norm_backward(b, s);
  });
  CHECK_CLOSE(c.read(b.y), c.read(f.y), 1e-6);
  Vec column_sums(static_cast<size_t>(n));
  const Vec through = c.read(b.dropped ? b.dropped : b.dx);
  for (size_t i = 0; i < through.size(); ++i) column_sums[i % static_cast<size_t>(n)] += through[i];
  CHECK_CLOSE(c.read(b.dbias), column_sums, 1e-5);
  const Vec gamma = c.read(f.gamma), beta = c.read(f.beta), dy = c.read(b.dy), x = c.read(f.x);
  const Vec factors = dropout_factors(c, f.dropout, samples, tokens * n);
  const Vec other = residual ? c.read(f.residual) : Vec(x.size());
  const Vec extra = add ? c.read(b.add) : Vec(x.size());
  const auto summed = [&](const Vec& input) {
    Vec sum = other;
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += factors[i] * input[i];
    return sum;
  };
  const Vec sum = summed(x);
  if (f.sum) CHECK_CLOSE(c.read(f.sum), sum, bound(t));
  CHECK_CLOSE(c.read(f.y), norm(sum, gamma, beta, f.eps), bound(t));
  // The gradient over the sum has `add` in it; the gradient over x goes through the mask as well.
  const auto loss = [&](const Vec& s) { return inner(dy, norm(s, gamma, beta, f.eps)) + inner(extra, s); };
  CHECK_CLOSE(c.read(b.dx), differences(sum, loss), bound(t));
  if (f.dropout) CHECK_CLOSE(c.read(b.dropped), differences(x, [&](const Vec& v) { return loss(summed(v)); }), bound(t));
  const auto table_loss = [&](const Vec& scale, const Vec& shift) { return inner(dy, norm(sum, scale, shift, f.eps)); };
  CHECK_CLOSE(c.read(b.dgamma), differences(gamma, [&](const Vec& g) { return table_loss(g, beta); }), bound(t));
  CHECK_CLOSE(c.read(b.dbeta), differences(beta, [&](const Vec& g) { return table_loss(gamma, g); }), bound(t));
}

TEST_SUITE("cpu_ops") {
  TEST_CASE("bf16 and f16 round to nearest even, and keep NaN and infinity") {
    for (uint32_t bits = 0; bits < 65536; ++bits) {
      const auto half = static_cast<uint16_t>(bits);
      const float b = bf16_to_float(half), f = f16_to_float(half);
      if (std::isnan(b)) CHECK(std::isnan(bf16_to_float(float_to_bf16(b))));
      else CHECK(float_to_bf16(b) == half);
      if (std::isnan(f)) CHECK(std::isnan(f16_to_float(float_to_f16(f))));
      else CHECK(float_to_f16(f) == half);
    }
    // Halfway between neighbours: the even one; a hair above: the upper one. Subnormal, carry and overflow too.
    CHECK(float_to_bf16(float_from_bits(0x3f808000)) == 0x3f80);
    CHECK(float_to_bf16(float_from_bits(0x3f818000)) == 0x3f82);
    CHECK(float_to_bf16(float_from_bits(0x3f808001)) == 0x3f81);
    CHECK(float_to_bf16(float_from_bits(0x7f7fffff)) == 0x7f80);
    CHECK(float_to_f16(1.0f + 1.0f / 2048) == 0x3c00);
    CHECK(float_to_f16(1.0f + 3.0f / 2048) == 0x3c02);
    CHECK(float_to_f16(65519.996f) == 0x7bff);
    CHECK(float_to_f16(65520.0f) == 0x7c00);
    CHECK(float_to_f16(std::ldexp(1.0f, -25)) == 0);       // half of the smallest, to even
    CHECK(float_to_f16(std::ldexp(3.0f, -25)) == 2);
    CHECK(float_to_f16(-std::ldexp(1023.75f, -24)) == 0x8400);  // carries into the normal numbers
  }

  TEST_CASE("linear: forward, and gradients against differences") {
    for (DType t : {kF32, kBf16})
      for (auto [m, k, n] : {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1}, {5, 7, 3}, {33, 17, 9}, {2, 65, 34}}) {
        CAPTURE(name_of(t)); CAPTURE(m); CAPTURE(k); CAPTURE(n);
        for (bool bias : {false, true}) {
          check_linear_forward(t, m, k, n, Activation::none, bias, false);
          check_linear_forward(t, m, k, n, Activation::none, bias, true);
          check_linear_forward(t, m, k, n, Activation::relu, bias, false);
          check_linear_forward(t, m, k, n, Activation::gelu, bias, false);
          check_linear_forward(t, m, k, n, Activation::gelu_tanh, bias, false);
        }
        for (bool accumulate : {false, true}) {
          for (Activation activation : {Activation::none, Activation::relu, Activation::gelu, Activation::gelu_tanh})
            check_linear_backward_input(t, m, k, n, activation, accumulate);
          check_linear_backward_weight(t, t, m, k, n, accumulate);
          if (t != kF32) check_linear_backward_weight(t, kF32, m, k, n, accumulate);
        }
      }
    check_linear_forward(kF32, 260, 70, 520, Activation::none, true, true);  // more than one tile of the product
  }

  TEST_CASE("norm: forward, and gradients against differences") {
    for (DType t : {kF32, kBf16})
      for (auto [samples, tokens, n] : {std::tuple<int64_t, int64_t, int64_t>{1, 1, 5}, {2, 3, 37}, {3, 1, 64}})
        for (bool residual : {false, true})
          for (float p : {0.0f, 0.3f})
            for (bool add : {false, true}) {
              CAPTURE(name_of(t)); CAPTURE(samples); CAPTURE(n); CAPTURE(residual); CAPTURE(p); CAPTURE(add);
              check_norm(t, samples, tokens, n, residual, p, add);
            }
  }

  TEST_CASE("a scale of what is added, with dropout and without") {
    for (const DType t : {kF32, kBf16})
      for (const float p : {0.0f, 0.3f})
        for (const bool residual : {false, true}) check_norm(t, 2, 3, 40, residual, p, true, 0.22f);
  }

  TEST_CASE("dropout: rate, scale, and independence of how samples are cut into batches") {
    constexpr int64_t kSamples = 6, kTokens = 40, kCols = 251;
    OpContext c(cpu());
    const Dropout whole = make_dropout(c, 0.1f, kSamples, kTokens);
    Dropout site = whole, seed = whole;
    site.site += 1, seed.seed += 1;
    const Tensor x = c.input("x", kF32, {kSamples * kTokens, kCols}, 1, 2);
    Tensor y[5];
    for (int i = 0; i < 5; ++i) y[i] = c.output(concat("y", i), kF32, x.shape);
    c.run([&](Ops& ops, Stream s) {
      ops.dropout_add({x, {}, whole, y[0]}, s);
      for (int64_t b = 0; b < kSamples; b += 2) {  // two samples at a time, keys cut along
        Dropout part = whole;
        part.sample_keys = whole.sample_keys.part(b, {2});
        ops.dropout_add({x.row_range(b * kTokens, 2 * kTokens), {}, part, y[1].row_range(b * kTokens, 2 * kTokens)}, s);
      }
      ops.dropout_add({x, {}, site, y[2]}, s);
      ops.dropout_add({x, {}, seed, y[3]}, s);
      ops.dropout_add({x, x, {}, y[4]}, s);
    });
    const Vec in = c.read(x), out = c.read(y[0]);
    CHECK(out == c.read(y[1]));
    CHECK_CLOSE(c.read(y[4]), sum_of(in, in), 0.0);
    // n = 60240 draws at p = 0.1: standard deviation sqrt(p (1 - p) / n) = 0.0012, five of them allowed. Two
    // independent masks agree in p^2 + (1 - p)^2 = 0.82 of all places, standard deviation 0.0016.
    const double n = static_cast<double>(in.size());
    CHECK(std::abs(static_cast<double>(std::count(out.begin(), out.end(), 0.0)) / n - 0.1) < 0.006);
    for (int other : {2, 3}) {
      const Vec second = c.read(y[other]);
      double agree = 0;
      for (size_t i = 0; i < in.size(); ++i) agree += (out[i] == 0) == (second[i] == 0);
      CHECK(std::abs(agree / n - 0.82) < 0.008);
    }
    const Vec factors = dropout_factors(whole, c.read(whole.sample_keys), kTokens * kCols);
    Vec expected = in;
    for (size_t i = 0; i < in.size(); ++i) expected[i] *= factors[i];
    CHECK_CLOSE(out, expected, 1e-6);
  }

  TEST_CASE("cross-entropy: loss and gradient, ignored rows") {
    for (DType t : {kF32, kBf16})
      for (auto [rows, vocabulary] : {std::pair<int64_t, int64_t>{1, 2}, {6, 17}, {5, 301}}) {
        OpContext c(cpu());
        const Tensor before = c.input("logits", t, {rows, vocabulary}, -5, 5);
        CrossEntropy a;
        a.logits = c.inout("logits", t, {rows, vocabulary}, -5, 5);
        Vec labels;
        for (int64_t r = 0; r < rows; ++r)
          labels.push_back(r == 1 ? -100 : r % 3 == 1 ? -1 : static_cast<double>(r * 5 % vocabulary));
        a.labels = c.values("labels", DType::i32, labels);
        a.weight = c.values("weight", kF32, {0.375});
        a.row_loss = c.output("row_loss", kF32, {rows});
        c.run([&](Ops& ops, Stream s) { ops.cross_entropy(a, s); });
        const auto losses = [&](const Vec& logits) {
          Vec loss(static_cast<size_t>(rows));
          for (int64_t r = 0; r < rows; ++r) {
            double total = 0;
            for (int64_t i = 0; i < vocabulary; ++i) total += std::exp(at(logits, r * vocabulary + i));
            const auto label = static_cast<int64_t>(at(labels, r));
            if (label >= 0) at(loss, r) = 0.375 * (std::log(total) - at(logits, r * vocabulary + label));
          }
          return loss;
        };
        CHECK_CLOSE(c.read(a.row_loss), losses(c.read(before)), bound(kF32));
        const Vec ones(static_cast<size_t>(rows), 1);
        const Vec gradient = differences(c.read(before), [&](const Vec& x) { return inner(ones, losses(x)); });
        CHECK_CLOSE(c.read(a.logits), gradient, bound(t));
        for (int64_t i = 0; rows > 1 && i < vocabulary; ++i) CHECK(at(c.read(a.logits), vocabulary + i) == 0);
      }
  }
}

}  // namespace
}  // namespace blipft::test
