// The cases of what LLaMA's layers need beside products, norms and attention.
#pragma once

#include <tuple>

#include "ops/norm_cases.h"

namespace blipft::test {

/// Heads of a matrix that is `behind` columns wider: the values of a packed q, k, v.
inline void add_rotary(Cases& cases, DType t, int64_t rows, int64_t heads, int64_t head_size, int64_t behind) {
  for (bool inverse : {false, true})
    cases.push_back({title(t, "rotary ", rows, "x", heads, "x", head_size, " of ", behind, inverse ? " inverse" : ""), t,
                     false, [=](OpContext& c) {
      const int64_t width = heads * head_size;
      const Tensor x = c.inout("x", t, {rows, width + behind});
      Rotary a;
      a.x = MatrixView(x).columns(0, width);
      a.head_size = head_size;
      std::vector<double> positions;
      for (int64_t r = 0; r < rows; ++r) positions.push_back(static_cast<double>(r * 37 % 2048));
      a.positions = c.values("positions", DType::i32, positions);
      for (int64_t i = 0; i < head_size / 2; ++i)
        a.frequencies[i] = std::pow(10000.0f, -2.0f * static_cast<float>(i) / static_cast<float>(head_size));
      a.inverse = inverse;
      c.run([&](Ops& ops, Stream s) { ops.rotary(a, s); });
    }});
}

/// Positions on three axes, whose pairs take turns.
inline void add_axes_rotary(Cases& cases, DType t, int64_t rows, int64_t heads, int64_t head_size) {
  for (bool inverse : {false, true})
    cases.push_back({title(t, "rotary on three axes ", rows, "x", heads, "x", head_size, inverse ? " inverse" : ""), t, false,
                     [=](OpContext& c) {
      Rotary a{.x = c.inout("x", t, {rows, heads * head_size}), .head_size = head_size, .inverse = inverse};
      a.positions = c.input("positions", DType::i32, {3, rows}, 0, 2048);
      for (int64_t i = 0; i < head_size / 2; ++i) {
        a.frequencies[i] = std::pow(10000.0f, -2.0f * static_cast<float>(i) / static_cast<float>(head_size));
        a.axis[i] = static_cast<uint8_t>(i % 3);
      }
      c.run([&](Ops& ops, Stream s) { ops.rotary(a, s); });
    }});
}

inline void add_swiglu(Cases& cases, DType t, int64_t rows, int64_t inner) {
  cases.push_back({title(t, "swiglu ", rows, "x", inner), t, false, [=](OpContext& c) {
    Swiglu a, in_place;
    a.gate_up = c.input("gate_up", t, {rows, 2 * inner}, -6, 6);
    a.y = c.output("y", t, {rows, inner});
    Swiglu b = a;
    b.y = c.output("y again", t, {rows, inner});
    b.dy = c.input("dy", t, {rows, inner});
    b.dgate_up = c.output("dgate_up", t, {rows, 2 * inner});
    in_place.gate_up = in_place.dgate_up = c.inout("both", t, {rows, 2 * inner}, -6, 6);
    in_place.dy = b.dy;
    c.run([&](Ops& ops, Stream s) {
      ops.swiglu_forward(a, s);
      ops.swiglu_backward(b, s);
      ops.swiglu_backward(in_place, s);
    });
  }});
}

inline void add_llama_ops(Cases& cases, DType t) {
  for (auto [samples, tokens, n] : {std::tuple<int64_t, int64_t, int64_t>{1, 1, 2}, {1, 7, 33}, {3, 11, 64}, {2, 41, 100},
                                    {1, 33, 2048}, {1, 20, 3200}, {2, 1030, 328}, {2, 1030, 2048}, {1, 20, 4096},
                                    {1, 9, 5120}, {1, 9, 8192}, {1, 3, 9000}})
    add_rms_norm(cases, t, samples, tokens, n);
  for (auto [heads, size] : {std::pair<int64_t, int64_t>{1, 2}, {3, 22}, {5, 64}, {36, 64}, {4, 100}, {3, 128}, {2, 6}})
    for (int64_t behind : {0, 8, 3}) add_rotary(cases, t, 21, heads, size, behind);
  for (auto [heads, size] : {std::pair<int64_t, int64_t>{1, 6}, {5, 22}, {12, 128}}) add_axes_rotary(cases, t, 37, heads, size);
  for (auto [rows, inner] : {std::pair<int64_t, int64_t>{1, 1}, {5, 33}, {37, 88}, {9, 5632}, {3, 11008}, {700, 48}})
    add_swiglu(cases, t, rows, inner);
}

}  // namespace blipft::test
