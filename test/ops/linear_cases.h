// Cases of the products of linear layers.
#pragma once

#include <cmath>

#include "ops/op_case.h"

namespace blipft::test {

struct Gemm {
  int64_t m, k, n;
  bool only_bf16 = false;  ///< the largest
  /// Large ones run with fewer variants, for time.
  bool large() const { return m * k * n > 100'000'000; }
};

// Token counts and sizes of small models, odd sizes, then BLIP-2's own with few samples.
inline const Gemm kGemms[] = {
    {1, 64, 48},       {1, 4096, 136},     {2, 2568, 70},     {2, 24, 33},
    {1, 11008, 37},    {2, 18944, 5},     {1, 33000, 9},     {2, 896, 4700},
    {7, 88, 24},        {32, 64, 64},      {33, 100, 72},           {82, 80, 320},
    {257, 176, 528},   {300, 128, 136},    {1, 1, 1},         {5, 13, 7},              {33, 27, 65},
    {514, 1408, 4224}, {514, 1408, 6144},  {514, 6144, 1408}, {514, 588, 1408},        {64, 768, 3072},
    {48, 2568, 1290},  {17, 1032, 520},    {3, 4104, 77},          {60, 200, 5000},   {64, 10240, 2560, true},
    {514, 1408, 768},  {164, 2560, 2560},  {64, 768, 2560},   {164, 2560, 10240, true}};

inline double weight_range(int64_t k) { return std::sqrt(3.0 / static_cast<double>(k)); }  // outputs of variance 1/3

enum class Extra { none, bias, residual, bias_residual };

inline void add_linear_forward(Cases& cases, DType t, const Gemm& g) {
  const auto add = [&](Activation activation, Extra extra) {
    cases.push_back({title(t, "linear_forward ", g.m, "x", g.k, "x", g.n, " activation ", int(activation), " extra ",
                           int(extra)), t, false, [=](OpContext& c) {
      LinearForward a;
      a.x = c.input("x", t, {g.m, g.k});
      a.w = c.input("w", t, {g.n, g.k}, -3 * weight_range(g.k), 3 * weight_range(g.k));
      if (extra == Extra::bias || extra == Extra::bias_residual) a.bias = c.input("bias", t, {g.n});
      if (extra == Extra::residual || extra == Extra::bias_residual) a.residual = c.input("residual", t, {g.m, g.n});
      a.activation = activation;
      if (is_gelu(activation)) a.pre_activation = c.output("pre_activation", t, {g.m, g.n});
      a.y = c.output("y", t, {g.m, g.n});
      c.run([&](Ops& ops, Stream s) { ops.linear_forward(a, s); });
    }});
  };
  add(Activation::none, Extra::bias);
  add(Activation::none, Extra::bias_residual);
  add(Activation::relu, Extra::bias);
  add(Activation::gelu, Extra::bias);
  if (g.large()) return;
  add(Activation::none, Extra::none);
  add(Activation::none, Extra::residual);
  add(Activation::relu, Extra::none);
  add(Activation::gelu, Extra::none);
  add(Activation::gelu_tanh, Extra::bias);
}

inline void add_linear_backward(Cases& cases, DType t, const Gemm& g) {
  struct Input {
    Activation activation;
    bool add, in_place, dbias, accumulate;
    DType gradient;
  };
  int index = 0;
  for (const Input& v : {Input{Activation::none, true, true, false, false, t},
                         Input{Activation::relu, false, false, true, false, t},
                         Input{Activation::gelu, false, false, true, true, kF32},
                         Input{Activation::none, false, false, false, false, t},
                         Input{Activation::none, true, false, true, false, kF32},
                         Input{Activation::relu, false, false, false, false, t},
                         Input{Activation::gelu, false, false, false, false, t},
                         Input{Activation::gelu_tanh, false, false, true, false, t},
                         Input{Activation::gelu_tanh, false, false, false, false, t}}) {
    if (g.large() && ++index > 3) break;
    cases.push_back({title(t, "linear_backward_input ", g.m, "x", g.k, "x", g.n, " activation ", int(v.activation),
                           " add ", v.add, v.in_place, " dbias ", v.dbias, v.accumulate, dtype_name(v.gradient)),
                     t, false, [=](OpContext& c) {
      LinearBackwardInput a;
      a.dy = c.input("dy", t, {g.m, g.n});
      a.w = c.input("w", t, {g.n, g.k}, -weight_range(g.n), weight_range(g.n));
      a.activation = v.activation;
      a.dx = v.in_place ? c.inout("dx", t, {g.m, g.k}) : c.output("dx", t, {g.m, g.k});
      if (v.add) a.add = v.in_place ? a.dx : c.input("add", t, {g.m, g.k});
      if (v.activation != Activation::none)
        a.saved = c.input("saved", t, {g.m, g.k}, -4, 4);
      if (is_gelu(v.activation) && v.dbias) a.activated = c.output("activated", t, {g.m, g.k});
      if (v.dbias) a.dbias = c.inout("dbias", v.gradient, {g.k});
      a.accumulate_dbias = v.accumulate;
      c.run([&](Ops& ops, Stream s) { ops.linear_backward_input(a, s); });
    }});
  }

  for (bool dbias : {true, false}) {
    if (g.large() && !dbias) break;
    cases.push_back({title(t, "linear_backward_input ", g.m, "x", g.k, "x", g.n, " signs, dbias ", dbias), t, false,
                     [=](OpContext& c) {
      LinearBackwardInput a;
      a.dy = c.input("dy", t, {g.m, g.n});
      a.w = c.input("w", t, {g.n, g.k}, -weight_range(g.n), weight_range(g.n));
      a.activation = Activation::relu;
      a.saved = c.input("saved", DType::u8, {(g.m * g.k + 7) / 8}, 0, 256);
      a.dx = c.output("dx", t, {g.m, g.k});
      if (dbias) a.dbias = c.output("dbias", kF32, {g.k});
      c.run([&](Ops& ops, Stream s) { ops.linear_backward_input(a, s); });
    }});
  }

  struct Weight {
    DType gradient;
    bool dbias, accumulate;
  };
  index = 0;
  for (const Weight& v : {Weight{t, true, false}, Weight{kF32, true, true}, Weight{t, false, true},
                          Weight{kF32, false, false}, Weight{kBf16, true, true}}) {
    if (t == kF32 && v.gradient == kBf16) continue;
    if (g.large() && ++index > 2) break;
    cases.push_back({title(t, "linear_backward_weight ", g.m, "x", g.k, "x", g.n, " dw ", dtype_name(v.gradient),
                           " dbias ", v.dbias, " accumulate ", v.accumulate),
                     v.gradient == kBf16 ? kBf16 : t, false, [=](OpContext& c) {
      LinearBackwardWeight a;
      a.dy = c.input("dy", t, {g.m, g.n});
      a.x = c.input("x", t, {g.m, g.k});
      a.dw = v.accumulate ? c.inout("dw", v.gradient, {g.n, g.k}) : c.output("dw", v.gradient, {g.n, g.k});
      if (v.dbias) a.dbias = v.accumulate ? c.inout("dbias", v.gradient, {g.n}) : c.output("dbias", v.gradient, {g.n});
      a.accumulate = v.accumulate;
      c.run([&](Ops& ops, Stream s) { ops.linear_backward_weight(a, s); });
    }});
  }
}

/// Columns of wider matrices, as one layer of several that are packed in one weight has them. They begin `first`
/// columns into a row and `behind` follow: multiples of 8 keep 16-byte rows, other numbers do not. Columns next to
/// them must stay as it is: outputs are compared with all that is in the row.
inline void add_strided_linear(Cases& cases, DType t, const Gemm& g, int64_t first, int64_t behind) {
  const auto named = [&](const char* op, const auto&... variant) {
    return title(t, op, " ", g.m, "x", g.k, "x", g.n, " columns from ", first, ", ", behind, " behind", variant...);
  };
  const auto wide = [=](int64_t cols) { return Shape{g.m, first + cols + behind}; };
  const auto input = [=](OpContext& c, const char* name, int64_t cols) {
    return MatrixView(c.input(name, t, wide(cols))).columns(first, cols);
  };
  const auto inout = [=](OpContext& c, const char* name, int64_t cols) {
    return MatrixView(c.inout(name, t, wide(cols))).columns(first, cols);
  };
  struct Forward {
    bool bias, relu, residual, in_place;
  };
  for (const Forward& v : {Forward{false, false, false, false}, Forward{true, false, true, true},
                           Forward{true, false, true, false}, Forward{true, true, false, false},
                           Forward{false, true, false, false}})
    cases.push_back({named("linear_forward", " bias ", v.bias, " relu ", v.relu, " residual ", v.residual, v.in_place),
                     t, false, [=](OpContext& c) {
      LinearForward a;
      a.x = input(c, "x", g.k);
      a.w = c.input("w", t, {g.n, g.k}, -3 * weight_range(g.k), 3 * weight_range(g.k));
      if (v.bias) a.bias = c.input("bias", t, {g.n});
      a.activation = v.relu ? Activation::relu : Activation::none;
      a.y = inout(c, "y", g.n);
      a.scale = v.in_place ? 0.375f : 1;
      // In place, columns of a wide one, and a contiguous one beside a wide output.
      if (v.residual) a.residual = v.in_place ? a.y : MatrixView(c.input("residual", t, {g.m, g.n}));
      c.run([&](Ops& ops, Stream s) { ops.linear_forward(a, s); });
    }});
  cases.push_back({named("linear_forward gelu"), t, false, [=](OpContext& c) {
    LinearForward a;
    a.x = input(c, "x", g.k);
    a.w = c.input("w", t, {g.n, g.k}, -3 * weight_range(g.k), 3 * weight_range(g.k));
    a.activation = Activation::gelu;
    a.pre_activation = c.output("pre_activation", t, {g.m, g.n});
    a.y = c.output("y", t, {g.m, g.n});
    c.run([&](Ops& ops, Stream s) { ops.linear_forward(a, s); });
  }});
  for (int add : {0, 1, 2})  // none, dx itself, columns of another
    cases.push_back({named("linear_backward_input", " add ", add), t, false, [=](OpContext& c) {
      LinearBackwardInput a;
      a.dy = input(c, "dy", g.n);
      a.w = c.input("w", t, {g.n, g.k}, -weight_range(g.n), weight_range(g.n));
      a.dx = inout(c, "dx", g.k);
      if (add > 0) a.add = add == 1 ? a.dx : input(c, "add", g.k);
      a.scale = add == 2 ? -1.5f : 1;
      c.run([&](Ops& ops, Stream s) { ops.linear_backward_input(a, s); });
    }});
  for (Activation activation : {Activation::relu, Activation::gelu})  // the addend goes through the derivative too
    cases.push_back({named("linear_backward_input", " activation ", int(activation)), t, false, [=](OpContext& c) {
      LinearBackwardInput a;
      a.dy = input(c, "dy", g.n);
      a.w = c.input("w", t, {g.n, g.k}, -weight_range(g.n), weight_range(g.n));
      a.activation = activation;
      a.saved = c.input("saved", t, {g.m, g.k}, -4, 4);
      a.dx = c.inout("dx", t, {g.m, g.k});
      a.add = activation == Activation::relu ? a.dx : input(c, "add", g.k);
      a.dbias = c.output("dbias", kF32, {g.k});
      c.run([&](Ops& ops, Stream s) { ops.linear_backward_input(a, s); });
    }});
  for (DType gradient : {t, kF32})
    cases.push_back({named("linear_backward_weight dw ", dtype_name(gradient)), t, false, [=](OpContext& c) {
      LinearBackwardWeight a;
      a.dy = input(c, "dy", g.n);
      a.x = gradient == kF32 ? input(c, "x", g.k) : MatrixView(c.input("x", t, {g.m, g.k}));
      a.accumulate = gradient == kF32;
      a.dw = c.inout("dw", gradient, {g.n, g.k});
      a.dbias = c.inout("dbias", gradient, {g.n});
      c.run([&](Ops& ops, Stream s) { ops.linear_backward_weight(a, s); });
    }});
}

}  // namespace blipft::test
