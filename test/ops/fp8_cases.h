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

/// The outputs of a cast of x.
inline Fp8Cast make_cast(OpContext& c, const std::string& name, const MatrixView& x, DType to, bool quantized, bool transposed) {
  Fp8Cast cast{.x = x, .amax = bits(c, name + ".amax", kF32, {1}), .scale = bits(c, name + ".scale", kF32, {1})};
  if (quantized) cast.quantized = bits(c, name + ".codes", to, {x.rows(), x.cols()});
  if (transposed) cast.transposed = bits(c, name + ".transposed", to, {x.cols(), fp8_columns(x.rows())});
  return cast;
}

/// The results that casts accumulate: the largest magnitude, and with `counts` these too.
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
  for (const auto& [quantized, transposed, found] :
       {std::tuple{true, true, kNothing}, {true, false, kNothing}, {false, true, kNothing}, {true, false, kLargest},
        {true, true, kCounts}, {true, false, kCounts}, {false, true, kCounts}})
    cases.push_back({title(t, "cast to ", dtype_name(to), " ", rows, "x", cols, " columns from ", first, ", ", behind,
                           " behind, up to ", size, quantized ? " codes" : "", transposed ? " transposed" : "",
                           found == kCounts ? " counts" : found == kLargest ? " largest" : ""),
                     t, true, [=](OpContext& c) {
      const Shape whole{rows, first + cols + behind};
      const Tensor wide = found == kCounts ? spread(c, "x", t, whole, size) : c.input("x", t, whole, -size, size * 0.9);
      Fp8Cast cast = make_cast(c, "x", MatrixView(wide).columns(first, cols), to, quantized, transposed);
      if (found != kNothing) add_found(c, cast, found == kCounts);
      c.run([&](Ops& ops, Stream s) { ops.cast_fp8(cast, s); });
    }});
}

/// A magnitude that is there before: of what was raised to it, less or more than what x has; or x's own, found by a cast.
inline void add_fp8_magnitudes(Cases& cases, DType t, DType to, int64_t rows, int64_t cols, double before) {
  cases.push_back({title(t, "cast to ", dtype_name(to), " ", rows, "x", cols, " magnitude ", before), t, true, [=](OpContext& c) {
    const Tensor x = c.input("x", t, {rows, cols}, -3, 2);
    const Fp8Cast found = make_cast(c, "found", x, to, true, true);
    Fp8Cast raised = make_cast(c, "raised", x, to, true, true), given = make_cast(c, "given", x, to, false, true);
    raised.amax = {c.changing_values("amax", DType::u8, {0, 0, 0, 0}).data, kF32, {1}};  // by its bits
    raised.magnitude = Fp8Magnitude::raised;
    given.amax = raised.amax, given.magnitude = Fp8Magnitude::given;
    given.largest = {c.changing_values("largest", DType::u8, {0, 0, 0, 0}).data, kF32, {1}};
    c.run([&](Ops& ops, Stream s) {
      if (before != 0) ops.fill(raised.amax, static_cast<float>(before), s);
      ops.cast_fp8(found, s);
      ops.cast_fp8(raised, s);
      ops.cast_fp8(given, s);
    });
    c.require_same_bits(given.transposed, raised.transposed, "a magnitude that is given makes other codes");
    c.require_same_bits(given.largest, raised.amax, "a given magnitude is not reported");
    if (before < 3) c.require_same_bits(raised.quantized, found.quantized, "a magnitude that is raised makes other codes");
    if (before < 3) c.require_same_bits(raised.amax, found.amax, "a magnitude is raised to another than is found");
  }});
}

/// Whoever writes a tensor raises to the magnitude that a cast of it finds, or leaves a greater one that was there.
class WrittenMagnitudes {
 public:
  explicit WrittenMagnitudes(OpContext& c) : c_(c) {}
  /// The magnitude argument of an op that writes `t`; `before`: its value at the call, 0 or more than `t` has.
  Tensor of(const MatrixView& t, double before = 0) {
    const std::string name = concat("magnitude ", written_.size());
    written_.push_back(c_.changing_values(name, kF32, {before}));
    casts_.push_back({.x = t, .amax = c_.scratch(name + " of a cast", kF32, {1}), .scale = c_.scratch(name + " scale", kF32, {1}),
                      .quantized = c_.scratch(name + " codes", DType::f8e4m3, {t.rows(), t.cols()})});
    expected_.push_back(before > 0 ? c_.values(name + " before", kF32, {before}) : casts_.back().amax);
    return written_.back();
  }
  void run(Ops& ops, Stream s) const {
    for (const Fp8Cast& cast : casts_) ops.cast_fp8(cast, s);
  }
  void check() const {
    for (size_t i = 0; i < written_.size(); ++i)
      c_.require_same_bits(written_[i], expected_[i], concat("magnitude ", i, " is not what a cast finds"));
  }

