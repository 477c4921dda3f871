// Ladder step 1: RMSNorm, rotary positions and SwiGLU on the CPU against float64 and finite differences.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "models/blocks/attention.h"
#include "ops/op_reference.h"

namespace blipft::test {
namespace {

/// rows of n: gamma * x / sqrt(mean(x^2) + eps)
Vec rms_norm(const Vec& x, const Vec& gamma, double eps) {
  const size_t n = gamma.size();
  Vec y(x.size());
  for (size_t first = 0; first < x.size(); first += n) {
    double squares = 0;
    for (size_t c = 0; c < n; ++c) squares += x[first + c] * x[first + c];
    const double rstd = 1 / std::sqrt(squares / static_cast<double>(n) + eps);
    for (size_t c = 0; c < n; ++c) y[first + c] = gamma[c] * x[first + c] * rstd;
  }
  return y;
}

void check_rms_norm(DType t, int64_t m, int64_t n, bool residual, bool add) {
  OpContext c(cpu());
  NormForward f;
  f.x = c.input("x", t, {m, n}, -1, 2);
  if (residual) f.residual = c.input("residual", t, {m, n}), f.sum = c.output("sum", t, {m, n});
  f.gamma = c.input("gamma", t, {n}, 0.5, 1.5);
  f.eps = 1e-3f;
  f.y = c.output("y", t, {m, n});
  f.rstd = c.output("rstd", kF32, {m});
  NormBackward b;
  b.dy = c.input("dy", t, {m, n});
  b.x = f.sum ? f.sum : f.x;
  b.rstd = f.rstd, b.gamma = f.gamma;
  b.y = c.output("y again", t, {m, n});
  if (add) b.add = c.input("add", t, {m, n});
  b.dgamma = c.output("dgamma", kF32, {n});
  b.dx = c.output("dx", t, {m, n});
  c.run([&](Ops& ops, Stream s) {
    ops.norm_forward(f, s);
    ops.norm_backward(b, s);
  });
  CHECK(c.read(b.y) == c.read(f.y));
  const Vec gamma = c.read(f.gamma), dy = c.read(b.dy);
  if (residual) CHECK_CLOSE(c.read(f.sum), sum_of(c.read(f.x), c.read(f.residual)), bound(t));
  const Vec sum = c.read(b.x);               // as stored: what the op normalises
  const Vec extra = add ? c.read(b.add) : Vec(sum.size());
  CHECK_CLOSE(c.read(f.y), rms_norm(sum, gamma, f.eps), bound(t));
  const auto loss = [&](const Vec& x) { return inner(dy, rms_norm(x, gamma, f.eps)) + inner(extra, x); };
  CHECK_CLOSE(c.read(b.dx), differences(sum, loss), bound(t));
  const auto of_gamma = [&](const Vec& g) { return inner(dy, rms_norm(sum, g, f.eps)); };
  CHECK_CLOSE(c.read(b.dgamma), differences(gamma, of_gamma), bound(t));
}

double silu(double x) { return x / (1 + std::exp(-x)); }

/// gate_up: rows of 2 * inner.
Vec swiglu(const Vec& gate_up, size_t inner) {
  Vec y;
  for (size_t first = 0; first < gate_up.size(); first += 2 * inner)
    for (size_t c = 0; c < inner; ++c) y.push_back(silu(gate_up[first + c]) * gate_up[first + inner + c]);
  return y;
}

/// transformers' rotate_half: x cos + (-x2, x1) sin, of heads of `size`.
Vec rotated(const Vec& x, size_t cols, size_t size, const Vec& positions, const float* frequencies, double sign) {
  Vec y(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t in_head = i % cols % size, half = size / 2;
    const double angle = positions[i / cols] * static_cast<double>(frequencies[in_head % half]);
    const double other = in_head < half ? -x[i + half] : x[i - half];
    y[i] = x[i] * std::cos(angle) + sign * other * std::sin(angle);
  }
  return y;
}

TEST_SUITE("cpu_ops") {
  TEST_CASE("RMSNorm: forward, gradients, the output again") {
    for (DType t : {kF32, kBf16})
      for (auto [m, n] : {std::pair<int64_t, int64_t>{1, 2}, {3, 17}, {2, 300}})
        for (bool with : {false, true}) check_rms_norm(t, m, n, with, !with);
  }

  TEST_CASE("RMSNorm rounds the scaled row before gamma, as transformers does") {
    OpContext c(cpu());
    NormForward f;
    f.x = c.values("x", kBf16, {1.0, 2.0, 4.0, 5.0}).view({1, 4});
    f.gamma = c.values("gamma", kBf16, {3.0, 3.0, 3.0, 3.0});
    f.eps = 0;
    f.y = c.output("y", kBf16, {1, 4});
    f.rstd = c.output("rstd", kF32, {1});
    c.run([&](Ops& ops, Stream s) { ops.norm_forward(f, s); });
    const auto rounded = [](float x) { return bf16_to_float(float_to_bf16(x)); };
    const float rstd = 1 / std::sqrt((1.0f + 4 + 16 + 25) / 4);
    Vec expected;
    for (float x : {1.0f, 2.0f, 4.0f, 5.0f}) expected.push_back(rounded(rounded(x * rstd) * 3));
    CHECK(c.read(f.y) == expected);
  }

  TEST_CASE("SwiGLU: forward, both gradients, in place") {
    for (DType t : {kF32, kBf16})
      for (auto [rows, width] : {std::pair<int64_t, int64_t>{1, 1}, {3, 5}, {2, 70}}) {
        OpContext c(cpu());
        Swiglu f;
        f.gate_up = c.input("gate_up", t, {rows, 2 * width}, -4, 4);
        f.y = c.output("y", t, {rows, width});
        Swiglu b = f;
        b.y = c.output("y again", t, {rows, width});
        b.dy = c.input("dy", t, {rows, width});
        b.dgate_up = c.output("dgate_up", t, {rows, 2 * width});
        Swiglu in_place = b;
        in_place.y = {};
        in_place.gate_up = in_place.dgate_up = c.inout("gate_up", t, {rows, 2 * width}, -4, 4);
        c.run([&](Ops& ops, Stream s) {
          ops.swiglu_forward(f, s);
          ops.swiglu_backward(b, s);
          ops.swiglu_backward(in_place, s);
        });
        const Vec x = c.read(f.gate_up), dy = c.read(b.dy);
        const auto size = static_cast<size_t>(width);
        CHECK_CLOSE(c.read(f.y), swiglu(x, size), bound(t));
        CHECK(c.read(b.y) == c.read(f.y));
        const Vec gradient = differences(x, [&](const Vec& v) { return inner(dy, swiglu(v, size)); });
        CHECK_CLOSE(c.read(b.dgate_up), gradient, bound(t));
        CHECK(c.read(in_place.dgate_up) == c.read(b.dgate_up));
      }
  }

  TEST_CASE("rotary positions: transformers' rotate_half, and back again; columns behind stay") {
    for (DType t : {kF32, kBf16})
      for (auto [heads, size] : {std::pair<int64_t, int64_t>{1, 2}, {3, 22}, {2, 128}}) {
        constexpr int64_t kRows = 5, kBehind = 7;
        const int64_t width = heads * size;
        OpContext c(cpu());
        const Tensor before = c.input("x", t, {kRows, width + kBehind}), x = c.inout("x", t, {kRows, width + kBehind});
        const Tensor back = c.inout("x", t, {kRows, width + kBehind});
        Rotary a;
        a.x = MatrixView(x).columns(0, width);
        a.head_size = size;
        const Vec positions{0, 1, 2, 40, 2047};
        a.positions = c.values("positions", DType::i32, positions);
        for (int64_t i = 0; i < size / 2; ++i)
          a.frequencies[i] = std::pow(10000.0f, -2.0f * static_cast<float>(i) / static_cast<float>(size));
        Rotary again = a, inverse;
        again.x = MatrixView(back).columns(0, width);
        inverse = again;
        inverse.inverse = true;
        c.run([&](Ops& ops, Stream s) {
          ops.rotary(a, s);
          ops.rotary(again, s);
          ops.rotary(inverse, s);
        });
        const auto cols = static_cast<size_t>(width);
        const Vec expected = rotated(c.read(MatrixView(before).columns(0, width)), cols, static_cast<size_t>(size),
                                     positions, a.frequencies, 1);
        // The angle is one f32 product: at position 2047 it is off by up to 2047 * 2^-24 = 1.2e-4 radians.
        CHECK_CLOSE(c.read(a.x), expected, t == kF32 ? 1e-4 : bound(t));
        CHECK_CLOSE(c.read(inverse.x), c.read(MatrixView(before).columns(0, width)), bound(t));
        CHECK(c.read(MatrixView(x).columns(width, kBehind)) == c.read(MatrixView(before).columns(width, kBehind)));
      }
  }

  TEST_CASE("rotary positions on three axes: pairs of the axes in chunks, and interleaved") {
    struct Form {
      std::vector<int64_t> sections;
      bool interleaved;
    };
    // The sections of Qwen2.5-VL and Qwen3-VL, of their tiny models, and unequal ones.
    for (const Form& form : {Form{{16, 24, 24}, false}, Form{{24, 20, 20}, true}, Form{{4, 6, 6}, false}, Form{{6, 5, 5}, true}, Form{{5, 1, 2}, true}})
      for (const bool inverse : {false, true}) {
        const int64_t pairs = form.sections[0] + form.sections[1] + form.sections[2], size = 2 * pairs, heads = 3;
        constexpr int64_t kRows = 6;
        OpContext c(cpu());
        const Tensor before = c.input("x", kF32, {kRows, heads * size}), x = c.inout("x", kF32, {kRows, heads * size});
        const Vec positions{0, 1, 2, 40, 7, 900, /**/ 0, 1, 3, 44, 8, 901, /**/ 0, 1, 2, 47, 19, 902};
        Rotary a{.x = x, .head_size = size, .inverse = inverse};
        a.positions = c.values("positions", DType::i32, positions).view({3, kRows});
        const RotaryAxes axes = rotary_axes(form.sections, form.interleaved);
        std::copy(axes.begin(), axes.end(), a.axis);
        for (int64_t i = 0; i < pairs; ++i)
          a.frequencies[i] = std::pow(10000.0f, -static_cast<float>(i) / static_cast<float>(pairs));
        c.run([&](Ops& ops, Stream s) { ops.rotary(a, s); });
        Vec expected = c.read(before);
        for (int64_t r = 0; r < kRows; ++r)
          for (int64_t h = 0; h < heads; ++h)
            for (int64_t i = 0; i < pairs; ++i) {
              const auto t = form.sections[0], y = form.sections[1], w = form.sections[2];
              const int64_t axis = !form.interleaved         ? (i < t ? 0 : i < t + y ? 1 : 2)
                                   : i % 3 == 1 && i < 3 * y ? 1
                                   : i % 3 == 2 && i < 3 * w ? 2
                                                             : 0;
              const double angle = at(positions, axis * kRows + r) * static_cast<double>(a.frequencies[i]) * (inverse ? -1 : 1);
              double &first = at(expected, (r * heads + h) * size + i), &second = at(expected, (r * heads + h) * size + pairs + i);
              const double old = first;
              first = old * std::cos(angle) - second * std::sin(angle);
              second = second * std::cos(angle) + old * std::sin(angle);
            }
        CHECK_CLOSE(c.read(x), expected, 1e-4);  // the angle is one f32 product, off by up to 902 * 2^-24
      }
  }

  TEST_CASE("a product's scale: of the product alone, not of bias, residual or addend") {
    for (DType t : {kF32, kBf16}) {
      constexpr int64_t kM = 3, kK = 5, kN = 7;
      OpContext c(cpu());
      const Tensor x = c.input("x", t, {kM, kK}), w = c.input("w", t, {kN, kK}), bias = c.input("bias", t, {kN});
      const Tensor residual = c.input("residual", t, {kM, kN}), y = c.output("y", t, {kM, kN});
      const Tensor dy = c.input("dy", t, {kM, kN}), add = c.input("add", t, {kM, kK}), dx = c.output("dx", t, {kM, kK});
      c.run([&](Ops& ops, Stream s) {
        ops.linear_forward({.x = x, .w = w, .scale = 0.25f, .bias = bias, .residual = residual, .y = y}, s);
        ops.linear_backward_input({.dy = dy, .w = w, .scale = -3, .add = add, .dx = dx}, s);
      });
      const Vec vx = c.read(x), vw = c.read(w), vb = c.read(bias), vdy = c.read(dy);
      Vec expected = c.read(residual), gradient = c.read(add);
      for (int64_t m = 0; m < kM; ++m)
        for (int64_t n = 0; n < kN; ++n) {
          at(expected, m * kN + n) += at(vb, n);
          for (int64_t k = 0; k < kK; ++k) {
            at(expected, m * kN + n) += 0.25 * at(vx, m * kK + k) * at(vw, n * kK + k);
            at(gradient, m * kK + k) -= 3 * at(vdy, m * kN + n) * at(vw, n * kK + k);
          }
        }
      CHECK_CLOSE(c.read(y), expected, bound(t));
      CHECK_CLOSE(c.read(dx), gradient, bound(t));
    }
  }

  TEST_CASE("fill_uniform: bounds, moments, independence of cuts") {
    OpContext c(cpu());
    const Tensor whole = c.output("whole", kF32, {100000}), part = c.output("part", kF32, {777});
    c.run([&](Ops& ops, Stream s) {
      ops.fill_uniform(whole, 42, 3, 10, 0.5f, s);
      ops.fill_uniform(part, 42, 3, 10 + 1001, 0.5f, s);
    });
    const Vec numbers = c.read(whole);
    double sum = 0, squares = 0;
    for (double x : numbers) sum += x, squares += x * x;
    CHECK(std::all_of(numbers.begin(), numbers.end(), [](double x) { return std::abs(x) < 0.5; }));
    // Standard deviations of the means: 0.5 / sqrt(3 n) = 9e-4, and 0.25 sqrt(4 / 45 / n) = 2.4e-4; five of each.
    CHECK(std::abs(sum / 1e5) < 4.6e-3);
    CHECK(std::abs(squares / 1e5 - 0.25 / 3) < 1.2e-3);
    CHECK(c.read(part) == Vec(numbers.begin() + 1001, numbers.begin() + 1001 + 777));
  }

  TEST_CASE("what RMSNorm, rotary positions and SwiGLU refuse") {
    const auto device = make_plan_device();
    const auto ops = make_plan_ops();
    const Stream s = device->compute_stream();
    const auto tensor = [&](DType t, Shape shape) {
      return Tensor{device->allocate(shape.numel() * dtype_size(t)), t, shape};
    };
    NormForward f;
    f.x = tensor(kF32, {2, 8}), f.y = tensor(kF32, {2, 8}), f.gamma = tensor(kF32, {8}), f.rstd = tensor(kF32, {2});
    CHECK_NOTHROW(ops->norm_forward(f, s));
    f.beta = tensor(kF32, {8});
    CHECK_THROWS_WITH_AS(ops->norm_forward(f, s), doctest::Contains("beta and mean come both"), Error);
    Rotary r;
    r.x = tensor(kF32, {2, 12}), r.positions = tensor(DType::i32, {2}), r.head_size = 6;
    CHECK_NOTHROW(ops->rotary(r, s));
    for (int64_t size : {0, 3, 8, 130}) {
      r.head_size = size;
      CHECK_THROWS_AS(ops->rotary(r, s), Error);
    }
    Swiglu g;
    g.gate_up = tensor(kF32, {2, 8}), g.y = tensor(kF32, {2, 4});
    CHECK_NOTHROW(ops->swiglu_forward(g, s));
    CHECK_THROWS_AS(ops->swiglu_backward(g, s), Error);
    g.y = tensor(kF32, {2, 8});
    CHECK_THROWS_AS(ops->swiglu_forward(g, s), Error);
  }
}

}  // namespace
}  // namespace blipft::test
