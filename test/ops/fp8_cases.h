// Cases of factors in fp8: casts, whose bits every backend has alike, and products of them.
#pragma once

#include <cmath>
#include <limits>
#include <random>
#include <tuple>
#include <utility>

#include "ops/op_case.h"

namespace blipft::test {

/// An output that is compared by its bits, numbers or not.
inline Tensor bits(OpContext& c, const std::string& name, DType dtype, const Shape& shape) {
  return {c.output(name, DType::u8, {shape.numel() * dtype_size(dtype)}).data, dtype, shape};
}

/// What a cast makes of x, and where.
inline Fp8Cast make_cast(OpContext& c, const std::string& name, const MatrixView& x, DType to, bool codes, bool transposed) {
  Fp8Cast cast{.x = x, .amax = bits(c, name + ".amax", kF32, {1}), .scale = bits(c, name + ".scale", kF32, {1})};
  if (codes) cast.codes = bits(c, name + ".codes", to, {x.rows(), x.cols()});
  if (transposed) cast.transposed = bits(c, name + ".transposed", to, {x.cols(), fp8_columns(x.rows())});
  return cast;
}

/// What a cast adds to what earlier ones found: the largest magnitude, and with `counts` these too.
inline void add_found(OpContext& c, Fp8Cast& cast, bool counts) {
  cast.largest = c.changing_values("largest", kF32, {0.25});
  if (counts) cast.counts = c.changing_values("counts", DType::i64, {5, 7, 5e12});
}

/// Numbers of up to `size` that are spread evenly over 50 powers of two, so that many become zero; some are it.
inline Tensor spread(OpContext& c, const std::string& name, DType t, const Shape& shape, double size) {
  std::mt19937 random(5);
  std::vector<double> numbers(static_cast<size_t>(shape.numel()));
  for (double& number : numbers) {
    const double magnitude = size * std::exp2(-50.0 * random() / 4294967296.0);
    number = random() % 16 == 0 ? 0 : random() % 2 ? magnitude : -magnitude;
  }
  return c.values(name, t, numbers).view(shape);
}

/// `first` columns into rows that are `behind` longer; numbers of up to `size`.
inline void add_fp8_cast(Cases& cases, DType t, DType to, int64_t rows, int64_t cols, int64_t first, int64_t behind, double size) {
  enum Found { kNothing, kLargest, kCounts };
  for (const auto& [codes, transposed, found] :
       {std::tuple{true, true, kNothing}, {true, false, kNothing}, {false, true, kNothing}, {true, false, kLargest},
        {true, true, kCounts}, {true, false, kCounts}, {false, true, kCounts}})
    cases.push_back({title(t, "cast to ", dtype_name(to), " ", rows, "x", cols, " columns from ", first, ", ", behind,
                           " behind, up to ", size, codes ? " codes" : "", transposed ? " transposed" : "",
                           found == kCounts ? " counts" : found == kLargest ? " largest" : ""),
                     t, true, [=](OpContext& c) {
      const Shape whole{rows, first + cols + behind};
      const Tensor wide = found == kCounts ? spread(c, "x", t, whole, size) : c.input("x", t, whole, -size, size * 0.9);
      Fp8Cast cast = make_cast(c, "x", MatrixView(wide).columns(first, cols), to, codes, transposed);
      if (found != kNothing) add_found(c, cast, found == kCounts);
      c.run([&](Ops& ops, Stream s) { ops.cast_fp8(cast, s); });
    }});
}

/// Zeros, the smallest and largest numbers, numbers between codes, and such as are none.
inline void add_fp8_extremes(Cases& cases, DType to) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  int index = 0;
  for (const std::vector<double>& numbers :
       {std::vector<double>{0, -0.0}, {1e-45, -3e-45, 0}, {1e-38, 1e-44}, {3.4e38, -3.3e38, 1}, {448, 449, 1.5, 1.0625, 1.1875, 1e-3},
        {57344, 0.8, 2.5e-5, 1.5e-5, 7.6e-6}, {1, inf, -2}, {-inf, 3}, {nan, 1, 2}, {1.75, 1.7500001}, {1.7499999, -1.75}})
    cases.push_back({title(kF32, "cast to ", dtype_name(to), " of extremes ", index++), kF32, true, [=](OpContext& c) {
      std::vector<double> all;
      for (size_t i = 0; i < 64; ++i) all.push_back(numbers[i % numbers.size()]);
      const Tensor x = c.values("x", kF32, all).view({2, 32});
      Fp8Cast cast = make_cast(c, "x", x, to, true, true);
      cast.largest = {c.changing_values("largest", DType::u8, {0, 0, 0, 0}).data, kF32, {1}};  // by its bits
      cast.counts = c.changing_values("counts", DType::i64, {0, 0, 0});
      c.run([&](Ops& ops, Stream s) { ops.cast_fp8(cast, s); });
    }});
}

