// The cases of layer norm and RMSNorm.
#pragma once

#include <tuple>

#include "ops/op_case.h"

namespace blipft::test {

/// With `packed`, samples of uneven rows, `tokens` at most: what dropout alone takes part in.
inline void add_norm(Cases& cases, DType t, int64_t samples, int64_t tokens, int64_t n, bool packed) {
  const auto packed_rows = uneven_rows(samples, 1, tokens);
  const int64_t m = packed ? total_rows(packed_rows) : samples * tokens;
  struct Variant {
    bool residual, dropout;
    bool add, in_place, parameters, accumulate;
    DType gradient;
    int bias;                              // dbias: 0 none, 1 written, 2 added to
    bool output = false;                   // backward makes the norm's output again
  };
  for (const Variant& v : {Variant{false, false, false, false, true, false, t, 0},
                           Variant{true, false, true, false, true, true, kF32, 2, true},
                           Variant{true, true, true, true, true, false, kF32, 0, true},
                           Variant{true, true, true, false, true, true, t, 2, true},
                           Variant{true, true, true, false, true, true, t, 1},
                           Variant{true, false, true, true, true, false, t, 1},
                           Variant{true, false, true, true, false, false, kF32, 1, true},
                           Variant{false, false, true, false, true, false, t, 1},
                           Variant{false, true, false, true, false, false, t, 1},
                           Variant{true, true, true, false, false, false, t, 0, true},
                           Variant{true, false, true, true, false, false, t, 0, true},
                           Variant{true, false, true, false, false, false, t, 1, true}}) {
    if (packed && !v.dropout) continue;
    cases.push_back({title(t, "norm ", samples, "x", tokens, "x", n, " residual ", v.residual, " dropout ", v.dropout,
                           " parameters ", v.parameters, " bias ", v.bias, v.output ? " output" : "",
                           packed ? " packed" : ""), t, false, [=](OpContext& c) {
      NormForward f;
      f.x = c.input("x", t, {m, n}, -1, 2);
      if (v.residual) f.residual = c.input("residual", t, {m, n}, -2, 1);
      if (v.dropout) f.dropout = make_dropout(c, 0.3f, samples, tokens);
      if (packed) f.dropout.packing = make_packing(c, packed_rows, tokens);
      if (v.residual || v.dropout) f.sum = c.output("sum", t, {m, n});
      f.gamma = c.input("gamma", t, {n}, 0.5, 1.5);
      f.beta = c.input("beta", t, {n});
      f.y = c.output("y", t, {m, n});
      f.mean = c.output("mean", kF32, {m});
      f.rstd = c.output("rstd", kF32, {m});
      NormBackward b;
      b.x = f.sum ? f.sum : f.x;
      b.mean = f.mean, b.rstd = f.rstd, b.gamma = f.gamma;
      if (v.output) b.beta = f.beta, b.y = c.output("y again", t, {m, n});
      b.dy = v.in_place ? c.inout("dy", t, {m, n}) : c.input("dy", t, {m, n});
      if (v.in_place) b.dx = b.dy;
      else if (v.add) b.dx = b.add = c.inout("add", t, {m, n});
      else b.dx = c.output("dx", t, {m, n});
      if (v.add && v.in_place) b.add = c.input("add", t, {m, n});
      if (v.parameters) {
        b.dgamma = v.accumulate ? c.inout("dgamma", v.gradient, {n}) : c.output("dgamma", v.gradient, {n});
        b.dbeta = v.accumulate ? c.inout("dbeta", v.gradient, {n}) : c.output("dbeta", v.gradient, {n});
      }
      b.accumulate = v.accumulate;
      b.accumulate_dbias = v.bias == 2;
      if (v.bias > 0) b.dbias = v.bias == 2 ? c.inout("dbias", v.gradient, {n}) : c.output("dbias", v.gradient, {n});
      if (v.dropout) b.dropout = f.dropout, b.dropped = c.output("dropped", t, {m, n});
      c.run([&](Ops& ops, Stream s) {
        ops.norm_forward(f, s);
        ops.norm_backward(b, s);
      });
    }});
  }
}

/// RMSNorm with everything that its forward and backward may be asked for.
inline void add_rms_norm(Cases& cases, DType t, int64_t samples, int64_t tokens, int64_t n) {
  const int64_t m = samples * tokens;
  struct Variant {
    bool residual, dropout, add, parameters, accumulate, output;
    DType gradient;
    bool bias = false;
    float scale = 1;                       // of what dropout keeps
  };
  for (const Variant& v : {Variant{false, false, false, true, false, true, t}, {true, false, true, true, true, true, kF32},
                           {false, false, true, false, false, false, t}, {true, false, true, true, false, false, t},
                           {false, false, true, false, false, true, t}, {true, true, true, true, true, true, kF32, true},
                           {false, false, false, true, false, true, kF32, true}, {true, true, true, false, false, true, t},
                           {true, true, true, true, false, true, kF32}, {false, true, false, true, true, false, t},
                           {true, true, true, false, false, false, t}, {true, true, true, true, true, true, kF32, true, 0.22f},
                           {true, false, true, true, false, true, kF32, true, 0.22f}, {true, false, false, false, false, true, t, false, 3}})
    cases.push_back({title(t, "rms norm ", samples, "x", tokens, "x", n, " residual ", v.residual, " dropout ", v.dropout,
                           " add ", v.add, " parameters ", v.parameters, v.output ? " output" : "",
                           v.bias ? " bias" : "", " scale ", v.scale), t, false, [=](OpContext& c) {
      NormForward f;
      f.x = c.input("x", t, {m, n}, -1, 2);
      if (v.residual) f.residual = c.input("residual", t, {m, n}, -2, 1);
      if (v.dropout) f.dropout = make_dropout(c, 0.3f, samples, tokens);
      f.dropout.scale = v.scale;
      if (v.residual || f.dropout) f.sum = c.output("sum", t, {m, n});
      f.gamma = c.input("gamma", t, {n}, 0.5, 1.5);
      f.y = c.output("y", t, {m, n});
      f.rstd = c.output("rstd", kF32, {m});
      NormBackward b;
      b.x = f.sum ? f.sum : f.x;
      b.rstd = f.rstd, b.gamma = f.gamma;
      if (v.output) b.y = c.output("y again", t, {m, n});
      b.dy = v.add ? c.inout("dy", t, {m, n}) : c.input("dy", t, {m, n});
      b.dx = v.add ? b.dy : c.output("dx", t, {m, n});
      if (v.add) b.add = c.input("add", t, {m, n});
      if (v.parameters)
        b.dgamma = v.accumulate ? c.inout("dgamma", v.gradient, {n}) : c.output("dgamma", v.gradient, {n});
      b.accumulate = v.accumulate;
      if (v.bias) b.dbias = c.output("dbias", v.gradient, {n});
      if (f.dropout) b.dropout = f.dropout, b.dropped = c.output("dropped", t, {m, n});
      c.run([&](Ops& ops, Stream s) {
        ops.norm_forward(f, s);
        ops.norm_backward(b, s);
      });
    }});
}

}  // namespace blipft::test