 private:
  OpContext& c_;
  std::vector<Tensor> written_, expected_;
  std::vector<Fp8Cast> casts_;
};

/// Norms in all their kernels; RMSNorm's backward makes y again with forward's bits.
inline void add_norm_magnitude(Cases& cases, DType t, int64_t samples, int64_t tokens, int64_t n, bool rms, bool residual, bool dropout) {
  const int64_t m = samples * tokens;
  for (const RmsForm& form : {RmsForm{}, RmsForm{1, true}}) {
    if (!rms && form.rounds_once) continue;
    cases.push_back({title(t, "magnitude of ", rms ? "rms norm " : "norm ", samples, "x", tokens, "x", n, " residual ", residual,
                           " dropout ", dropout, form.rounds_once ? " rounds once" : ""), t, false, [=](OpContext& c) {
      NormForward f{.x = c.input("x", t, {m, n}, -1, 2), .rms = form};
      if (residual) f.residual = c.input("residual", t, {m, n}, -2, 1);
      if (dropout) f.dropout = make_dropout(c, 0.3f, samples, tokens);
      if (residual || dropout) f.sum = c.output("sum", t, {m, n});
      f.gamma = c.input("gamma", t, {n}, 0.5, 1.5);
      if (!rms) f.beta = c.input("beta", t, {n}), f.mean = c.output("mean", kF32, {m});
      f.y = c.output("y", t, {m, n}), f.rstd = c.output("rstd", kF32, {m});
      WrittenMagnitudes magnitudes(c);
      f.amax = magnitudes.of(f.y);
      NormBackward b{.dy = c.input("dy", t, {m, n}), .x = f.sum ? f.sum : f.x, .mean = f.mean, .rstd = f.rstd, .gamma = f.gamma,
                     .beta = f.beta, .y = c.output("y again", t, {m, n}), .rms = form, .dx = c.output("dx", t, {m, n})};
      b.dgamma = c.output("dgamma", kF32, {n});
      if (!rms) b.dbeta = c.output("dbeta", kF32, {n});
      if (residual) b.add = c.input("add", t, {m, n});
      if (dropout) b.dropout = f.dropout, b.dropped = c.output("dropped", t, {m, n});
      b.amax = magnitudes.of(dropout ? b.dropped : b.dx);
      c.run([&](Ops& ops, Stream s) {
        ops.norm_forward(f, s);
        ops.norm_backward(b, s);
        magnitudes.run(ops, s);
      });
      magnitudes.check();
      if (rms) c.require_same_bits(b.y, f.y, "backward makes another y than forward");
    }});
  }
}

/// Gated inner values and their gradients; backward makes y again with forward's bits.
inline void add_gate_magnitude(Cases& cases, DType t, GateActivation activation, int64_t rows, int64_t inner) {
  cases.push_back({title(t, "magnitude of gate ", static_cast<int>(activation), " ", rows, "x", inner), t, false, [=](OpContext& c) {
    Swiglu f{.activation = activation, .gate_up = c.input("gate_up", t, {rows, 2 * inner}, -6, 6), .y = c.output("y", t, {rows, inner})};
    Swiglu b{.activation = activation, .gate_up = f.gate_up, .y = c.output("y again", t, {rows, inner}),
             .dy = c.input("dy", t, {rows, inner}), .dgate_up = c.output("dgate_up", t, {rows, 2 * inner})};
    Swiglu more = f;
    more.y = c.output("y once more", t, {rows, inner});
    WrittenMagnitudes magnitudes(c);
    f.amax = magnitudes.of(f.y), b.amax = magnitudes.of(b.dgate_up), more.amax = magnitudes.of(more.y, 1000);
    c.run([&](Ops& ops, Stream s) {
      ops.swiglu_forward(f, s);
      ops.swiglu_backward(b, s);
      ops.swiglu_forward(more, s);
      magnitudes.run(ops, s);
    });
    magnitudes.check();
    c.require_same_bits(b.y, f.y, "backward makes another y than forward");
  }});
}

