// The list of op cases that every backend must compute alike: op, dtype, shapes, variants.
#pragma once

#include <tuple>
#include <utility>

#include "blipft/patch_ops.h"
#include "ops/attention_cases.h"
#include "ops/decode_cases.h"
#include "ops/fp8_cases.h"
#include "ops/linear_cases.h"
#include "ops/llama_cases.h"
#include "ops/modern_cases.h"
#include "ops/norm_cases.h"
#include "ops/op_case.h"
#include "ops/quantize_cases.h"

namespace blipft::test {

inline void add_embeddings(Cases& cases, DType t, DType gradient, bool accumulate) {
  const auto parameter = [=](OpContext& c, const char* name, Shape shape) {
    return accumulate ? c.inout(name, gradient, shape) : c.output(name, gradient, shape);
  };
  const DType limit = gradient == kBf16 ? kBf16 : t;
  const std::string tail = concat(" gradient ", dtype_name(gradient), " accumulate ", accumulate);
  for (auto [samples, patches, n] : {std::tuple<int64_t, int64_t, int64_t>{3, 16, 40}, {2, 256, 1408}, {1, 1, 33}})
    cases.push_back({title(t, "vision_embed ", samples, "x", patches, "x", n, tail), limit, false,
                     [=](OpContext& c) {
      VisionEmbed f, b;
      f.patches = c.input("patches", t, {samples * patches, n});
      f.class_embedding = c.input("class_embedding", t, {n});
      f.positions = c.input("positions", t, {1 + patches, n});
      f.x = c.output("x", t, {samples * (1 + patches), n});
      b.patches = c.output("dpatches", t, {samples * patches, n});
      b.class_embedding = parameter(c, "dclass", {n});
      b.positions = parameter(c, "dpositions", {1 + patches, n});
      b.x = c.input("dx", t, {samples * (1 + patches), n});
      b.accumulate = accumulate;
      c.run([&](Ops& ops, Stream s) {
        ops.vision_embed_forward(f, s);
        ops.vision_embed_backward(b, s);
      });
    }});
  struct Text {
    int64_t samples, tokens, prefix, n, vocabulary;
    bool positions, packed = false;
  };
  for (const Text& v : {Text{3, 7, 5, 40, 11, true}, Text{2, 50, 32, 2560, 1000, true}, Text{16, 33, 0, 64, 50, false},
                        Text{1, 1, 1, 17, 3, true}, Text{5, 7, 5, 40, 11, true, true},
                        Text{4, 50, 32, 2560, 1000, true, true}, Text{16, 33, 0, 64, 50, false, true},
                        Text{3, 9, 2, 17, 3, true, true}, Text{3, 2000, 0, 64, 900, false},
                        Text{3, 2000, 2, 40, 900, false, true}})
    cases.push_back({title(t, "text_embed ", v.samples, "x", v.tokens, "x", v.n, tail, v.packed ? " packed" : ""),
                     limit, false, [=](OpContext& c) {
      const int64_t rows = v.prefix + v.tokens;
      const auto packed_rows = uneven_rows(v.samples, v.prefix + 1, rows);
      const int64_t m = v.packed ? total_rows(packed_rows) : v.samples * rows;
      TextEmbed f;
      f.ids = c.input("ids", DType::i32, {v.samples, v.tokens}, 0, static_cast<double>(v.vocabulary));
      if (v.packed) {                        // of every second sample, rows of padding
        std::vector<double> lengths;
        for (int64_t b = 0; b < v.samples; ++b)
          lengths.push_back(static_cast<double>(packed_rows[static_cast<size_t>(b)] - v.prefix - b % 2));
        f.lengths = c.values("lengths", DType::i32, lengths);
        f.packing = make_packing(c, packed_rows, rows);
      } else {
        f.lengths = c.input("lengths", DType::i32, {v.samples}, 1, static_cast<double>(v.tokens + 1));
      }
      f.prefix_rows = v.prefix;
      f.padding_id = 1;
      TextEmbed b = f;
      if (v.prefix) f.prefix = c.input("prefix", t, {v.samples * v.prefix, v.n});
      f.tokens = c.input("tokens", t, {v.vocabulary, v.n});
      if (v.positions) f.positions = c.input("positions", t, {rows + 4, v.n});
      f.x = c.output("x", t, {m, v.n});
      if (v.prefix) b.prefix = c.output("dprefix", t, {v.samples * v.prefix, v.n});
      b.tokens = parameter(c, "dtokens", {v.vocabulary, v.n});
      if (v.positions) b.positions = parameter(c, "dpositions", {rows + 4, v.n});
      b.x = c.input("dx", t, {m, v.n});
      b.accumulate_tokens = b.accumulate_positions = accumulate;
      c.run([&](Ops& ops, Stream s) {
        ops.text_embed_forward(f, s);
        ops.text_embed_backward(b, s);
      });
    }});
  for (auto [samples, tokens, n] : {std::tuple<int64_t, int64_t, int64_t>{3, 9, 40}, {4, 50, 2560}, {2, 700, 17}})
    for (const bool packed : {false, true})
      cases.push_back({title(t, "text_embed ", samples, "x", tokens, "x", n, " with pictures anywhere", tail, packed ? " packed" : ""),
                       limit, false, [=](OpContext& c) {
        const auto packed_rows = uneven_rows(samples, 2, tokens);
        const int64_t m = packed ? total_rows(packed_rows) : samples * tokens;
        std::vector<double> picture_of_row(static_cast<size_t>(m), -1), row_of_picture, lengths;
        for (int64_t r = m / 7; r < m; r += r % 3 == 0 ? 1 : r % 5 + 1) {  // picture rows in the order of rows, and two nowhere
          picture_of_row[static_cast<size_t>(r)] = static_cast<double>(row_of_picture.size());
          row_of_picture.push_back(static_cast<double>(r));
        }
        row_of_picture.insert(row_of_picture.end(), 2, -1);
        for (int64_t b = 0; b < samples; ++b) lengths.push_back(static_cast<double>(packed_rows[static_cast<size_t>(b)] - 1));
        const auto pictures = static_cast<int64_t>(row_of_picture.size());
        TextEmbed f{.ids = c.input("ids", DType::i32, {samples, tokens}, 0, 11), .lengths = c.values("lengths", DType::i32, lengths),
                    .prefix_of_row = c.values("prefix_of_row", DType::i32, picture_of_row),
                    .row_of_prefix = c.values("row_of_prefix", DType::i32, row_of_picture), .padding_id = 1, .token_scale = 1.3f};
        if (packed) f.packing = make_packing(c, packed_rows, tokens);
        TextEmbed b = f;
        f.prefix = c.input("prefix", t, {pictures, n}), f.tokens = c.input("tokens", t, {11, n});
        f.x = c.output("x", t, {m, n});
        b.prefix = c.output("dprefix", t, {pictures, n}), b.tokens = parameter(c, "dtokens", {11, n});
        b.x = c.input("dx", t, {m, n}), b.accumulate_tokens = accumulate;
        c.run([&](Ops& ops, Stream s) {
          ops.text_embed_forward(f, s);
          ops.text_embed_backward(b, s);
        });
      }});
  cases.push_back({title(t, "text_embed of one place", tail), limit, false, [=](OpContext& c) {
    TextEmbed f;
    f.ids = c.input("ids", DType::i32, {6, 1}, 0, 11);
    f.row_positions = c.values("row_positions", DType::i32, {0, 7, -1, 3, 3, 1});
    f.tokens = c.input("tokens", t, {11, 40}), f.positions = c.input("positions", t, {10, 40});
    f.x = c.output("x", t, {6, 40});
    c.run([&](Ops& ops, Stream s) { ops.text_embed_forward(f, s); });
  }});
  for (auto [side, n] : {std::pair<int64_t, int64_t>{5, 33}, {48, 1152}, {1, 8}})
    for (const bool interpolated : {false, true})
      cases.push_back({title(t, "position_table ", side, "x", n, interpolated ? " interpolated" : "", tail), limit, false, [=](OpContext& c) {
        constexpr int64_t rows = 700;
        std::vector<double> positions;
        for (int64_t axis = 0; axis < 4; ++axis)
          for (int64_t r = 0; r < rows; ++r) {
            const int64_t length = interpolated ? 1 + r / 100 * 17 : side;  // of the picture, rows 0 in the last ones
            const bool padding = r >= rows - 20;
            positions.push_back(static_cast<double>(padding ? 0 : axis > 1 ? length : (axis == 0 ? r : 3 * r) % length));
          }
        PositionTable f{.positions = c.values("positions", DType::i32, positions), .side = side, .interpolated = interpolated,
                        .table = c.input("table", t, {side * side, n}), .x = c.inout("x", t, {rows, n}), .accumulate = accumulate};
        PositionTable b = f;
        b.table = parameter(c, "dtable", {side * side, n}), b.x = c.input("dx", t, {rows, n});
        c.run([&](Ops& ops, Stream s) {
          ops.position_table_forward(f, s);
          ops.position_table_backward(b, s);
        });
      }});
  cases.push_back({title(t, "sum_tiles", tail), limit, false, [=](OpContext& c) {
    const Tensor tiled = c.input("tiled", t, {5 * 32, 77}), rows = parameter(c, "rows", {32, 77});
    c.run([&](Ops& ops, Stream s) { ops.sum_tiles(tiled, rows, accumulate, s); });
  }});
}

inline void add_row_moves(Cases& cases, DType t) {
  for (int64_t n : {1, 33, 64, 2560}) {
    cases.push_back({title(t, "tile_rows ", n), t, true, [=](OpContext& c) {
      const Tensor rows = c.input("rows", t, {32, n}), tiled = c.output("tiled", t, {3 * 32, n});
      c.run([&](Ops& ops, Stream s) { ops.tile_rows(rows, tiled, s); });
    }});
    for (int64_t count : {1, 9, 16})
      cases.push_back({title(t, "mean_rows of ", count, ", ", n), t, false, [=](OpContext& c) {
        const Tensor x = c.input("x", t, {7 * count, n}), means = c.output("means", t, {7, n});
        const Tensor dmeans = c.input("dmeans", t, {7, n}), dx = c.output("dx", t, {7 * count, n});
        c.run([&](Ops& ops, Stream s) {
          ops.mean_rows(x, means, s);
          ops.mean_rows_backward(dmeans, dx, s);
        });
      }});
    cases.push_back({title(t, "gather_rows ", n), t, true, [=](OpContext& c) {
      const Tensor table = c.input("table", t, {50, n}), rows = c.output("rows", t, {6, n});
      const Tensor numbers = c.values("numbers", DType::i32, {49, 0, 7, -1, 31, 0});
      c.run([&](Ops& ops, Stream s) { ops.gather_rows(table, numbers, rows, s); });
    }});
    cases.push_back({title(t, "add_rows ", n), t, false, [=](OpContext& c) {
      const Tensor rows = c.input("rows", t, {5, n}), x = c.inout("x", t, {9, n});
      const Tensor numbers = c.values("numbers", DType::i32, {7, -1, 0, 8, 3});
      c.run([&](Ops& ops, Stream s) { ops.add_rows(rows, numbers, x, s); });
    }});
    for (bool packed : {false, true})
      cases.push_back({title(t, "pick_rows, spread_rows of the first 32 ", n, packed ? " packed" : ""), t, true,
                       [=](OpContext& c) {
        const auto packed_rows = uneven_rows(5, 33, 82);
        const int64_t blocks = packed ? 5 : 3, m = packed ? total_rows(packed_rows) : blocks * 82;
        RowBlocks pick{.block_rows = 82, .offset = 1, .count = 32, .fixed = true, .keep = true};
        if (packed) pick.packing = make_packing(c, packed_rows, 82);
        RowBlocks spread = pick;
        pick.blocks = c.input("blocks", t, {m, n});
        pick.rows = c.output("rows", t, {blocks * 32, n});
        spread.blocks = c.inout("spread", t, {m, n});
        spread.rows = pick.rows;
        c.run([&](Ops& ops, Stream s) {
          ops.pick_rows(pick, s);
          ops.spread_rows(spread, s);
        });
      }});
    for (bool packed : {false, true})
      cases.push_back({title(t, "pick_rows, spread_rows ", n, packed ? " packed" : ""), t, true, [=](OpContext& c) {
        RowBlocks pick, spread;
        pick.block_rows = 82, pick.offset = 31, pick.count = 50;
        const auto packed_rows = uneven_rows(5, 32, 82);  // of the third block, none is picked
        const int64_t blocks = packed ? 5 : 3, m = packed ? total_rows(packed_rows) : blocks * 82;
        const int64_t picked = m - blocks * 32;
        if (packed) pick.packing = make_packing(c, packed_rows, 82);
        spread = pick;
        pick.blocks = c.input("blocks", t, {m, n});
        pick.rows = c.output("rows", t, {picked, n});
        spread.blocks = c.output("spread", t, {m, n});
        spread.rows = pick.rows;
        c.run([&](Ops& ops, Stream s) {
          ops.pick_rows(pick, s);
          ops.spread_rows(spread, s);
        });
      }});
  }
}

inline void add_elementwise(Cases& cases, DType t) {
  for (Activation activation : {Activation::none, Activation::relu, Activation::gelu, Activation::gelu_tanh})
    for (int64_t n : {1, 1001, 8192})
      cases.push_back({title(t, "activate ", int(activation), " ", n), t, false, [=](OpContext& c) {
        const Tensor x = c.input("x", t, {n}, -4, 4), y = c.output("y", t, {n});
        c.run([&](Ops& ops, Stream s) { ops.activate(x, y, activation, s); });
      }});
  for (auto [n, shift] : {std::pair<int64_t, int64_t>{1, 0}, {1001, 0}, {8192, 0}, {1001, 1}, {40000, 3}})
    cases.push_back({title(t, "pack_signs ", n, " from ", shift), t, true, [=](OpContext& c) {
      const Tensor x = c.input("x", t, {n + shift}, -1, 1), signs = c.output("signs", DType::u8, {(n + 7) / 8});
      c.run([&](Ops& ops, Stream s) { ops.pack_signs(x.part(shift, {n}), signs, s); });
    }});
  cases.push_back({title(t, "pack_signs of odd numbers"), t, true, [=](OpContext& c) {
    const Tensor x = c.values("x", t, {0, -0.0, std::nan(""), 1e-39, INFINITY, -INFINITY, -1e-39, 1, -1, 1e30});
    const Tensor signs = c.output("signs", DType::u8, {2});
    c.run([&](Ops& ops, Stream s) { ops.pack_signs(x, signs, s); });
  }});
  for (int variant = 0; variant < 16; ++variant)
    for (int64_t n : {1, 37, 64, 100, 2560}) {
      const bool packed = variant & 8;
      if (packed && !(variant & 2)) continue;  // dropout alone takes part in it
      cases.push_back({title(t, "dropout_add variant ", variant, " cols ", n), t, false, [=](OpContext& c) {
        DropoutAdd a;
        const auto packed_rows = uneven_rows(5, 0, 33);
        const int64_t rows = packed ? total_rows(packed_rows) : 3 * 33;
        a.x = variant & 4 ? c.inout("x", t, {rows, n}) : c.input("x", t, {rows, n});
        a.y = variant & 4 ? a.x : c.output("y", t, {rows, n});
        if (variant & 1) a.residual = c.input("residual", t, {rows, n});
        if (variant & 2) a.dropout = make_dropout(c, 0.1f, packed ? 5 : 3, 33);
        if (packed) a.dropout.packing = make_packing(c, packed_rows, 33);
        c.run([&](Ops& ops, Stream s) { ops.dropout_add(a, s); });
      }});
    }
  for (const float p : {0.0f, 0.1f})
    for (int64_t n : {1, 37, 64, 2560})
      cases.push_back({title(t, "dropout_add with p ", p, " and a scale, cols ", n), t, false, [=](OpContext& c) {
        DropoutAdd a;
        a.x = c.input("x", t, {3 * 33, n}), a.y = c.output("y", t, {3 * 33, n}), a.residual = c.input("residual", t, {3 * 33, n});
        if (p > 0) a.dropout = make_dropout(c, p, 3, 33);
        a.dropout.scale = 0.22f;
        c.run([&](Ops& ops, Stream s) { ops.dropout_add(a, s); });
      }});
  for (int64_t n : {1, 1000, 70001})
    cases.push_back({title(t, "sum_squares, add, fill, fill_i32 ", n), t, false, [=](OpContext& c) {
      const Tensor x = c.input("x", t, {n}), out = c.output("out", kF32, {1});
      const Tensor total = c.inout("total", kF32, {1}, 1, 2);
      const Tensor f32 = c.inout("f32", kF32, {n}), bf16 = c.inout("bf16", kBf16, {n});
      const Tensor filled = c.output("filled", t, {n}), integers = c.output("integers", DType::i32, {n});
      c.run([&](Ops& ops, Stream s) {
        ops.sum_squares(x, out, false, s);
        ops.sum_squares(x, total, true, s);
        if (t == kF32) ops.add(x, f32, s);
        else ops.add(x, bf16, s), ops.add(x, f32, s);
        ops.fill(filled, 0.3f, s);
        ops.fill_i32(integers, -16777217, s);    // no float holds it
      });
    }});
  for (int64_t n : {1, 6, 100003})
    cases.push_back({title(t, "fill_normal ", n), t, false, [=](OpContext& c) {
      const Tensor x = c.output("x", t, {n}), far = c.output("far", t, {n}), even = c.output("even", t, {n});
      c.run([&](Ops& ops, Stream s) {
        ops.fill_normal(x, 0x9876543210u, 5, 3, 0.25f, 2, s);
        ops.fill_uniform(even, 0x9876543210u, 5, 3, 2.5f, s);
        ops.fill_normal(far, 1, 0xfffffffeu, (int64_t{1} << 35) + 2, 0, 0.02f, s);
      });
    }});
  for (auto [rows, vocabulary] : {std::pair<int64_t, int64_t>{1, 2}, {7, 33}, {33, 1000}, {49, 50272}, {5, 50304}})
    cases.push_back({title(t, "cross_entropy ", rows, "x", vocabulary), t, false, [=](OpContext& c) {
      // Wide logits: a peaked softmax, whose own entries count beside the -1 at the label.
      CrossEntropy a;
      a.logits = c.inout("logits", t, {rows, vocabulary}, -12, 12);
      std::vector<double> labels;
      for (int64_t r = 0; r < rows; ++r)
        labels.push_back(r % 4 == 1 ? -100 : static_cast<double>(r * 997 % vocabulary));
      a.labels = c.values("labels", DType::i32, labels);
      a.weight = c.values("weight", kF32, {0.125});
      a.row_loss = c.output("row_loss", kF32, {rows});
      c.run([&](Ops& ops, Stream s) { ops.cross_entropy(a, s); });
    }});
  for (const bool of_bytes : {false, true})
    for (auto [rows, area, time] : {std::tuple<int64_t, int64_t, int64_t>{9, 196, 2}, {5, 256, 1}, {1, 9, 3}})
      cases.push_back({title(t, "patch_values ", rows, "x", area, "x", time, of_bytes ? " of bytes" : ""), t, true, [=](OpContext& c) {
        PatchValues a{.pixels = c.input("pixels", DType::u8, {rows, 3 * area}, 0, 256), .time = time, .mean = {0.48145466f, 0.4578275f, 0.4f},
                      .std = {0.26862954f, 0.26130258f, 0.27577711f}, .of_bytes = of_bytes, .values = c.output("values", t, {rows, 3 * time * area})};
        c.run([&](Ops& ops, Stream s) { ops.patch_values(a, s); });
      }});
  for (auto [samples, size, patch] : {std::tuple<int64_t, int64_t, int64_t>{2, 224, 14}, {3, 20, 5}, {1, 16, 16},
        {2, 23, 5}, {3, 20, 16}, {2, 21, 16}, {2, 72, 16}})
    cases.push_back({title(t, "patchify ", samples, "x", size, "/", patch), t, false, [=](OpContext& c) {
      Patchify a{c.input("pixels", DType::u8, {samples, size, size, 3}, 0, 256), patch,
                 {0.48f, 0.46f, 0.41f}, {0.27f, 0.26f, 0.28f}, {}};
      a.patches = c.output("patches", t, {samples * (size / patch) * (size / patch), 3 * patch * patch});
      c.run([&](Ops& ops, Stream s) { ops.patchify(a, s); });
    }});
}

inline void add_updates(Cases& cases, DType param, bool master, DType grad, DType state, int64_t n,
                        int64_t link_bytes = 0, bool skipped = false) {
  const DType bound = param == kF32 && state == kF32 ? kF32 : kBf16;
  const double skip = skipped ? 1 : 0;
  static_assert(kSkipUpdate == 6 && kStepScalars == 8);
  const auto scalars = [=](OpContext& c) {
    return c.values("scalars", kF32, {0.05, 0.19, 0.002, 0.7, 1.5, 0, skip, 0});
  };
  const std::string tail =
      concat(master ? " master" : "", " grad ", dtype_name(grad), " state ", dtype_name(state), " ", n,
             link_bytes ? " over the link" : "", skipped ? " skipped" : "");
  cases.push_back({title(param, "adamw_update", tail), bound, false, [=](OpContext& c) {
    AdamWUpdate a;
    a.param = c.inout("param", param, {n});
    if (master) a.master = c.inout("master", kF32, {n});
    a.grad = c.input("grad", grad, {n});
    a.m = c.inout("m", state, {n}, -0.1, 0.1);
    a.v = c.inout("v", state, {n}, 0, 0.01);
    a.scalars = scalars(c);
    if (n != 1001 && !skipped) a.squares = c.output("squares", kF32, {squares_count(n)});
    a.weight_decay = 0.1f;
    a.link_bytes = link_bytes;
    c.run([&](Ops& ops, Stream s) { ops.adamw_update(a, s); });
  }});
  for (bool momentum : {false, true})
    cases.push_back({title(param, "sgd_update momentum ", momentum, tail), bound, false, [=](OpContext& c) {
      SgdUpdate a;
      a.param = c.inout("param", param, {n});
      if (master) a.master = c.inout("master", kF32, {n});
      a.grad = c.input("grad", grad, {n});
      if (momentum) a.momentum_buffer = c.inout("buffer", state, {n});
      a.momentum = momentum ? 0.9f : 0.0f;
      a.weight_decay = 0.1f;
      a.scalars = scalars(c);
      if (n != 1001 && !skipped) a.squares = c.output("squares", kF32, {squares_count(n)});
      a.link_bytes = link_bytes;
      c.run([&](Ops& ops, Stream s) { ops.sgd_update(a, s); });
    }});
}

inline void add_scalars(Cases& cases) {
  for (DType from : {kF32, kBf16, DType::f16})
    for (DType to : {kF32, kBf16, DType::f16})
      cases.push_back({concat("cast ", dtype_name(from), " to ", dtype_name(to)), kF32, true, [=](OpContext& c) {
        // Beyond f16's range on both sides, and into its subnormal numbers.
        const Tensor x = c.input("x", from, {1003}, -70000, 70000), tiny = c.input("tiny", from, {1003}, -1e-4, 1e-4);
        const Tensor y = c.output("y", to, {1003}), y_tiny = c.output("y_tiny", to, {1003});
        c.run([&](Ops& ops, Stream s) {
          ops.cast(x, y, s);
          ops.cast(tiny, y_tiny, s);
        });
      }});
  for (int64_t n : {1, 7, 5000, 300001})
    cases.push_back({concat("sum ", n), kF32, false, [=](OpContext& c) {
      const Tensor x = c.input("x", kF32, {n}, 0, 1), out = c.output("out", kF32, {1});
      const Tensor total = c.inout("total", kF32, {1});
      c.run([&](Ops& ops, Stream s) {
        ops.sum(x, out, false, s);
        ops.sum(x, total, true, s);
      });
    }});
  for (float max_norm : {0.0f, 1.0f, 100.0f})
    cases.push_back({concat("loss_weights, clip_coefficient ", max_norm), kF32, false, [=](OpContext& c) {
      const Tensor counts = c.values("counts", kF32, {3, 0, 17, 1}), weights = c.output("weights", kF32, {4});
      const Tensor squares = c.values("squares", kF32, {49}), scalars = c.inout("scalars", kF32, {kStepScalars});
      c.run([&](Ops& ops, Stream s) {
        ops.loss_weights(counts, weights, 4, s);
        ops.clip_coefficient(squares, scalars, max_norm, s);
      });
    }});
  // Only the flag of the scalars counts: the update that finds it changes nothing.
  for (const double squares : {HUGE_VAL, std::nan("")})
    for (const float max_norm : {1.0f, HUGE_VALF})
      cases.push_back({concat("clip_coefficient of ", squares, " at most ", max_norm, ", updates"), kF32, true,
                       [=](OpContext& c) {
        const Tensor square = c.values("squares", kF32, {squares}), grad = c.input("grad", kF32, {5000});
        const Tensor zeros = c.values("zeros", kF32, std::vector<double>(kStepScalars));
        const Tensor scalars = c.scratch("scalars", kF32, {kStepScalars});
        const auto inout = [&](const char* name) { return c.inout(name, kF32, {5000}); };
        const SgdUpdate sgd{inout("sgd"), {}, grad, inout("buffer"), scalars};
        const LionUpdate lion{inout("lion"), {}, grad, inout("mean"), scalars};
        const AdamWUpdate adamw{inout("adamw"), inout("master"), grad, inout("m"), inout("v"), scalars};
        AdamW8bitUpdate quantized{.param = inout("8bit"), .grad = grad, .scalars = scalars};
        quantized.m = make_quantized(c, "codes of m", CodeBook::dynamic8, 5000);
        quantized.v = make_quantized(c, "codes of v", CodeBook::dynamic8_unsigned, 5000);
        c.run([&](Ops& ops, Stream s) {
          ops.quantize(grad, quantized.m, s);
          ops.quantize(grad, quantized.v, s);
          ops.cast(zeros, scalars, s);
          ops.clip_coefficient(square, scalars, max_norm, s);
          ops.sgd_update(sgd, s);
          ops.lion_update(lion, s);
          ops.adamw_update(adamw, s);
          ops.adamw8bit_update(quantized, s);
        });
      }});
}

inline std::vector<OpCase> op_cases() {
  Cases cases;
  for (DType t : {kF32, kBf16}) {
    for (const Gemm& g : kGemms) {
      if (g.only_bf16 && t != kBf16) continue;
      add_linear_forward(cases, t, g);
      add_linear_backward(cases, t, g);
    }
    for (const Gemm& g : {Gemm{7, 88, 24}, Gemm{33, 100, 72}, Gemm{82, 80, 320}, Gemm{5, 13, 7}, Gemm{257, 16, 176},
                          Gemm{164, 768, 16}})  // the last two: as wide as adapters of rank 16
      for (auto [first, behind] : {std::pair<int64_t, int64_t>{0, 64}, {24, 0}, {8, 16}, {3, 2}})
        add_strided_linear(cases, t, g, first, behind);
    for (auto [samples, tokens, n] : {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1}, {1, 7, 33}, {3, 11, 64},
                                      {2, 41, 100}, {5, 60, 37}, {2, 257, 1408}, {2, 32, 768}, {2, 82, 2560},
                                      {1, 33, 4096}, {1, 20, 8192}, {2, 1030, 328},
                                      {2, 1030, 2048}})  // many rows: other kernels
      add_norm(cases, t, samples, tokens, n, false);
    for (auto [samples, tokens, n] : {std::tuple<int64_t, int64_t, int64_t>{3, 11, 64}, {5, 60, 37}, {5, 82, 2560},
                                      {3, 33, 4096}, {3, 20, 768}, {5, 1030, 328}, {4, 1030, 2048}})
      add_norm(cases, t, samples, tokens, n, true);
    add_llama_ops(cases, t);
    add_modern_ops(cases, t);
    add_attentions(cases, t);
    add_packed_attentions(cases, t);
    add_grouped_attentions(cases, t);
    add_embeddings(cases, t, t, false);
    add_embeddings(cases, t, kF32, true);
    if (t == kBf16) add_embeddings(cases, t, kBf16, true);
    add_row_moves(cases, t);
    add_elementwise(cases, t);
  }
  for (int64_t n : {1, 1001, 40000}) {
    add_updates(cases, kF32, false, kF32, kF32, n);
    add_updates(cases, kBf16, false, kBf16, kBf16, n);
    add_updates(cases, kBf16, true, kF32, kF32, n);
    add_updates(cases, kBf16, true, kBf16, kF32, n);
  }
  for (int64_t n : {1, 1001, 40000, 600001}) {  // one block's turn and several
    add_updates(cases, kBf16, false, kBf16, kBf16, n, 8);
    add_updates(cases, kBf16, true, kF32, kF32, n, 12);
  }
  add_updates(cases, kF32, false, kF32, kF32, 600001, 8, true);
  add_quantize_ops(cases);
  add_decode_ops(cases);
  add_fp8_ops(cases);
  add_scalars(cases);
  return cases;
}

}  // namespace blipft::test
