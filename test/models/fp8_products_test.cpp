// Products in fp8: which layers take them, that LinearLayer multiplies exactly what Fp8Cast makes, whose codes stay over a
// step, and numbers that are none.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "models/fp8_rig.h"

namespace blipft::test {
namespace {

/// The plan of one matrix that is stored in fp8.
class StoredUnits final : public NoUnits {
 public:
  StoredUnits(Tensor flat, Fp8Matrix stored) : NoUnits(flat, {}), matrix(stored), flat_(flat) {}
  UnitWeights acquire_quantized(const Unit&, AcceptedEncodings accepted) override {
    CHECK(accepted == AcceptedEncodings::fp8);
    return flat_;
  }
  Fp8Matrix fp8_values(const Unit&, int64_t first, int64_t count) const override {
    CHECK(first == 0);
    CHECK(count == matrix.quantized.numel());
    return matrix;
  }
  const Fp8Matrix matrix;

 private:
  Tensor flat_;
};

/// The expected counts of casts of these tensors: the largest of them, and all elements' counts.
Fp8Found found_in(const std::vector<std::vector<float>>& tensors, DType dtype) {
  Fp8Found found;
  for (const std::vector<float>& values : tensors) {
    const std::vector<double> quantized = in_fp8(values, dtype);
    for (size_t i = 0; i < values.size(); ++i) {
      found.amax = std::max(found.amax, std::abs(values[i]));
      found.counts[kFp8Underflows] += values[i] != 0 && quantized[i] == 0;
    }
    found.counts[kFp8Elements] += static_cast<int64_t>(values.size());
  }
  return found;
}

/// Numbers of many magnitudes, of which casts lose some.
std::vector<float> spread_numbers(int64_t n, uint32_t seed, float size) {
  std::vector<float> values = random_numbers(n, seed, 1);
  for (float& value : values) value = size * std::exp2(8 * value);
  return values;
}

struct Case {
  int64_t rows, in, out;
  DType gradients;
  int64_t kept_bytes;
  bool words;                              ///< Fp8Products::begin_micro_batch() is called
};

}  // namespace

TEST_SUITE("fp8") {
  TEST_CASE("codes are those of the format: each value, each midpoint, its neighbours") {
    for (DType dtype : {DType::f8e4m3, DType::f8e5m2}) {
      const int quantized = dtype == DType::f8e4m3 ? 0x7f : 0x7c;
      for (int code = 0; code < quantized; ++code) {
        CAPTURE(code);
        const float value = fp8_to_float(static_cast<uint8_t>(code), dtype);
        CHECK(float_to_fp8(value, dtype) == code);
        CHECK(float_to_fp8(-value, dtype) == (code | 0x80));
        if (code + 1 == quantized) continue;
        const float next = fp8_to_float(static_cast<uint8_t>(code + 1), dtype), middle = (value + next) / 2;
        CHECK(float_to_fp8(middle, dtype) == code + code % 2);
        CHECK(float_to_fp8(std::nextafter(middle, 0.0f), dtype) == code);
        CHECK(float_to_fp8(std::nextafter(middle, next), dtype) == code + 1);
      }
      CHECK(float_to_fp8(1e30f, dtype) == quantized - 1);
      CHECK(fp8_to_float(static_cast<uint8_t>(quantized - 1), dtype) == (dtype == DType::f8e4m3 ? 448.0f : 57344.0f));
    }
  }

  TEST_CASE("the scale is the least power of two that no magnitude overflows") {
    std::mt19937 random(3);
    for (DType dtype : {DType::f8e4m3, DType::f8e5m2}) {
      const double maximum = dtype == DType::f8e4m3 ? 448 : 57344;
      for (int i = 0; i < 10000; ++i) {
        const float x = float_from_bits(random() % 0x7f800000u);
        const double scale = static_cast<double>(fp8_scale(bits_from_float(x), dtype));
        CAPTURE(x);
        int exponent = 0;
        CHECK(std::frexp(scale, &exponent) == 0.5);
        CHECK((static_cast<double>(x) / scale <= maximum || scale == 0x1p126));
        CHECK((static_cast<double>(x) / scale * 2 > maximum || scale == 0x1p-126));
      }
      CHECK(fp8_scale(0, dtype) == 1);
      for (float none : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
        CHECK(std::isnan(fp8_scale(bits_from_float(none), dtype)));
    }
  }

  TEST_CASE("a layer multiplies what the casts make, forward and backward, micro-batch after micro-batch") {
    for (const Case& of : {Case{7, 16, 32, DType::f8e5m2, 0, false}, {7, 16, 32, DType::f8e5m2, 0, true},
                           {33, 48, 16, DType::f8e4m3, 0, true}, {16, 64, 80, DType::f8e5m2, 1 << 20, true},
                           {5, 32, 48, DType::f8e4m3, 1 << 20, false}, {5, 32, 48, DType::f8e4m3, 1 << 20, true}}) {
      CAPTURE(of.rows);
      Unit unit("layer", kTrained);
      unit.index = 0;
      const LinearLayer layer = add_linear(unit, "layer.fc", of.in, of.out, true, 0.02f);
      const std::vector<float> first = random_numbers(unit.numel(), 1, 0.1f), second = random_numbers(unit.numel(), 2, 0.3f);
      std::vector<float> flat = first, gradient(static_cast<size_t>(unit.numel()));
      const auto device = make_cpu_device(0), plan_device = make_plan_device();
      const auto cpu_ops = make_cpu_ops(), plan_ops = make_plan_ops();
      Arena arena(*device);
      NoUnits units({flat.data(), kF32, {unit.numel()}}, {gradient.data(), kF32, {unit.numel()}});
      Fp8Products fp8({&unit}, {of.gradients, 1, {}, of.kept_bytes}, arena);
      CHECK(fp8.kept_bytes() == (of.kept_bytes > 0 ? 2 * of.in * of.out : 0));
      std::vector<float> y(static_cast<size_t>(of.rows * of.out)), dx(static_cast<size_t>(of.rows * of.in));
      // Two steps of two micro-batches; the weights change in between.
      for (int step = -1; step < 2; ++step) {
        Ops& ops = step < 0 ? *plan_ops : *cpu_ops;
        StepContext context{ops, *device, arena, units, device->compute_stream(), device->side_stream(),
                            device->create_event(), device->create_event()};
        context.fp8 = &fp8;
        if (step == 1) flat = second;
        arena.begin_pass("step");
        fp8.begin_pass();
        std::vector<double> dw(static_cast<size_t>(of.in * of.out));
        for (uint32_t micro_batch = 0; micro_batch < 2; ++micro_batch) {
          std::vector<float> x = random_numbers(of.rows * of.in, 10 + micro_batch, 1), dy = random_numbers(of.rows * of.out, 20 + micro_batch, 1e-5f);
          const Tensor tx{x.data(), kF32, {of.rows, of.in}}, tdy{dy.data(), kF32, {of.rows, of.out}};
          if (of.words) fp8.begin_micro_batch(step < 0 ? *plan_device : *device, context.stream);
          units.accumulate = micro_batch > 0;
          const UnitPass pass = acquire(context, unit);
          layer.forward(pass, {.x = tx, .y = Tensor{y.data(), kF32, {of.rows, of.out}}});
          UnitBackward backward(pass, gradients(context, unit));
          layer.input_gradient(backward, {.dy = tdy, .dx = Tensor{dx.data(), kF32, {of.rows, of.in}}});
          layer.weight_gradient(backward, tdy, tx, {}, Fp8Seen::same);
          backward.join();
          release(context, unit);
          if (step < 0) continue;
          const std::vector<double> w8 = in_fp8({flat.begin(), flat.begin() + of.in * of.out}, DType::f8e4m3);
          const std::vector<double> x8 = in_fp8(x, DType::f8e4m3), dy8 = in_fp8(dy, of.gradients);
          std::vector<double> expected = product(of.rows, of.out, of.in, [&](int64_t r, int64_t l) { return at(x8, r * of.in + l); },
                                                 [&](int64_t j, int64_t l) { return at(w8, j * of.in + l); });
          for (int64_t i = 0; i < of.rows * of.out; ++i)
            expected[static_cast<size_t>(i)] += static_cast<double>(flat[static_cast<size_t>(layer.bias + i % of.out)]);
          CHECK(normalised_error(wide(y), expected) < 1e-6);
          CHECK(normalised_error(wide(dx), product(of.rows, of.in, of.out, [&](int64_t r, int64_t l) { return at(dy8, r * of.out + l); },
                                                   [&](int64_t j, int64_t l) { return at(w8, l * of.in + j); })) < 1e-6);
          const std::vector<double> more = product(of.out, of.in, of.rows, [&](int64_t i, int64_t l) { return at(dy8, l * of.out + i); },
                                                   [&](int64_t j, int64_t l) { return at(x8, l * of.in + j); });
          for (size_t i = 0; i < dw.size(); ++i) dw[i] += more[i];
          CHECK(normalised_error(wide({gradient.begin(), gradient.begin() + of.in * of.out}), dw) < 1e-6);
        }
        arena.end_pass();
        if (step >= 0) continue;
        arena.plan();
        arena.commit();
        fp8.bind(arena);
      }
    }
  }

  TEST_CASE("frozen layers multiply a gradient that is written anew in its place") {
    Unit unit("layers", kFrozen);
    unit.index = 0;
    const LinearLayer one = add_linear(unit, "one", 32, 32, false, 0.02f), other = add_linear(unit, "other", 32, 32, false, 0.02f);
    std::vector<float> flat = random_numbers(unit.numel(), 1, 0.1f), dy = random_numbers(32 * 32, 2, 1), dx(32 * 32), expected(32 * 32);
    const auto device = make_cpu_device(0);
    const auto plan_ops = make_plan_ops(), cpu_ops = make_cpu_ops();
    Arena arena(*device);
    NoUnits units({flat.data(), kF32, {unit.numel()}}, {});
    Fp8Products fp8({&unit}, {DType::f8e5m2, 1, {}, 0}, arena);
    const Tensor tdy{dy.data(), kF32, {32, 32}};
    for (Ops* ops : {plan_ops.get(), cpu_ops.get()}) {
      StepContext context{*ops, *device, arena, units, device->compute_stream(), device->side_stream(), device->create_event(),
                          device->create_event()};
      context.fp8 = &fp8;
      arena.begin_pass("step");
      const UnitPass pass = acquire(context, unit);
      UnitBackward backward(pass, gradients(context, unit));
      one.input_gradient(backward, {.dy = tdy, .dx = Tensor{dx.data(), kF32, {32, 32}}});
      if (ops == cpu_ops.get()) std::ranges::copy(random_numbers(32 * 32, 3, 1), dy.begin());  // where `tdy` looks
      other.input_gradient(backward, {.dy = tdy, .dx = Tensor{dx.data(), kF32, {32, 32}}});
      backward.join();
      UnitBackward again(pass, gradients(context, unit));
      other.input_gradient(again, {.dy = tdy, .dx = Tensor{expected.data(), kF32, {32, 32}}});
      again.join();
      release(context, unit);
      arena.end_pass();
      if (ops == cpu_ops.get()) break;
      arena.plan();
      arena.commit();
    }
    CHECK(dx == expected);
  }

  // Stored in fp8: the quantized values are given, and the weight itself is NaN.
  TEST_CASE("a matrix that is stored in fp8 is multiplied as it is, or decoded, and gives what a cast one gives") {
    for (const int64_t kept_bytes : {int64_t{0}, int64_t{1} << 20})
      for (const int64_t minimum : {1, 1000}) {
        CAPTURE(kept_bytes);
        CAPTURE(minimum);
        Unit unit("layer", kFrozen);
        unit.index = 0;
        const LinearLayer layer = add_linear(unit, "fc", 48, 32, true, 0.02f);
        std::vector<float> flat = random_numbers(unit.numel(), 1, 0.1f), holes = flat;
        std::fill_n(holes.begin() + layer.weight, 48 * 32, NAN);
        const auto device = make_cpu_device(0);
        const auto plan_ops = make_plan_ops(), cpu_ops = make_cpu_ops();
        std::vector<uint8_t> quantized(48 * 32);
        alignas(16) float scale[4]{}, largest = 0;
        const Tensor weight{flat.data() + layer.weight, kF32, {32 * 48}};
        for (int64_t first : {0, 768})
          cpu_ops->raise_fp8_scale(weight.part(first, {768}), {&largest, kF32, {1}}, {scale, kF32, {1}}, {});
        StoredUnits stored({holes.data(), kF32, {unit.numel()}}, {{quantized.data(), DType::f8e4m3, {32 * 48}}, {scale, kF32, {1}}});
        for (int64_t first : {0, 768})     // in parts
          cpu_ops->encode_fp8(weight.part(first, {768}), {stored.matrix.quantized.part(first, {768}), stored.matrix.scale}, {});
        if (minimum > 1) cpu_ops->decode_fp8(stored.matrix, weight, {});
        NoUnits cast({flat.data(), kF32, {unit.numel()}}, {});
        std::vector<float> x = random_numbers(7 * 48, 2, 1), dy = random_numbers(7 * 32, 3, 1);
        std::vector<std::vector<float>> found;
        for (UnitAccess* units : {static_cast<UnitAccess*>(&cast), static_cast<UnitAccess*>(&stored)}) {
          Arena arena(*device);
          Fp8Products fp8({&unit}, {DType::f8e5m2, minimum, {}, kept_bytes, false,
                                    [&](const Unit&, int64_t) { return units == &stored; }}, arena);
          CHECK(fp8.takes(unit, layer.weight) == (minimum == 1));
          CHECK(fp8.kept_bytes() == (kept_bytes == 0 || minimum > 1 ? 0 : units == &stored ? 48 * 32 : 2 * 48 * 32));
          std::vector<float> y(7 * 32), dx(7 * 48);
          for (Ops* ops : {plan_ops.get(), cpu_ops.get()}) {
            StepContext context{*ops, *device, arena, *units, device->compute_stream(), device->side_stream(), device->create_event(),
                                device->create_event()};
            context.fp8 = &fp8;
            arena.begin_pass("step");
            fp8.begin_pass();
            for (int use = 0; use < 2; ++use) {
              const UnitPass pass = acquire(context, unit);
              layer.forward(pass, {.x = Tensor{x.data(), kF32, {7, 48}}, .y = Tensor{y.data(), kF32, {7, 32}}});
              UnitBackward backward(pass, gradients(context, unit));
              layer.input_gradient(backward, {.dy = Tensor{dy.data(), kF32, {7, 32}}, .dx = Tensor{dx.data(), kF32, {7, 48}}});
              backward.join();
              release(context, unit);
            }
            arena.end_pass();
            if (ops == cpu_ops.get()) break;
            arena.plan();
            arena.commit();
            fp8.bind(arena);
          }
          y.insert(y.end(), dx.begin(), dx.end());
          for (float value : y) CHECK(std::isfinite(value));
          found.push_back(y);
        }
        CHECK(found[0] == found[1]);
      }
  }

  TEST_CASE("small, odd and excluded layers stay as they are; others do not") {
    Unit unit("layer", kTrained);
    unit.index = 0;
    const LinearLayer qkv = add_packed_linear(unit, std::vector<std::string>{"model.layers.0.q", "model.layers.0.k"}, 64, 64, false, 0.02f);
    const LinearLayer small = add_linear(unit, "model.layers.0.small", 64, 16, false, 0.02f);
    const LinearLayer odd = add_linear(unit, "model.layers.0.odd", 64, 72, false, 0.02f);
    const LinearLayer down = add_linear(unit, "model.layers.0.down", 64, 64, false, 0.02f);
    const LinearLayer down_other = add_linear(unit, "model.layers.0.updown", 64, 64, false, 0.02f);
    const auto device = make_cpu_device(0);
    Arena arena(*device);
    const Fp8Products fp8({&unit}, {DType::f8e5m2, 32, {"down"}, 0}, arena);
    CHECK(fp8.takes(unit, qkv.weight));
    CHECK_FALSE(fp8.takes(unit, small.weight));
    CHECK_FALSE(fp8.takes(unit, odd.weight));
    CHECK_FALSE(fp8.takes(unit, down.weight));
    CHECK(fp8.takes(unit, down_other.weight));
    CHECK_FALSE(Fp8Products({&unit}, {DType::f8e5m2, 32, {"layers.0.k"}, 0}, arena).takes(unit, qkv.weight));
  }

  TEST_CASE("a step notes x and dy of each micro-batch, the weight once, and nothing that is computed again") {
    for (const auto& [kept_bytes, words] : {std::pair{0, false}, {0, true}, {1 << 20, false}, {1 << 20, true}}) {
      CAPTURE(kept_bytes);
      CAPTURE(words);
      constexpr int64_t kRows = 5, kIn = 32, kOut = 48;
      Unit unit("layer", kTrained);
      unit.index = 0;
      const LinearLayer layer = add_packed_linear(unit, std::vector<std::string>{"layer.q", "layer.k", "layer.v"}, kIn, kOut / 3, false, 0.02f);
      std::vector<float> flat = spread_numbers(unit.numel(), 1, 0.1f), gradient(static_cast<size_t>(unit.numel()));
      std::vector<float> y(static_cast<size_t>(kRows * kOut)), dx(static_cast<size_t>(kRows * kIn));
      const auto device = make_cpu_device(0), plan_device = make_plan_device();
      const auto cpu_ops = make_cpu_ops(), plan_ops = make_plan_ops();
      Arena arena(*device);
      NoUnits units({flat.data(), kF32, {unit.numel()}}, {gradient.data(), kF32, {unit.numel()}});
      Fp8Products fp8({&unit}, {DType::f8e5m2, 1, {}, kept_bytes, true}, arena);
      CHECK(fp8.names() == std::vector<std::string>{"layer.q, k, v"});
      for (const bool planned : {false, true, true}) {  // the second step begins anew
        StepContext context{planned ? *cpu_ops : *plan_ops, *device, arena, units, device->compute_stream(), device->side_stream(),
                            device->create_event(), device->create_event()};
        context.fp8 = &fp8;
        arena.begin_pass("step");
        fp8.begin_pass();
        if (planned) CHECK_FALSE(fp8.notes(unit, layer.weight, Fp8Factor::x).largest);
        fp8.begin_notes(planned ? *device : *plan_device, context.stream);
        std::vector<std::vector<float>> xs, dys;
        for (uint32_t micro_batch = 0; micro_batch < 2; ++micro_batch) {
          xs.push_back(spread_numbers(kRows * kIn, 10 + micro_batch, 1)), dys.push_back(spread_numbers(kRows * kOut, 20 + micro_batch, 1e-5f));
          const Tensor x{xs.back().data(), kF32, {kRows, kIn}}, dy{dys.back().data(), kF32, {kRows, kOut}};
          if (words) fp8.begin_micro_batch(planned ? *device : *plan_device, context.stream);
          UnitPass pass = acquire(context, unit);
          for (const bool again : {false, true}) {
            pass.again = again;
            layer.forward(pass, {.x = x, .y = Tensor{y.data(), kF32, {kRows, kOut}}});
          }
          UnitBackward backward(pass, gradients(context, unit));
          layer.input_gradient(backward, {.dy = dy, .dx = Tensor{dx.data(), kF32, {kRows, kIn}}});
          layer.weight_gradient(backward, dy, x);
          backward.join();
          release(context, unit);
        }
        arena.end_pass();
        if (!planned) {
          arena.plan();
          arena.commit();
          fp8.bind(arena);
          continue;
        }
        const Fp8Found expected[kFp8Factors] = {found_in(xs, DType::f8e4m3), found_in({flat}, DType::f8e4m3), found_in(dys, DType::f8e5m2)};
        for (int64_t factor = 0; factor < kFp8Factors; ++factor) {
          CAPTURE(factor);
          CHECK(fp8.largest().as<float>()[factor] == expected[factor].amax);
          CHECK(expected[factor].counts[kFp8Underflows] > 0);
          for (int64_t i = 0; i < kFp8Counts; ++i) CHECK(fp8.counts().as<int64_t>()[factor * kFp8Counts + i] == expected[factor].counts[i]);
        }
      }
    }
  }

  TEST_CASE("casts count what becomes zero and what is not finite") {
    const auto ops = make_cpu_ops();
    const float inf = std::numeric_limits<float>::infinity(), minimum = 0x1p-9f;  // of e4m3, where the scale is 1
    const auto counted = [&](std::vector<float> x) {
      float amax = 0, scale = 0, largest = 300;
      std::vector<uint8_t> quantized(16);
      std::vector<int64_t> counts{1, 1, 1};
      x.resize(16);
      ops->cast_fp8({.x = Tensor{x.data(), kF32, {1, 16}}, .amax = {&amax, kF32, {1}}, .scale = {&scale, kF32, {1}},
                     .quantized = {quantized.data(), DType::f8e4m3, {1, 16}}, .largest = {&largest, kF32, {1}},
                     .counts = {counts.data(), DType::i64, {kFp8Counts}}}, {});
      return std::pair{largest, std::vector<int64_t>{counts[0] - 1, counts[1] - 1, counts[2] - 1}};
    };
    // Half of the least code is rounded to zero, as the even neighbour; what lies above it is not.
    CHECK(counted({448, minimum, minimum / 2, std::nextafter(minimum / 2, 1.0f), -minimum / 4, -0.0f, 1e-45f}) ==
          std::pair{448.0f, std::vector<int64_t>{16, 3, 0}});
    CHECK(counted({224, minimum / 4, -minimum / 8}) == std::pair{300.0f, std::vector<int64_t>{16, 2, 0}});
    CHECK(counted({inf, -inf, 1, 1e-45f}) == std::pair{inf, std::vector<int64_t>{16, 1, 2}});
    CHECK(counted({std::nanf(""), 1}).second == std::vector<int64_t>{16, 0, 1});
  }

  TEST_CASE("the first factor that is not finite: forward's as its layers follow, then backward's from the last layer on") {
    Unit unit("layer", kTrained);
    unit.index = 0;
    for (const char* name : {"layers.0.fc", "layers.1.fc", "layers.2.fc"}) add_linear(unit, name, 64, 64, false, 0.02f);
    const auto device = make_cpu_device(0);
    Arena arena(*device);
    const Fp8Products fp8({&unit}, {DType::f8e5m2, 1, {}, 0}, arena);
    CHECK_FALSE(fp8.counts());
    std::vector<float> largest(9, 1);
    const auto first = [&](size_t matrix, Fp8Factor factor, float value) {
      largest[matrix * 3 + static_cast<size_t>(factor)] = value;
      return fp8.first_not_finite(largest.data());
    };
    const float inf = std::numeric_limits<float>::infinity();
    CHECK(fp8.first_not_finite(largest.data()).empty());
    CHECK(first(0, Fp8Factor::dy, inf) == "dy of layers.0.fc");
    CHECK(first(1, Fp8Factor::dy, std::nanf("")) == "dy of layers.1.fc");
    CHECK(first(2, Fp8Factor::x, std::nanf("")) == "x of layers.2.fc");
    CHECK(first(1, Fp8Factor::w, inf) == "w of layers.1.fc");
    CHECK(first(1, Fp8Factor::x, inf) == "x of layers.1.fc");
  }

  TEST_CASE("a number that is none reaches what is multiplied with it") {
    const auto ops = make_cpu_ops();
    std::vector<float> x(32, 1.0f), w(256, 0.5f), y(32);
    alignas(16) float words[8]{};
    float amax[2]{};
    std::vector<uint8_t> quantized(32), weights(256);
    x[5] = std::numeric_limits<float>::infinity();
    const auto cast = [&](std::vector<float>& from, std::vector<uint8_t>& to, int64_t rows, size_t word) {
      const Fp8Cast args{.x = Tensor{from.data(), kF32, {rows, 16}}, .amax = {&amax[word], kF32, {1}}, .scale = {&words[4 * word], kF32, {1}},
                         .quantized = {to.data(), DType::f8e4m3, {rows, 16}}};
      ops->cast_fp8(args, {});
      return Fp8Matrix{args.quantized, args.scale};
    };
    LinearForward args{.x = Tensor{x.data(), kF32, {2, 16}}, .w = {w.data(), kF32, {16, 16}}, .y = Tensor{y.data(), kF32, {2, 16}}};
    args.x8 = cast(x, quantized, 2, 0), args.w8 = cast(w, weights, 16, 1);
    ops->linear_forward(args, {});
    CHECK(std::isinf(amax[0]));
    for (float value : y) CHECK(std::isnan(value));
  }
}

}  // namespace blipft::test