/// The gradient of what an activation made.
inline void add_activation_magnitude(Cases& cases, DType t, Activation activation, bool signs, bool bias, int64_t m, int64_t k) {
  cases.push_back({title(t, "magnitude of activation ", static_cast<int>(activation), signs ? " signs" : "", " bias ", bias, " ", m, "x", k),
                   t, false, [=](OpContext& c) {
    LinearBackwardInput i{.dy = c.input("dy", t, {m, 32}), .w = c.input("w", t, {32, k}), .activation = activation};
    const Tensor saved = c.input("saved", t, {m, k}, -2, 2), of_signs = c.scratch("signs", DType::u8, {(m * k + 7) / 8});
    i.saved = signs ? of_signs : saved;
    if (activation == Activation::gelu) i.activated = c.output("activated", t, {m, k});
    if (bias) i.dbias = c.output("dbias", kF32, {k});
    i.dx = c.output("dx", t, {m, k});
    WrittenMagnitudes magnitudes(c);
    i.amax = magnitudes.of(i.dx);
    c.run([&](Ops& ops, Stream s) {
      ops.pack_signs(saved, of_signs, s);
      ops.linear_backward_input(i, s);
      magnitudes.run(ops, s);
    });
    magnitudes.check();
  }});
}

/// Heads that turn, and the columns behind them, which lie in wider rows.
inline void add_rotary_magnitude(Cases& cases, DType t, int64_t rows, int64_t heads, int64_t head_size) {
  cases.push_back({title(t, "magnitude of rotary ", rows, "x", heads, "x", head_size), t, false, [=](OpContext& c) {
    const int64_t width = heads * head_size;
    const Tensor x = c.inout("x", t, {rows, width + 48}, -2, 3);
    Rotary a{.x = MatrixView(x).columns(0, width), .head_size = head_size, .inverse = true};
    std::vector<double> positions;
    for (int64_t r = 0; r < rows; ++r) positions.push_back(static_cast<double>(r * 37 % 2048));
    a.positions = c.values("positions", DType::i32, positions);
    for (int64_t i = 0; i < head_size / 2; ++i)
      a.frequencies[i] = std::pow(10000.0f, -2.0f * static_cast<float>(i) / static_cast<float>(head_size));
    WrittenMagnitudes magnitudes(c);
    a.amax = magnitudes.of(a.x);
    const MatrixView behind = MatrixView(x).columns(width + 16, 32);
    const Tensor of_behind = magnitudes.of(behind), of_all = magnitudes.of(x);
    c.run([&](Ops& ops, Stream s) {
      ops.rotary(a, s);
      ops.raise_amax(behind, of_behind, s);
      ops.raise_amax(MatrixView(x).columns(width, 48), of_all, s);
      ops.raise_amax(a.x, of_all, s);
      magnitudes.run(ops, s);
    });
    magnitudes.check();
  }});
}

inline void add_magnitudes(Cases& cases) {
  for (DType t : {kF32, kBf16}) {
    for (double before : {0.0, 0.1, 500.0}) add_fp8_magnitudes(cases, t, DType::f8e4m3, 33, 80, before);
    add_fp8_magnitudes(cases, t, DType::f8e5m2, 130, 176, 0);
    for (auto [samples, tokens, n] : {std::tuple<int64_t, int64_t, int64_t>{1, 1, 16}, {3, 11, 64}, {2, 9, 48}, {1, 33, 2048}, {1, 20, 4096},
                                      {1, 9, 8192}, {1, 3, 9008}, {2, 1030, 320}})
      for (bool rms : {false, true})
        for (auto [residual, dropout] : {std::pair{false, false}, {true, false}, {true, true}})
          add_norm_magnitude(cases, t, samples, tokens, n, rms, residual, dropout);
    for (auto [m, k] : {std::pair<int64_t, int64_t>{1, 16}, {7, 48}, {33, 176}, {514, 2048}})
      for (bool bias : {false, true}) {
        add_activation_magnitude(cases, t, Activation::relu, false, bias, m, k);
        add_activation_magnitude(cases, t, Activation::relu, true, bias, m, k);
        add_activation_magnitude(cases, t, Activation::gelu, false, bias, m, k);
      }
    for (auto [heads, size] : {std::pair<int64_t, int64_t>{5, 64}, {4, 100}, {36, 128}, {8, 6}})
      add_rotary_magnitude(cases, t, 21, heads, size);
    for (GateActivation activation : {GateActivation::silu, GateActivation::gelu, GateActivation::gelu_tanh, GateActivation::relu})
      for (auto [rows, inner] : {std::pair<int64_t, int64_t>{1, 16}, {5, 48}, {37, 80}, {9, 5632}, {700, 48}})
        add_gate_magnitude(cases, t, activation, rows, inner);
  }
}