/// The three products of a layer, of factors that are cast here. `t`: of the results. The bound is bf16's: the tensor cores
/// of Hopper add up products of fp8 in fewer than f32's digits.
inline void add_fp8_products(Cases& cases, DType t, DType gradients, int64_t m, int64_t k, int64_t n, Activation activation,
                             bool bias, bool addend, bool accumulate) {
  cases.push_back({title(t, "fp8 products ", m, "x", k, "x", n, " gradients ", dtype_name(gradients), " activation ", int(activation),
                         " bias ", bias, " add ", addend, " accumulate ", accumulate),
                   kBf16, false, [=](OpContext& c) {
    const double range = std::sqrt(3.0 / static_cast<double>(k));
    LinearForward f{.x = c.input("x", t, {m, k}), .w = c.input("w", t, {n, k}, -range, range), .activation = activation};
    if (bias) f.bias = c.input("bias", t, {n});
    if (addend && activation == Activation::none) f.residual = c.input("residual", t, {m, n});
    if (activation == Activation::gelu) f.pre_activation = c.output("pre_activation", t, {m, n});
    f.y = c.output("y", t, {m, n});
    LinearBackwardInput i{.dy = c.input("dy", t, {m, n}, -1e-4, 1e-4), .w = f.w, .activation = activation};
    if (addend) i.add = c.input("add", t, {m, k}, -1e-4, 1e-4);
    if (activation != Activation::none) i.saved = c.input("saved", t, {m, k}, -2, 2);
    if (bias) i.dbias = c.inout("dbias of x", kF32, {k}, -1e-3, 1e-3);
    i.accumulate_dbias = accumulate;
    i.dx = c.output("dx", t, {m, k});
    LinearBackwardWeight w{.dy = i.dy, .x = f.x, .accumulate = accumulate};
    w.dw = accumulate ? c.inout("dw", t, {n, k}, -1e-3, 1e-3) : c.output("dw", t, {n, k});
    if (bias) w.dbias = accumulate ? c.inout("dbias", kF32, {n}) : c.output("dbias", kF32, {n});
    const Fp8Cast x = make_cast(c, "x8", f.x, DType::f8e4m3, true, true), weight = make_cast(c, "w8", f.w, DType::f8e4m3, true, true);
    const Fp8Cast dy = make_cast(c, "dy8", i.dy, gradients, true, true);
    f.x8 = {x.codes, x.scale}, f.w8 = {weight.codes, weight.scale};
    i.dy8 = {dy.codes, dy.scale}, i.wt8 = {weight.transposed, weight.scale};
    w.dyt8 = {dy.transposed, dy.scale}, w.xt8 = {x.transposed, x.scale};
    c.run([&](Ops& ops, Stream s) {
      for (const Fp8Cast* cast : {&x, &weight, &dy}) ops.cast_fp8(*cast, s);
      ops.linear_forward(f, s);
      ops.linear_backward_input(i, s);
      ops.linear_backward_weight(w, s);
    });
  }});
}

/// A matrix that is stored in parts: the magnitude that its scale is of, codes and numbers, and the same of a cast in one.
/// `shift`: elements that values and codes lie off a multiple of 16.
inline void add_stored_fp8(Cases& cases, DType t, int64_t n, int64_t shift, double size) {
  cases.push_back({title(t, "stored fp8 ", n, " shifted ", shift, " up to ", size), t, true, [=](OpContext& c) {
    const Tensor x = c.input("x", t, {n + shift}, -size, size * 0.9).part(shift, {n});
    const Tensor largest = c.changing_values("largest", kF32, {0}), larger = c.changing_values("larger", kF32, {size * 8});
    const Tensor own = c.output("own scale", kF32, {1}), own_larger = c.output("own larger scale", kF32, {1});
    // Some numbers lie above the largest code, some below the smallest.
    const Tensor scale = c.values("scale", kF32, {std::exp2(std::round(std::log2(size / 300)))});
    const Tensor codes = bits(c, "codes", DType::f8e4m3, {n + shift + 16});
    const Fp8Matrix stored{codes.part(shift, {n}), scale};
    const Tensor f32 = c.output("f32", kF32, {n}), bf16 = c.output("bf16", kBf16, {n});
    const Tensor shifted = c.inout("shifted", t, {n + shift}).part(shift, {n});
    c.run([&](Ops& ops, Stream s) {
      ops.raise_fp8_scale(x, largest, own, s);
      ops.raise_fp8_scale(x, larger, own_larger, s);
      ops.encode_fp8(x, stored, s);
      for (const Tensor& y : {f32, bf16, shifted}) ops.decode_fp8(stored, y, s);
    });
  }});
}

