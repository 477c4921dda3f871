// The cases of what today's families of text models ask for beside LLaMA's.
#pragma once

#include <tuple>

#include "blipft/head_norm.h"
#include "blipft/relative_bias.h"
#include "ops/attention_cases.h"

namespace blipft::test {

/// Groups of `size` columns in a matrix that is `behind` columns wider.
inline void add_head_norm(Cases& cases, DType t, int64_t rows, int64_t groups, int64_t size, int64_t behind) {
  for (const RmsForm& form : {RmsForm{0, false}, RmsForm{1, true}})
    for (bool in_place : {false, true})
      cases.push_back({title(t, "head norm ", rows, "x", groups, "x", size, " of ", behind,
          form.offset > 0 ? " gemma" : "",
                             in_place ? " in place" : ""), t, false, [=](OpContext& c) {
        const int64_t n = groups * size;
        HeadNormForward f{.x = MatrixView(c.input("x", t, {rows, n + behind}, -1, 2)).columns(0, n), .size = size,
                          .gamma = c.input("gamma", t, {size}, 0.5, 1.5), .rms = form,
                          .y = MatrixView(c.inout("y", t, {rows, n + behind})).columns(0, n),
                          .rstd = c.output("rstd", kF32, {rows, groups})};
        const DType gradient = in_place ? t : kF32;
        HeadNormBackward b{.dy = {}, .x = f.x, .size = size, .gamma = f.gamma, .rms = form, .rstd = f.rstd,
                           .dgamma = in_place ? c.inout("dgamma", gradient, {size})
                               : c.output("dgamma", gradient, {size}),
                           .accumulate = in_place};
        const Tensor dy = in_place ? c.inout("dy", t, {rows, n + behind}) : c.input("dy", t, {rows, n + behind});
        b.dy = MatrixView(dy).columns(0, n);
        b.dx = in_place ? b.dy : MatrixView(c.inout("dx", t, {rows, n + behind})).columns(0, n);
        HeadNormBackward frozen = b;
        frozen.dgamma = {}, frozen.accumulate = false, frozen.dx = MatrixView(c.output("dx alone", t, {rows, n}));
        c.run([&](Ops& ops, Stream s) {
          ops.head_norm_forward(f, s);
          ops.head_norm_backward(frozen, s);
          ops.head_norm_backward(b, s);
        });
      }});
}

/// Norms of heads that positions then turn, heads of `head_size`; backward in place. Without `parameters` gamma is frozen.
inline void add_turned_head_norm(Cases& cases, DType t, int64_t rows, int64_t groups, int64_t size, int64_t head_size, bool parameters,
                                 int64_t axes = 1) {
  for (const RmsForm& form : {RmsForm{0, false}, RmsForm{1, true}})
    cases.push_back({title(t, "head norm ", rows, "x", groups, "x", size, " turned by ", head_size, axes > 1 ? " on three axes" : "", form.offset > 0 ? " gemma" : "",
                           parameters ? " parameters" : ""), t, false, [=](OpContext& c) {
      const int64_t n = groups * size, behind = 16;
      const auto view = [&](const Tensor& of) { return MatrixView(of).columns(8, n); };
      HeadNormForward f{.x = view(c.input("x", t, {rows, n + behind}, -1, 2)), .size = size,
                        .gamma = c.input("gamma", t, {size}, 0.5, 1.5), .rms = form,
                        .y = view(c.inout("y", t, {rows, n + behind})), .rstd = c.output("rstd", kF32, {rows, groups}), .rotary = {}};
      std::vector<double> positions;
      for (int64_t r = 0; r < axes * rows; ++r) positions.push_back(static_cast<double>(r * 37 % 2048));
      Rotary turn{.x = f.y, .head_size = head_size, .magnitude = 1.19f, .positions = c.values("positions", DType::i32, positions)};
      for (int64_t i = 0; i < head_size / 2; ++i)
        turn.frequencies[i] = std::pow(10000.0f, -2.0f * static_cast<float>(i) / static_cast<float>(head_size)),
        turn.axis[i] = static_cast<uint8_t>(i % axes);
      f.rotary = turn;
      const MatrixView dy = view(c.inout("dy", t, {rows, n + behind}));
      HeadNormBackward b{.dy = dy, .x = f.x, .size = size, .gamma = f.gamma, .rms = form, .rstd = f.rstd,
                         .dgamma = parameters ? c.output("dgamma", kF32, {size}) : Tensor{}, .dx = dy, .rotary = turn};
      b.rotary->x = dy, b.rotary->inverse = true;
      c.run([&](Ops& ops, Stream s) {
        ops.head_norm_forward(f, s);
        ops.head_norm_backward(b, s);
      });
    }});
}

/// RMSNorm in the forms that LLaMA has not.
inline void add_rms_forms(Cases& cases, DType t, int64_t rows, int64_t n) {
  for (const RmsForm& form : {RmsForm{1, true}, RmsForm{0, true}})
    for (bool parameters : {false, true})
      cases.push_back({title(t, "rms norm ", rows, "x", n, form.offset > 0 ? " gemma" : " rounded once",
                             parameters ? " parameters" : ""), t, false, [=](OpContext& c) {
        NormForward f;
        f.x = c.input("x", t, {rows, n}, -1, 2), f.residual = c.input("residual", t, {rows, n}, -2, 1);
        f.sum = c.output("sum", t, {rows, n}), f.gamma = c.input("gamma", t, {n}, -0.5, 1.5), f.rms = form;
        f.y = c.output("y", t, {rows, n}), f.rstd = c.output("rstd", kF32, {rows});
        NormForward alone = f;
        alone.residual = alone.sum = {}, alone.y = c.output("y alone", t, {rows, n});
        alone.rstd = c.output("rstd alone", kF32, {rows});
        NormBackward b;
        b.x = f.sum, b.rstd = f.rstd, b.gamma = f.gamma, b.rms = form, b.dy = c.input("dy", t, {rows, n});
        b.add = c.input("add", t, {rows, n}), b.dx = c.output("dx", t, {rows, n}),
            b.y = c.output("y again", t, {rows, n});
        if (parameters) b.dgamma = c.output("dgamma", kF32, {n});
        c.run([&](Ops& ops, Stream s) {
          ops.norm_forward(f, s);
          ops.norm_forward(alone, s);
          ops.norm_backward(b, s);
        });
      }});
}

inline void add_gates(Cases& cases, DType t, int64_t rows, int64_t inner) {
  for (auto [activation, name] : {std::pair{GateActivation::gelu, "gelu"},
      std::pair{GateActivation::gelu_tanh, "gelu_tanh"},
                                  std::pair{GateActivation::relu, "relu"}})
    cases.push_back({title(t, "gate ", name, " ", rows, "x", inner), t, false, [=, of = activation](OpContext& c) {
      Swiglu a{.activation = of, .gate_up = c.input("gate_up", t, {rows, 2 * inner}, -6, 6),
               .y = c.output("y", t, {rows, inner})};
      Swiglu b = a;
      b.y = c.output("y again", t, {rows, inner}), b.dy = c.input("dy", t, {rows, inner});
      b.dgate_up = c.output("dgate_up", t, {rows, 2 * inner});
      c.run([&](Ops& ops, Stream s) {
        ops.swiglu_forward(a, s);
        ops.swiglu_backward(b, s);
      });
    }});
}

inline void add_partial_rotary(Cases& cases, DType t, int64_t heads, int64_t head_size, int64_t rotated) {
  for (bool inverse : {false, true})
    cases.push_back({title(t, "rotary of ", rotated, " of ", head_size, inverse ? " inverse" : ""), t, false,
                     [=](OpContext& c) {
      constexpr int64_t kRows = 21, kBehind = 8;
      Rotary a{.x = MatrixView(c.inout("x", t, {kRows, heads * head_size + kBehind})).columns(0, heads * head_size),
               .head_size = head_size, .rotated = rotated, .magnitude = 1.19f};
      std::vector<double> positions;
      for (int64_t r = 0; r < kRows; ++r) positions.push_back(static_cast<double>(r * 37 % 2048));
      a.positions = c.values("positions", DType::i32, positions);
      for (int64_t i = 0; i < rotated / 2; ++i)
        a.frequencies[i] = std::pow(10000.0f, -2.0f * static_cast<float>(i) / static_cast<float>(rotated));
      a.inverse = inverse;
      c.run([&](Ops& ops, Stream s) { ops.rotary(a, s); });
    }});
}

/// Windows, caps and heads of up to 256, dense and packed, with groups: which kernel takes what is attention.cu's
/// affair.
inline void add_modern_attentions(Cases& cases, DType t) {
  int rotate = 0;
  const auto add = [&](int64_t d, int64_t tokens, int64_t window, float cap, int64_t kv_heads, bool packed) {
    Attend v{3, 4, d, tokens, tokens, true};
    v.lengths = rotate % 3 == 0, v.bias = rotate % 5 == 1 ? 1 : 0, v.packed = packed, v.kv_heads = kv_heads;
    v.window = window, v.cap = cap;
    ++rotate;
    add_attention(cases, t, v);
  };
  for (int64_t d : {6, 64, 88, 96, 128, 160, 256})
    for (int64_t tokens : {7, 33, 129, 300})
      for (bool packed : {false, true}) {
        add(d, tokens, 0, d % 3 ? 0 : 20.0f, 2, packed);
        add(d, tokens, std::max<int64_t>(1, tokens / 3), 0, packed ? 4 : 1, packed);
        if (tokens > 40) add(d, tokens, 1 + tokens % 40, 2.5f, 2, packed);
      }
  for (int64_t window : {1, 31, 32, 33, 63, 64, 65, 128, 299, 300, 5000})
    for (int64_t d : {64, 128}) add(d, 300, window, 0, 2, window % 2 == 1);
  Attend dropped{2, 4, 64, 70, 70, true, false, false, 0.25f};
  dropped.window = 20;
  add_attention(cases, t, dropped);
  dropped.window = 0, dropped.cap = 3;
  add_attention(cases, t, dropped);
  Attend cross{2, 4, 64, 40, 90};
  cross.cap = 3;
  add_attention(cases, t, cross);
}

/// Rows of pictures that see each other in both directions: shorter and longer than tiles and windows.
inline void add_picture_attentions(Cases& cases, DType t) {
  int rotate = 0;
  for (int64_t d : {6, 64, 72, 128, 200, 256})
    for (int64_t tokens : {1, 33, 129, 300})
      for (int64_t window : {int64_t{0}, 1 + tokens / 3}) {
        Attend v{3, 4, d, tokens, tokens, true};
        v.pictures = std::vector<int64_t>{5, 31, 64, 256}[static_cast<size_t>(rotate % 4)], v.window = window;
        v.lengths = rotate % 3 == 0, v.bias = rotate % 5 == 1 ? 2 : 0, v.packed = rotate / 2 % 2 == 0;
        v.kv_heads = rotate % 5 < 2 ? 0 : 2, v.cap = rotate % 7 == 3 ? 3.0f : 0.0f, v.dropout = rotate % 7 == 5 ? 0.25f : 0.0f;
        ++rotate;
        add_attention(cases, t, v);
      }
}

/// Relative positions, keys that are packed by themselves, and dropout over packed samples.
inline void add_t5_attentions(Cases& cases, DType t) {
  int rotate = 0;
  for (int64_t d : {6, 64, 100, 160})
    for (int64_t tokens : {1, 7, 33, 97, 300})
      for (bool causal : {false, true})
        for (bool packed : {false, true}) {
          Attend v{3, 4, d, tokens, tokens, causal};
          v.lengths = rotate % 3 == 0, v.packed = packed, v.kv_heads = rotate % 4 == 1 ? 2 : 0;
          v.dropout = rotate % 3 == 1 ? 0.25f : 0.0f, v.bias = rotate % 5 == 1 ? 2 : 0;
          v.behind = rotate % 7 == 0 ? 0 : rotate % 2 ? 11 : 113, v.ahead = causal ? 0 : v.behind;
          ++rotate;
          add_attention(cases, t, v);
        }
  for (int64_t d : {6, 64, 128, 256})
    for (const auto& [queries, keys] : {std::pair<std::vector<int64_t>, std::vector<int64_t>>{{1, 5, 9}, {33, 1, 70}},
                                        {{40, 3, 1, 64}, {2, 150, 31, 1}}, {{7, 7}, {7, 7}}, {{100, 0, 20}, {30, 4, 0}}})
      for (float dropout : {0.0f, 0.1f}) {
        Attend v{static_cast<int64_t>(queries.size()), 3, d, *std::max_element(queries.begin(), queries.end()),
                 *std::max_element(keys.begin(), keys.end())};
        v.packed = true, v.rows = queries, v.key_rows = keys, v.dropout = dropout, v.lengths = d == 64;
        v.texts = d != 128;
        add_attention(cases, t, v);
      }
  for (int64_t d : {64, 88, 128})        // dropout over packed samples alone
    for (int64_t tokens : {33, 82, 300}) {
      Attend v{3, 2, d, tokens, tokens, d == 64, true, false, 0.25f};
      v.packed = true;
      add_attention(cases, t, v);
    }
}

/// Shapes of the tensor-core kernels that change scores before the softmax, at and around their tiles: samples of 1
/// row and of none, of multiples of 64 and 128 and one more or less; heads of 129 to 256, aligned to 16 bytes or to 8;
/// windows shorter and longer than texts; tables narrower and wider than texts, and one that fits into no block beside
/// tiles.
inline void add_score_attentions(Cases& cases) {
  int rotate = 0;
  const auto add = [&](Attend v) {
    ++rotate;
    v.lengths = v.lengths || rotate % 4 == 0;
    add_attention(cases, kBf16, v);
  };
  const std::vector<int64_t> rows{64, 128, 1, 65, 127, 0, 129, 1, 193};
  const auto packed = [&](int64_t heads, int64_t kv_heads, int64_t d, bool causal) {
    Attend v{static_cast<int64_t>(rows.size()), heads, d, 193, 193, causal};
    v.packed = true, v.rows = rows, v.kv_heads = kv_heads;
    return v;
  };
  for (int64_t d : {132, 136, 200, 252, 256})
    for (int64_t window : {0, 1, 64, 100, 1000}) {
      Attend v = packed(4, rotate % 2 ? 2 : 1, d, window > 0 || rotate % 3 == 0);
      v.window = window, v.cap = rotate % 2 ? 20.0f : 0.0f;
      add(v);
    }
  for (int64_t tokens : {1, 63, 64, 65, 128, 129, 192, 321})
    for (int64_t window : {0, 33, 128}) {
      Attend v{2, 4, rotate % 3 ? 256 : 140, tokens, tokens, true};
      v.kv_heads = 2, v.window = window, v.cap = rotate % 4 == 1 ? 3.0f : 0.0f, v.empty = rotate % 5 == 0;
      add(v);
    }
  for (const auto& [queries, keys] : {std::pair<int64_t, int64_t>{1, 200}, {200, 9}, {130, 64}, {64, 257}})
    for (int64_t d : {128, 256}) {
      Attend v{2, 4, d, queries, keys};
      v.kv_heads = 1, v.cap = 5, v.lengths = true;
      add(v);
    }
  for (int64_t d : {64, 128, 256})
    for (int64_t behind : {0, 1, 63, 64, 700}) {
      Attend v = packed(3, 0, d, rotate % 2 == 0);
      v.behind = behind, v.ahead = v.causal ? 0 : behind / 2, v.dropout = d < 256 && rotate % 3 == 0 ? 0.1f : 0.0f;
      add(v);
    }
  for (int64_t tokens : {64, 128, 129, 200})  // rows of elements begin with a block of dropout or within one
    for (float dropout : {0.0f, 0.25f}) {
      Attend v{2, 3, 64, tokens, tokens, tokens == 200};
      v.behind = 128, v.ahead = tokens == 200 ? 0 : 128, v.dropout = dropout;
      add(v);
      v.texts = true;
      if (dropout > 0) add(v);
    }
  Attend wide{2, 2, 64, 70, 70};
  wide.behind = 16000, wide.ahead = 383;
  add(wide);
}

inline void add_relative_bias(Cases& cases, DType t, int64_t distances, bool directed, int64_t heads) {
  cases.push_back({title(t, "relative bias ", distances, directed ? " directed " : " ", heads), t, false, [=](OpContext& c) {
    RelativeBias f{.table = {}, .directed = directed ? distances : 0, .distances = distances};
    for (int64_t k = 0; k < distances; ++k) f.first[k] = static_cast<int32_t>(k * k / 3 + k);
    f.scores.behind = f.first[distances - 1] + 2, f.scores.ahead = directed ? f.scores.behind : 0;
    f.table = c.input("table", t, {f.buckets(), heads});
    f.scores.values = c.output("scores", kF32, {heads, f.scores.columns()});
    RelativeBias b = f, added = f;
    b.scores.values = added.scores.values = c.input("gradient", kF32, {heads, f.scores.columns()});
    b.table = c.output("dtable", kF32, {f.buckets(), heads});
    added.table = c.inout("dtable added to", t, {f.buckets(), heads}), added.accumulate = true;
    c.run([&](Ops& ops, Stream s) {
      ops.relative_bias_forward(f, s);
      ops.relative_bias_backward(b, s);
      ops.relative_bias_backward(added, s);
    });
  }});
}

inline void add_scale(Cases& cases, DType t, int64_t rows, int64_t n) {
  cases.push_back({title(t, "scale ", rows, "x", n), t, false, [=](OpContext& c) {
    const Tensor x = c.inout("x", t, {rows, n}, -3, 3);
    c.run([&](Ops& ops, Stream s) { ops.scale(x, 0.176f, s); });
  }});
}

/// Far beyond the cap too, where tanh is 1.
inline void add_cap(Cases& cases, DType t, int64_t rows, int64_t n) {
  cases.push_back({title(t, "cap ", rows, "x", n), t, false, [=](OpContext& c) {
    const Tensor x = c.inout("x", t, {rows, n}, -90, 90);
    c.run([&](Ops& ops, Stream s) { ops.cap(x, 30, s); });
  }});
}

inline void add_scaled_tokens(Cases& cases, DType t, int64_t n) {
  cases.push_back({title(t, "text_embed scaled ", n), t, false, [=](OpContext& c) {
    TextEmbed f{.ids = c.input("ids", DType::i32, {3, 17}, 0, 29),
        .lengths = c.input("lengths", DType::i32, {3}, 1, 18),
                .prefix = c.input("prefix", t, {6, n}), .prefix_rows = 2, .tokens = c.input("tokens", t, {29, n}),
                .padding_id = 1, .token_scale = 59.87f, .x = c.output("x", t, {57, n})};
    TextEmbed b = f;
    b.prefix = c.output("dprefix", t, {6, n}), b.tokens = c.output("dtokens", kF32, {29, n}),
        b.x = c.input("dx", t, {57, n});
    c.run([&](Ops& ops, Stream s) {
      ops.text_embed_forward(f, s);
      ops.text_embed_backward(b, s);
    });
  }});
}

inline void add_capped_loss(Cases& cases, DType t, int64_t rows, int64_t vocabulary) {
  cases.push_back({title(t, "cross_entropy capped ", rows, "x", vocabulary), t, false, [=](OpContext& c) {
    CrossEntropy a{.cap = 6, .logits = c.inout("logits", t, {rows, vocabulary}, -12, 12)};
    std::vector<double> labels;
    for (int64_t r = 0; r < rows; ++r) labels.push_back(r % 4 == 1 ? -100 : static_cast<double>(r * 997 % vocabulary));
    a.labels = c.values("labels", DType::i32, labels);
    a.weight = c.values("weight", kF32, {0.125});
    a.row_loss = c.output("row_loss", kF32, {rows});
    c.run([&](Ops& ops, Stream s) { ops.cross_entropy(a, s); });
  }});
}

inline void add_modern_ops(Cases& cases, DType t) {
  for (auto [rows, groups, size] : {std::tuple<int64_t, int64_t, int64_t>{1, 1, 2}, {7, 3, 22}, {37, 4, 64},
      {21, 5, 128},
                                    {9, 2, 256}, {5, 1, 4096}, {3, 1, 9000}, {1100, 16, 128}, {13, 3, 100}, {11, 3, 88}, {9, 2, 40}})
    for (int64_t behind : {0, 8, 3}) add_head_norm(cases, t, rows, groups, size, behind);
  for (auto [rows, groups, size, head] : {std::tuple<int64_t, int64_t, int64_t, int64_t>{1, 1, 2, 2}, {7, 3, 22, 22}, {37, 8, 64, 64},
      {2051, 5, 128, 128}, {300, 32, 128, 128}, {21, 4, 256, 256}, {13, 3, 80, 80}, {5, 2, 512, 64}})
    for (bool parameters : {false, true}) add_turned_head_norm(cases, t, rows, groups, size, head, parameters);
  add_turned_head_norm(cases, t, 37, 8, 64, 64, false, 3);
  for (auto [rows, n] : {std::pair<int64_t, int64_t>{1, 2}, {7, 33}, {40, 64}, {2100, 328}, {20, 2304}, {20, 4096},
      {9, 9000}})
    add_rms_forms(cases, t, rows, n);
  for (auto [rows, inner] : {std::pair<int64_t, int64_t>{1, 1}, {5, 33}, {37, 88}, {9, 9216}}) add_gates(cases, t,
      rows, inner);
  for (auto [heads, size, part] : {std::tuple<int64_t, int64_t, int64_t>{3, 128, 96}, {5, 22, 6}, {2, 256, 256},
      {4, 64, 32}})
    add_partial_rotary(cases, t, heads, size, part);
  add_modern_attentions(cases, t);
  add_picture_attentions(cases, t);
  add_t5_attentions(cases, t);
  if (t == kBf16) add_score_attentions(cases);
  for (auto [distances, heads] : {std::pair<int64_t, int64_t>{1, 1}, {16, 6}, {32, 64}, {128, 3}})
    for (bool directed : {false, true}) add_relative_bias(cases, t, distances, directed, heads);
  for (auto [rows, n] : {std::pair<int64_t, int64_t>{1, 1}, {33, 2048}, {7, 129}}) {
    add_scale(cases, t, rows, n);
    add_cap(cases, t, rows, n);
  }
  for (int64_t n : {1, 33, 64, 2304}) add_scaled_tokens(cases, t, n);
  for (auto [rows, vocabulary] : {std::pair<int64_t, int64_t>{1, 2}, {7, 33}, {33, 1000}, {9, 256000}})
    add_capped_loss(cases, t, rows, vocabulary);
}

}  // namespace blipft::test