/// Zeros, the smallest and largest numbers, numbers between quantized values, and non-finite numbers.
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
    f.x8 = {x.quantized, x.scale}, f.w8 = {weight.quantized, weight.scale};
    i.dy8 = {dy.quantized, dy.scale}, i.wt8 = {weight.transposed, weight.scale};
    w.dyt8 = {dy.transposed, dy.scale}, w.xt8 = {x.transposed, x.scale};
    c.run([&](Ops& ops, Stream s) {
      for (const Fp8Cast* cast : {&x, &weight, &dy}) ops.cast_fp8(*cast, s);
      ops.linear_forward(f, s);
      ops.linear_backward_input(i, s);
      ops.linear_backward_weight(w, s);
    });
  }});
}

/// A matrix that is stored in parts: its magnitude, quantized values and numbers must equal those of one cast.
/// `shift`: offset of values and quantized values from a multiple of 16, in elements.
inline void add_stored_fp8(Cases& cases, DType t, int64_t n, int64_t shift, double size) {
  cases.push_back({title(t, "stored fp8 ", n, " shifted ", shift, " up to ", size), t, true, [=](OpContext& c) {
    const Tensor x = c.input("x", t, {n + shift}, -size, size * 0.9).part(shift, {n});
    const Tensor largest = c.changing_values("largest", kF32, {0}), larger = c.changing_values("larger", kF32, {size * 8});
    const Tensor own = c.output("own scale", kF32, {1}), own_larger = c.output("own larger scale", kF32, {1});
    // Some numbers lie above the largest code, some below the smallest.
    const Tensor scale = c.values("scale", kF32, {std::exp2(std::round(std::log2(size / 300)))});
    const Tensor quantized = bits(c, "codes", DType::f8e4m3, {n + shift + 16});
    const Fp8Matrix stored{quantized.part(shift, {n}), scale};
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
    const Tensor largest = bits(c, "largest", kF32, {1}), own = bits(c, "own scale", kF32, {1}), quantized = bits(c, "codes", DType::f8e4m3, x.shape);
    const Tensor more = bits(c, "codes beyond", DType::f8e4m3, others.shape), y = bits(c, "y", kF32, x.shape);
    const Tensor f16 = c.output("f16", DType::f16, x.shape);
    c.run([&](Ops& ops, Stream s) {
      ops.fill(largest, 0, s);
      ops.raise_fp8_scale(others, largest, own, s);
      ops.encode_fp8(x, {quantized, of}, s);
      ops.encode_fp8(others, {more, of}, s);
      ops.decode_fp8({quantized, of}, y, s);
      if (std::fabs(scale) < 100) ops.decode_fp8({quantized, of}, f16, s);
      else ops.cast(x, f16, s);
    });
  }});
}

inline void add_fp8_transpose(Cases& cases, DType of, int64_t rows, int64_t cols) {
  cases.push_back({concat("transpose of ", dtype_name(of), " ", rows, "x", cols), kF32, true, [=](OpContext& c) {
    const Tensor bytes = c.input("codes", DType::u8, {rows, cols}, 0, 256), quantized{bytes.data, of, bytes.shape};
    const Tensor transposed = bits(c, "transposed", of, {cols, fp8_columns(rows)});
    c.run([&](Ops& ops, Stream s) { ops.transpose_fp8(quantized, transposed, s); });
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
  add_magnitudes(cases);
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