/// Every number that there is, with the least and the largest scale among others; the codes of numbers that are none are not
/// decoded.
inline void add_stored_fp8_extremes(Cases& cases, double scale) {
  cases.push_back({concat("stored fp8 every code, scale ", scale), kF32, true, [=](OpContext& c) {
    std::vector<double> numbers, beyond;
    for (int code = 0; code < 256; ++code)
      if (code % 128 != 127)
        numbers.push_back(static_cast<double>(fp8_to_float(static_cast<uint8_t>(code), DType::f8e4m3)) * scale);
    const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
    for (double value : {inf, -inf, nan, 3e38, 1e-45, -0.0}) beyond.push_back(value);
    const Tensor x = c.values("x", kF32, numbers), others = c.values("beyond", kF32, beyond), of = c.values("scale", kF32, {scale});
    const Tensor largest = bits(c, "largest", kF32, {1}), own = bits(c, "own scale", kF32, {1}), codes = bits(c, "codes", DType::f8e4m3, x.shape);
    const Tensor more = bits(c, "codes beyond", DType::f8e4m3, others.shape), y = bits(c, "y", kF32, x.shape);
    const Tensor f16 = c.output("f16", DType::f16, x.shape);
    c.run([&](Ops& ops, Stream s) {
      ops.fill(largest, 0, s);
      ops.raise_fp8_scale(others, largest, own, s);
      ops.encode_fp8(x, {codes, of}, s);
      ops.encode_fp8(others, {more, of}, s);
      ops.decode_fp8({codes, of}, y, s);
      if (std::fabs(scale) < 100) ops.decode_fp8({codes, of}, f16, s);
      else ops.cast(x, f16, s);
    });
  }});
}

inline void add_fp8_transpose(Cases& cases, DType of, int64_t rows, int64_t cols) {
  cases.push_back({concat("transpose of ", dtype_name(of), " ", rows, "x", cols), kF32, true, [=](OpContext& c) {
    const Tensor bytes = c.input("codes", DType::u8, {rows, cols}, 0, 256), codes{bytes.data, of, bytes.shape};
    const Tensor transposed = bits(c, "transposed", of, {cols, fp8_columns(rows)});
    c.run([&](Ops& ops, Stream s) { ops.transpose_fp8(codes, transposed, s); });
  }});
}

inline void add_stored_fp8_ops(Cases& cases) {
  for (DType t : {kF32, kBf16, DType::f16})
    for (auto [n, shift] : {std::pair<int64_t, int64_t>{1, 0}, {7, 0}, {64, 0}, {1000, 3}, {40000, 0}, {40001, 8}, {1 << 20, 0}})
      add_stored_fp8(cases, t, n, shift, n % 2 ? 0.02 : 900);
  for (double scale : {0x1p-126, 0x1p-9, 1.0, 0x1p119}) add_stored_fp8_extremes(cases, scale);
  for (DType of : {DType::f8e4m3, DType::f8e5m2})
    for (auto [rows, cols] : {std::pair<int64_t, int64_t>{1, 16}, {7, 48}, {16, 64}, {33, 80}, {130, 176}, {257, 1408}, {512, 128}})
      add_fp8_transpose(cases, of, rows, cols);
}

inline void add_fp8_ops(Cases& cases) {
  add_stored_fp8_ops(cases);
  for (DType to : {DType::f8e4m3, DType::f8e5m2}) {
    for (DType t : {kF32, kBf16})
      for (auto [rows, cols, first, behind] :
           {std::tuple<int64_t, int64_t, int64_t, int64_t>{1, 16, 0, 0}, {7, 48, 0, 0}, {16, 64, 0, 0}, {33, 80, 16, 8}, {33, 80, 3, 2},
            {130, 176, 0, 0}, {257, 1408, 0, 0}, {514, 128, 8, 0}})
        add_fp8_cast(cases, t, to, rows, cols, first, behind, rows % 2 ? 3e-5 : 900);
    add_fp8_extremes(cases, to);
  }
  for (DType t : {kF32, kBf16})
    for (auto [m, k, n] : {std::tuple<int64_t, int64_t, int64_t>{1, 16, 16}, {7, 48, 32}, {33, 176, 80}, {64, 128, 256}, {257, 1408, 320},
                           {514, 512, 2048}}) {
      const DType other = m % 2 ? DType::f8e4m3 : DType::f8e5m2;
      add_fp8_products(cases, t, other, m, k, n, Activation::none, false, false, false);
      add_fp8_products(cases, t, DType::f8e5m2, m, k, n, Activation::none, true, true, true);
      add_fp8_products(cases, t, DType::f8e4m3, m, k, n, Activation::relu, true, false, false);
      add_fp8_products(cases, t, other, m, k, n, Activation::gelu, true, true, false);
    }
}

}  // namespace blipft::test
