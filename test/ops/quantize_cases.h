// Cases of block-wise quantization and of the updates with quantized states or with one state.
#pragma once

#include <cmath>

#include "ops/op_case.h"

namespace blipft::test {

inline constexpr CodeBook kBooks[] = {CodeBook::nf4, CodeBook::int8, CodeBook::dynamic8, CodeBook::dynamic8_unsigned};
inline const char* book_name(CodeBook book) {
  constexpr const char* kNames[] = {"nf4", "int8", "dynamic8", "dynamic8_unsigned"};
  return kNames[static_cast<int>(book)];
}

/// Memory for n quantized numbers. `compared`: it is an output. `doubly`: the scales are quantized too.
inline Quantized make_quantized(OpContext& c, const std::string& name, CodeBook book, int64_t n, bool compared = true,
                                bool doubly = false) {
  const int64_t block = code_block(book), together = doubly ? kScaleBlock : 1;
  const int64_t blocks = (n + block * together - 1) / (block * together) * together;
  const int64_t bytes = blocks * block * code_bits(book) / 8;
  const auto plane = [&](const std::string& part, DType dtype, int64_t count) {
    return compared ? c.output(name + part, dtype, {count}) : c.scratch(name + part, dtype, {count});
  };
  Quantized q{book, plane(".codes", DType::u8, bytes), plane(".scales", doubly ? DType::u8 : kF32, blocks), {}};
  if (doubly) q.outer = plane(".outer", kF32, blocks / kScaleBlock);
  return q;
}

/// Compares quantized and decoded values. `shift`: offset of the values from a multiple of 16 bytes, in elements.
inline void add_quantize(Cases& cases, CodeBook book, DType t, int64_t n, int64_t shift, bool doubly = false) {
  const std::string name = title(t, "quantize ", doubly ? "doubly " : "", book_name(book), " ", n, " shifted ", shift);
  cases.push_back({name, t, true, [=](OpContext& c) {
    // Unsigned books give zeros for numbers below zero.
    const Tensor x = c.input("x", t, {n + shift}, -0.3, 1).part(shift, {n});
    const Quantized q = make_quantized(c, "q", book, n, true, doubly);
    const Tensor f32 = c.output("f32", kF32, {n}), bf16 = c.output("bf16", kBf16, {n});
    const Tensor shifted = c.inout("shifted", t, {n + shift}).part(shift, {n});
    c.run([&](Ops& ops, Stream s) {
      ops.quantize(x, q, s);
      for (const Tensor& y : {f32, bf16, shifted}) ops.dequantize(q, y, s);
    });
  }});
}

/// Blocks of zeros, with a scale too small to divide by, and of the largest numbers; and every code there is.
inline void add_quantize_extremes(Cases& cases, CodeBook book) {
  cases.push_back({concat("quantize extremes ", book_name(book)), kF32, true, [=](OpContext& c) {
    const int64_t block = code_block(book);
    std::vector<double> numbers;
    for (double size : {0.0, 1e-40, 1e-37, 1.6e-36, 3e38})
      for (int64_t i = 0; i < block; ++i) numbers.push_back(size * std::cos(static_cast<double>(i)));
    const Tensor x = c.values("x", kF32, numbers);
    const Quantized q = make_quantized(c, "q", book, x.numel()), all = {
        book, c.input("all codes", DType::u8, {1024}, 0, 256),
        c.input("all scales", kF32, {1024 * 8 / code_bits(book) / block}, 0, 2), {}};
    const Tensor y = c.output("y", kF32, x.shape), z = c.output("z", kF32, {1024 * 8 / code_bits(book)});
    c.run([&](Ops& ops, Stream s) {
      ops.quantize(x, q, s);
      ops.dequantize(q, y, s);
      ops.dequantize(all, z, s);
    });
  }});
}

/// The bound is bf16's whatever the dtypes: backends fuse products and sums differently, and a moment that lies at a
/// midpoint may then get either code of the two beside it, 1.4 % of the block's largest apart.
inline void add_adamw8bit(Cases& cases, DType param, bool master, DType grad, int64_t n, bool stochastic = false) {
  cases.push_back({title(param, "adamw8bit_update", master ? " master" : "", " grad ", dtype_name(grad), " ", n,
                         stochastic ? " stochastic" : ""), kBf16, false, [=](OpContext& c) {
    AdamW8bitUpdate a;
    a.param = c.inout("param", param, {n});
    if (master) a.master = c.inout("master", kF32, {n});
    a.grad = c.input("grad", grad, {n});
    a.m = make_quantized(c, "m", CodeBook::dynamic8, n, false);
    a.v = make_quantized(c, "v", CodeBook::dynamic8_unsigned, n, false);
    a.scalars = c.values("scalars", kF32, {0.05, 0.19, 0.002, 0.7, 1.5, 3, 0, 0});
    if (n != 1001) a.squares = c.output("squares", kF32, {squares_count(n)});
    a.weight_decay = 0.1f;
    a.rounding = {stochastic, 11, 2, 40};
    const Tensor m = c.input("mean", kF32, {n}, -0.1, 0.1), v = c.input("square", kF32, {n}, 0, 0.01);
    const Tensor new_m = c.output("new mean", kF32, {n}), new_v = c.output("new square", kF32, {n});
    c.run([&](Ops& ops, Stream s) {
      ops.quantize(m, a.m, s);
      ops.quantize(v, a.v, s);
      ops.adamw8bit_update(a, s);
      ops.dequantize(a.m, new_m, s);
      ops.dequantize(a.v, new_v, s);
    });
  }});
}

/// Backends may disagree on the sign of a number near zero, so gradient and mean have one sign.
inline void add_lion(Cases& cases, DType param, bool master, DType grad, DType state, int64_t n,
                     int64_t link_bytes = 0) {
  const DType bound = param == kF32 && state == kF32 ? kF32 : kBf16;
  cases.push_back({title(param, "lion_update", master ? " master" : "", " grad ", dtype_name(grad), " state ",
                         dtype_name(state), " ", n, link_bytes ? " over the link" : ""), bound, false,
                   [=](OpContext& c) {
    LionUpdate a;
    a.link_bytes = link_bytes;
    a.param = c.inout("param", param, {n});
    if (master) a.master = c.inout("master", kF32, {n});
    a.grad = c.input("grad", grad, {n}, n % 2 ? -1 : 0.01, n % 2 ? -0.01 : 1);
    a.m = c.inout("m", state, {n}, n % 2 ? -1 : 0, n % 2 ? 0 : 1);
    a.scalars = c.values("scalars", kF32, {0.05, 1, 1, 0.7, 1.5, 1, 0, 0});
    if (n != 1001) a.squares = c.output("squares", kF32, {squares_count(n)});
    a.weight_decay = 0.1f;
    c.run([&](Ops& ops, Stream s) { ops.lion_update(a, s); });
  }});
}

/// Equal bits: the gradient is 0, so that rounding alone is left. Elements begin inside of a block of random bits too.
inline void add_stochastic_rounding(Cases& cases, int64_t n, int64_t first, int64_t link_bytes = 0) {
  cases.push_back({concat("stochastic rounding ", n, " from ", first, link_bytes ? " over the link" : ""), kBf16, true,
                   [=](OpContext& c) {
    const Tensor zeros = c.values("zeros", kBf16, std::vector<double>(static_cast<size_t>(n)));
    const Rounding rounding{true, 0x123456789abcdef, 5, first};
    // lr * wd is a power of two: the decayed parameters are exact in f32 on every backend.
    const Tensor scalars = c.values("scalars", kF32, {0.125, 1, 1, 1, 0, 77, 0, 0});
    SgdUpdate sgd{c.inout("sgd", kBf16, {n}), {}, zeros, {}, scalars, {}, 0, 0.125f, rounding};
    LionUpdate lion{c.inout("lion", kBf16, {n}), {}, zeros, c.inout("m", kF32, {n}, 0, 0), scalars, {}, 0.5f, 0.5f,
                    0.125f, rounding};
    sgd.link_bytes = lion.link_bytes = link_bytes;
    c.run([&](Ops& ops, Stream s) {
      ops.sgd_update(sgd, s);
      ops.lion_update(lion, s);
    });
  }});
}

inline void add_quantize_ops(Cases& cases) {
  for (CodeBook book : kBooks) {
    for (DType t : {kF32, kBf16, DType::f16})
      for (auto [n, shift] : {std::pair<int64_t, int64_t>{1, 0}, {63, 0}, {64, 0}, {65, 0}, {256, 1}, {1000, 3},
                              {40000, 0}, {40001, 8}, {1 << 20, 0}})
        add_quantize(cases, book, t, n, shift);
    add_quantize_extremes(cases, book);
  }
  for (CodeBook book : {CodeBook::nf4, CodeBook::int8})
    for (DType t : {kF32, kBf16})
      for (auto [n, shift] : {std::pair<int64_t, int64_t>{1, 0}, {16383, 3}, {16384, 0}, {16385, 8}, {1 << 20, 0}})
        add_quantize(cases, book, t, n, shift, true);
  for (int64_t n : {1, 255, 1001, 40000, 3000001}) {
    add_adamw8bit(cases, kF32, false, kF32, n);
    add_adamw8bit(cases, kBf16, false, kBf16, n);
    add_adamw8bit(cases, kBf16, true, kF32, n);
    add_adamw8bit(cases, kBf16, true, kBf16, n);
    add_adamw8bit(cases, kBf16, false, kBf16, n, true);
  }
  for (int64_t n : {1, 1001, 40000}) {
    add_lion(cases, kF32, false, kF32, kF32, n);
    add_lion(cases, kBf16, false, kBf16, kBf16, n);
    add_lion(cases, kBf16, true, kF32, kF32, n);
    add_lion(cases, kBf16, true, kF32, kF32, n, 8);
  }
  for (auto [n, first] : {std::pair<int64_t, int64_t>{1, 0}, {1000, 0}, {40000, 64}, {1001, 3}, {5000, 8 + 7}})
    add_stochastic_rounding(cases, n, first);
  add_stochastic_rounding(cases, 100001, 64, 8);
}

}  // namespace blipft::test
