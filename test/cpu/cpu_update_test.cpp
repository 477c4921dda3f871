// Updates on the CPU: AdamW with quantized moments, Lion, stochastic rounding.
#include <doctest/doctest.h>

#include <cmath>

#include "blipft/checkpoint.h"
#include "ops/op_reference.h"
#include "ops/quantize_cases.h"

namespace blipft::test {
namespace {

/// Memory of its own, for updates that follow each other.
class Numbers {
 public:
  Numbers(DType dtype, int64_t n)
      : memory_(static_cast<size_t>(n * dtype_size(dtype))), tensor{memory_.data(), dtype, {n}} {}
  Numbers(const std::vector<float>& values) : Numbers(kF32, static_cast<int64_t>(values.size())) {
    std::copy(values.begin(), values.end(), tensor.as<float>());
  }
  float* begin() { return tensor.as<float>(); }
  std::vector<float> floats() const { return {tensor.as<float>(), tensor.as<float>() + tensor.numel()}; }

 private:
  std::vector<char> memory_;

 public:
  Tensor tensor;
};

struct Codes {
  Codes(CodeBook book, int64_t n)
      : quantized(DType::u8, (n + 255) / 256 * 256), scales(kF32, (n + 255) / 256), q{book, quantized.tensor, scales.tensor} {}
  Numbers quantized, scales;
  Quantized q;
};

/// The scalars of step t, counted from 1.
Numbers step_scalars(int64_t t, float lr, double beta1, double beta2) {
  const auto correction = [&](double beta) { return static_cast<float>(1 - std::pow(beta, static_cast<double>(t))); };
  return Numbers({lr, correction(beta1), correction(beta2), 1, 0, static_cast<float>(t), 0, 0});
}

template <class T>
std::vector<T> golden(const std::string& name) {
  const SafetensorsReader reader("test/golden/quantize");
  std::vector<T> values(static_cast<size_t>(reader.tensors().at(name).numel()));
  reader.read(name, 0, static_cast<int64_t>(values.size()), values.data());
  return values;
}

}  // namespace

TEST_SUITE("cpu update") {
  TEST_CASE("AdamW on codes: parameters, codes and scales of the reference") {
    Numbers p(golden<float>("adam.p"));
    const int64_t n = p.tensor.numel();
    Numbers grads(golden<float>("adam.grads"));
    Codes m(CodeBook::dynamic8, n), v(CodeBook::dynamic8_unsigned, n);
    for (int64_t t = 1; t <= grads.tensor.numel() / n; ++t) {
      const Numbers scalars = step_scalars(t, 1e-2f, 0.9, 0.95);
      cpu().ops().adamw8bit_update({.param = p.tensor, .grad = grads.tensor.part((t - 1) * n, {n}), .m = m.q, .v = v.q,
                                    .scalars = scalars.tensor, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-6f,
                                    .weight_decay = 0.1f}, {});
    }
    // numpy fuses nothing: a few units in the last place.
    const auto close = [](const std::vector<float>& a, const std::vector<float>& b) {
      return normalised_error(Vec(a.begin(), a.end()), Vec(b.begin(), b.end()));
    };
    CHECK(close(p.floats(), golden<float>("adam.updated")) <= 1e-6);
    for (auto [quantized, name] : {std::pair<Codes*, std::string>{&m, "adam.dynamic8"}, {&v, "adam.dynamic8_unsigned"}}) {
      CHECK(close(quantized->scales.floats(), golden<float>(name + ".scales")) <= 1e-6);
      const std::vector<uint8_t> expected = golden<uint8_t>(name + ".codes");
      int64_t apart = 0;
      for (size_t i = 0; i < expected.size(); ++i)
        apart += std::abs(quantized->q.quantized.as<uint8_t>()[i] - static_cast<int>(expected[i]));
      CHECK(apart <= 2);                     // of 1024, where a moment lies at a midpoint
    }
  }

  TEST_CASE("a norm that is not finite: no update changes a bit; an infinite largest norm scales nothing") {
    const int64_t n = 5000;
    for (const double squares : {4.0, HUGE_VAL, std::nan("")})
      for (const DType dtype : {kF32, kBf16}) {
        CAPTURE(squares);
        OpContext c(cpu());
        const Tensor square = c.values("squares", kF32, {squares}), grad = c.input("grad", dtype, {n});
        const Tensor scalars = c.inout("scalars", kF32, {kStepScalars}, 0.1, 0.2);
        std::vector<std::pair<Tensor, Vec>> tensors;
        const auto inout = [&](const char* name, DType type) {
          tensors.push_back({c.inout(name, type, {n}, 0.1, 1), {}});
          return tensors.back().first;
        };
        const SgdUpdate sgd{inout("sgd", dtype), inout("sgd master", kF32), grad, inout("buffer", dtype), scalars};
        const LionUpdate lion{inout("lion", dtype), {}, grad, inout("mean", dtype), scalars};
        const AdamWUpdate adamw{inout("adamw", dtype), {}, grad, inout("m", dtype), inout("v", dtype), scalars};
        AdamW8bitUpdate quantized{.param = inout("8bit", dtype), .grad = grad, .scalars = scalars};
        quantized.m = make_quantized(c, "codes of m", CodeBook::dynamic8, n);
        quantized.v = make_quantized(c, "codes of v", CodeBook::dynamic8_unsigned, n);
        const Tensor numbers = c.input("numbers", kF32, {n}, 0.1, 1);
        const auto decoded = [&](const char* name) {
          return tensors.emplace_back(c.output(name, kF32, {n}), Vec()).first;
        };
        const Tensor m = decoded("decoded m"), v = decoded("decoded v");
        c.run([&](Ops& ops, Stream s) {
          ops.quantize(numbers, quantized.m, s);
          ops.quantize(numbers, quantized.v, s);
          ops.dequantize(quantized.m, m, s);
          ops.dequantize(quantized.v, v, s);
        });
        for (auto& [tensor, before] : tensors) before = c.read(tensor);
        c.run([&](Ops& ops, Stream s) {
          ops.clip_coefficient(square, scalars, HUGE_VALF, s);
          ops.sgd_update(sgd, s);
          ops.lion_update(lion, s);
          ops.adamw_update(adamw, s);
          ops.adamw8bit_update(quantized, s);
          ops.dequantize(quantized.m, m, s);
          ops.dequantize(quantized.v, v, s);
        });
        for (const auto& [tensor, before] : tensors) CHECK((c.read(tensor) == before) == !std::isfinite(squares));
        CHECK(c.read(scalars)[kSkipUpdate] == (std::isfinite(squares) ? 0 : 1));
        if (std::isfinite(squares)) CHECK(c.read(scalars)[kClipCoefficient] == 1);
      }
  }

  TEST_CASE("AdamW on codes is decoding, AdamW in f32, encoding, to the bit") {
    for (auto [dtype, master] : {std::pair{kF32, false}, {kBf16, false}, {kBf16, true}})
      for (int64_t n : {1, 256, 700, 4096, 9001}) {
        CAPTURE(n);
        OpContext c(cpu());
        const Tensor m0 = c.input("m0", kF32, {n}, -0.1, 0.1), v0 = c.input("v0", kF32, {n}, 0, 0.01);
        const Tensor scalars = c.values("scalars", kF32, {0.05, 0.19, 0.002, 0.7, 1.5, 3, 0, 0});
        AdamW8bitUpdate a{.grad = c.input("grad", dtype, {n}), .scalars = scalars};
        const Tensor start = c.input("p", dtype, {n}), start_master = c.input("master", kF32, {n});
        a.param = c.output("a", dtype, {n});
        if (master) a.master = c.output("a master", kF32, {n});
        a.m = make_quantized(c, "m", CodeBook::dynamic8, n);
        a.v = make_quantized(c, "v", CodeBook::dynamic8_unsigned, n);
        a.squares = c.output("squares", kF32, {squares_count(n)});
        AdamWUpdate b{.grad = a.grad, .scalars = scalars};
        b.param = c.output("b", dtype, {n});
        if (master) b.master = c.output("b master", kF32, {n});
        b.m = c.output("bm", kF32, {n}), b.v = c.output("bv", kF32, {n});
        b.squares = c.output("b squares", kF32, {squares_count(n)});
        const Quantized m = make_quantized(c, "m of b", CodeBook::dynamic8, n);
        const Quantized v = make_quantized(c, "v of b", CodeBook::dynamic8_unsigned, n);
        c.run([&](Ops& ops, Stream s) {
          for (const Tensor& p : {a.param, b.param}) ops.cast(start, p, s);
          if (master)
            for (const Tensor& p : {a.master, b.master}) ops.cast(start_master, p, s);
          for (const auto& [from, q] : {std::pair{m0, a.m}, {m0, m}, {v0, a.v}, {v0, v}}) ops.quantize(from, q, s);
          ops.adamw8bit_update(a, s);
          ops.dequantize(m, b.m, s);
          ops.dequantize(v, b.v, s);
          ops.adamw_update(b, s);
          ops.quantize(b.m, m, s);
          ops.quantize(b.v, v, s);
        });
        for (const auto& [x, y] : {std::pair{a.param, b.param}, {a.squares, b.squares}, {a.m.quantized, m.quantized},
                                   {a.m.scales, m.scales}, {a.v.quantized, v.quantized}, {a.v.scales, v.scales}})
          CHECK(c.read(x) == c.read(y));
        if (master) CHECK(c.read(a.master) == c.read(b.master));
      }
  }

  // Least squares: 64 outputs of 64 inputs, 4,096 weights, 96 samples of which a quarter are drawn a step.
  TEST_CASE("50 steps of a regression with 8-bit moments end where those in f32 end") {
    constexpr int64_t kSize = 64, kSamples = 96, kDrawn = 24, n = kSize * kSize, kSteps = 50;
    OpContext c(cpu());
    const Vec x = c.read(c.input("x", kF32, {kSamples, kSize})), target = c.read(c.input("w", kF32, {kSize, kSize}));
    Numbers plain(kF32, n), coded(kF32, n), grad(kF32, n), m(kF32, n), v(kF32, n);
    Codes m8(CodeBook::dynamic8, n), v8(CodeBook::dynamic8_unsigned, n);
    // The mean of (x (w - target))^2 / 2 over samples [first, first + count), and its gradient.
    const auto loss = [&](const Tensor& w, int64_t first, int64_t count) {
      double sum = 0;
      std::fill_n(grad.begin(), n, 0.0f);
      for (int64_t s = first; s < first + count; ++s)
        for (int64_t o = 0; o < kSize; ++o) {
          const int64_t first_weight = o * kSize;
          double error = 0;
          for (int64_t i = first_weight; i < first_weight + kSize; ++i)
            error += (static_cast<double>(w.as<float>()[i]) - at(target, i)) * at(x, s * kSize + i % kSize);
          sum += error * error / 2;
          for (int64_t i = first_weight; i < first_weight + kSize; ++i)
            grad.begin()[i] += static_cast<float>(error * at(x, s * kSize + i % kSize) / static_cast<double>(count));
        }
      return sum / static_cast<double>(count);
    };
    const double before = loss(plain.tensor, 0, kSamples);
    for (int64_t t = 1; t <= kSteps; ++t) {
      const Numbers scalars = step_scalars(t, 0.02f, 0.9, 0.95);
      const int64_t first = (t % 4) * kDrawn;
      loss(plain.tensor, first, kDrawn);
      cpu().ops().adamw_update({.param = plain.tensor, .grad = grad.tensor, .m = m.tensor, .v = v.tensor,
                                .scalars = scalars.tensor, .beta2 = 0.95f}, {});
      loss(coded.tensor, first, kDrawn);
      cpu().ops().adamw8bit_update({.param = coded.tensor, .grad = grad.tensor, .m = m8.q, .v = v8.q,
                                    .scalars = scalars.tensor, .beta2 = 0.95f}, {});
    }
    const std::vector<float> w = plain.floats(), w8 = coded.floats();
    const double apart = normalised_error(Vec(w8.begin(), w8.end()), Vec(w.begin(), w.end()));
    const double after = loss(plain.tensor, 0, kSamples), after8 = loss(coded.tensor, 0, kSamples);
    MESSAGE("loss ", before, " -> ", after, " in f32, ", after8, " in 8 bits; weights apart ", apart);
    CHECK(after < before / 10);
    CHECK(std::fabs(after8 - after) <= 0.05 * after);
    // A code of exp_avg is off by at most 0.7 % of its block's largest, which is 3 % of an ordinary one and so of its
    // step, in either direction.
    CHECK(apart <= 0.03);
  }

  TEST_CASE("Lion against float64") {
    for (auto [dtype, master] : {std::pair{kF32, false}, {kBf16, false}, {kBf16, true}}) {
      constexpr int64_t n = 3000;
      OpContext c(cpu());
      LionUpdate a;
      const Tensor p0 = c.input("p0", kF32, {n}), m0 = c.input("m0", kF32, {n});
      a.param = c.output("p", dtype, {n});
      if (master) a.master = c.output("master", kF32, {n});
      a.m = c.output("m", kF32, {n});
      a.grad = c.input("grad", dtype, {n});
      a.scalars = c.values("scalars", kF32, {0.25, 1, 1, 0.5, 0, 1, 0, 0});
      a.squares = c.output("squares", kF32, {squares_count(n)});
      a.beta1 = 0.9f, a.beta2 = 0.99f, a.weight_decay = 0.5f;
      c.run([&](Ops& ops, Stream s) {
        ops.cast(p0, a.param, s);
        if (master) ops.cast(p0, a.master, s);
        ops.cast(m0, a.m, s);
        ops.lion_update(a, s);
      });
      const Vec g = c.read(a.grad), m = c.read(m0);
      Vec p = c.read(p0), mean(n), squares(2);
      for (int64_t i = 0; i < n; ++i) {
        if (!master && dtype == kBf16) at(p, i) = bf16_to_float(float_to_bf16(static_cast<float>(at(p, i))));
        const double gradient = 0.5 * at(g, i), mixed = 0.9 * at(m, i) + 0.1 * gradient;
        at(p, i) -= 0.25 * 0.5 * at(p, i);
        at(p, i) -= 0.25 * (mixed > 0 ? 1 : mixed < 0 ? -1 : 0);
        at(mean, i) = 0.99 * at(m, i) + 0.01 * gradient;
        at(squares, i / kSquaresSpan) += at(g, i) * at(g, i);
      }
      CHECK_CLOSE(c.read(a.param), p, bound(dtype));
      if (master) CHECK_CLOSE(c.read(a.master), p, bound(kF32));
      CHECK_CLOSE(c.read(a.m), mean, bound(kF32));
      CHECK_CLOSE(c.read(a.squares), squares, bound(kF32));
    }
  }

  TEST_CASE("stochastic rounding: one of the two neighbours, the exact number in the mean, however a tensor is cut") {
    constexpr int64_t n = 1 << 16;
    // p - lr wd p = 0.9375 p: between two bf16 numbers for most p.
    const auto rounded = [&](double p, float step, int64_t first, int64_t count) {
      OpContext c(cpu());
      SgdUpdate a;
      a.param = c.output("p", kBf16, {count});
      a.grad = c.values("g", kBf16, Vec(static_cast<size_t>(count)));
      a.scalars = c.values("scalars", kF32, {0.25, 1, 1, 1, 0, step, 0, 0});
      a.weight_decay = 0.25f;
      a.rounding = {true, 5, 3, first};
      c.run([&](Ops& ops, Stream s) {
        ops.fill(a.param, static_cast<float>(p), s);
        ops.sgd_update(a, s);
      });
      return c.read(a.param);
    };
    for (double p : {1.0078125, -1.0078125, std::ldexp(1.0078125, -15), 1.0}) {
      CAPTURE(p);
      const double exact = 0.9375 * p, step = std::ldexp(1.0, std::ilogb(exact) - 7);
      const double down = std::trunc(exact / step) * step, up = down + std::copysign(step, exact);
      const Vec found = rounded(p, 1, 0, n);
      double sum = 0;
      for (double value : found) {
        CHECK_FALSE((value != down && value != up));
        sum += value;
      }
      // The mean of n numbers of variance up to step^2 / 4, within 5 standard deviations.
      CHECK(std::fabs(sum / n - exact) <= 5 * step / 2 / std::sqrt(n));
      if (exact == down) continue;
      CHECK(rounded(p, 2, 0, n) != found);
      for (auto [first, count] : {std::pair<int64_t, int64_t>{8, 100}, {13, 3}, {1000, 5000}})
        CHECK(rounded(p, 1, first, count) == Vec(found.begin() + first, found.begin() + first + count));
    }
    OpContext c(cpu());
    const Tensor f32 = c.input("f32", kF32, {4}), scalars = c.values("scalars", kF32, Vec(kStepScalars));
    CHECK_THROWS_WITH_AS(cpu().ops().sgd_update({f32, {}, f32, {}, scalars, {}, 0, 0, {true}}, {}),
                         doctest::Contains("sgd_update: only bf16"), Error);
  }
}

}  // namespace blipft::test
