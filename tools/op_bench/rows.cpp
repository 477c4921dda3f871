// Ops on rows, all bound by memory: norms, activations, dropout, embeddings, and rows picked and spread.
#include "blipft/error.h"
#include "blipft/patch_ops.h"
#include "op_bench/cases.h"

namespace blipft::bench {

namespace {

constexpr int64_t kVitTokens = 257, kPatches = 256, kVitWidth = 1408, kVitInner = 6144;
constexpr int64_t kQueries = 32, kQueryWidth = 768;
constexpr int64_t kText = 50, kOptTokens = kQueries + kText, kOptWidth = 2560, kOptInner = 10240, kVocabulary = 50304;

/// Returns the bytes of `elements` bf16 numbers.
double bf16_bytes(int64_t elements) { return 2.0 * static_cast<double>(elements); }

/// `dbias`: also times backward with the gradient of the bias that was added to x.
void norm_cases(Harness& harness, int64_t m, int64_t n, bool residual, float p, int64_t rows_per_sample,
                bool dbias = false) {
  const double matrix = bf16_bytes(m * n);
  const std::string shape = dims({m, n}) + (p > 0 ? " dropout" : residual ? " residual" : "");
  const auto dropout = [&harness, p, m, rows_per_sample] {
    return harness.dropout(p, m / rows_per_sample, rows_per_sample);
  };
  harness.run("norm_forward", shape, {matrix * (residual ? 4 : 2)}, [&]() -> Harness::Work {
    NormForward args;
    args.x = harness.tensor({m, n});
    if (residual) args.residual = harness.tensor({m, n}), args.sum = harness.tensor({m, n});
    if (p > 0) args.dropout = dropout();
    args.gamma = harness.tensor({n}), args.beta = harness.tensor({n}), args.y = harness.tensor({m, n});
    args.mean = harness.tensor({m}, DType::f32), args.rstd = harness.tensor({m}, DType::f32);
    return [&harness, args] { harness.ops().norm_forward(args, harness.stream()); };
  });
  const auto make_backward = [&] {
    NormBackward args;
    args.dy = harness.tensor({m, n}), args.x = harness.tensor({m, n}), args.gamma = harness.tensor({n});
    args.mean = harness.tensor({m}, DType::f32, 0, 0.01f), args.rstd = harness.tensor({m}, DType::f32, 1, 0.01f);
    if (residual) args.add = harness.tensor({m, n});
    args.dgamma = harness.tensor({n}), args.dbeta = harness.tensor({n});
    args.accumulate = true;
    if (p > 0) args.dropout = dropout(), args.dropped = harness.tensor({m, n});
    args.dx = harness.tensor({m, n});
    return args;
  };
  const double backward = matrix * (3 + residual + (p > 0));
  harness.run("norm_backward", shape, {backward}, [&]() -> Harness::Work {
    return [&harness, args = make_backward()] { harness.ops().norm_backward(args, harness.stream()); };
  });
  if (!dbias) return;
  harness.run("norm_backward", shape + " dbias", {backward + 2 * bf16_bytes(n)}, [&]() -> Harness::Work {
    NormBackward args = make_backward();
    args.dbias = harness.tensor({n}), args.accumulate_dbias = true;
    return [&harness, args] { harness.ops().norm_backward(args, harness.stream()); };
  });
  const double with_output = backward + matrix + 2 * bf16_bytes(n);
  harness.run("norm_backward", shape + " dbias output", {with_output}, [&]() -> Harness::Work {
    NormBackward args = make_backward();
    args.dbias = harness.tensor({n}), args.accumulate_dbias = true;
    args.beta = harness.tensor({n}), args.y = harness.tensor({m, n});
    return [&harness, args] { harness.ops().norm_backward(args, harness.stream()); };
  });
}

void activation_cases(Harness& harness, int64_t batch) {
  const auto activate = [&](const char* name, int64_t m, int64_t n, Activation activation) {
    harness.run("activate", concat(name, " ", dims({m, n})), {2 * bf16_bytes(m * n)}, [&]() -> Harness::Work {
      const Tensor x = harness.tensor({m, n}), y = harness.tensor({m, n});
      return [&harness, x, y, activation] { harness.ops().activate(x, y, activation, harness.stream()); };
    });
  };
  activate("gelu", batch * kVitTokens, kVitInner, Activation::gelu);
  activate("relu", batch * kOptTokens, kOptInner, Activation::relu);
  const Shape shape{batch * kOptTokens, kOptWidth};
  harness.run("dropout_add", dims({shape[0], shape[1]}), {3 * bf16_bytes(shape.numel())}, [&]() -> Harness::Work {
    DropoutAdd args;
    args.x = harness.tensor(shape), args.residual = harness.tensor(shape);
    args.dropout = harness.dropout(0.1f, batch, kOptTokens), args.y = harness.tensor(shape);
    return [&harness, args] { harness.ops().dropout_add(args, harness.stream()); };
  });
}

void picture_cases(Harness& harness, int64_t batch) {
  const std::string shape = concat("b", batch);
  const int64_t pixels = batch * 224 * 224 * 3;
  harness.run("patchify", shape, {static_cast<double>(pixels) + bf16_bytes(pixels)}, [&]() -> Harness::Work {
    Patchify args;
    const Tensor words = harness.integers({pixels / 4}, [](int64_t i) { return static_cast<int32_t>(i * 0x25a7931d); });
    args.pixels = {words.data, DType::u8, {batch, 224, 224, 3}};
    for (int c = 0; c < 3; ++c) args.mean[c] = 0.45f, args.std[c] = 0.27f;
    args.patches = harness.tensor({batch * kPatches, 588});
    return [&harness, args] { harness.ops().patchify(args, harness.stream()); };
  });
  const auto embed = [&] {
    VisionEmbed args;
    args.patches = harness.tensor({batch * kPatches, kVitWidth}), args.class_embedding = harness.tensor({kVitWidth});
    args.positions = harness.tensor({kVitTokens, kVitWidth});
    args.x = harness.tensor({batch * kVitTokens, kVitWidth});
    args.accumulate = true;
    return args;
  };
  const Cost cost{bf16_bytes(batch * (kPatches + kVitTokens) * kVitWidth)};
  harness.run("vision_embed_forward", shape, cost, [&]() -> Harness::Work {
    return [&harness, args = embed()] { harness.ops().vision_embed_forward(args, harness.stream()); };
  });
  harness.run("vision_embed_backward", shape, cost, [&]() -> Harness::Work {
    return [&harness, args = embed()] { harness.ops().vision_embed_backward(args, harness.stream()); };
  });
}

void text_cases(Harness& harness, int64_t batch) {
  const std::string shape = concat("b", batch);
  const auto length = [](int64_t sample) { return static_cast<int32_t>(8 + sample % 40); };
  int64_t tokens = 0;
  for (int64_t sample = 0; sample < batch; ++sample) tokens += length(sample);
  const auto embed = [&] {
    TextEmbed args;
    args.ids = harness.ids({batch, kText}, 2000), args.lengths = harness.integers({batch}, length);
    args.prefix = harness.tensor({batch * kQueries, kOptWidth}), args.prefix_rows = kQueries;
    args.tokens = harness.tensor({kVocabulary, kOptWidth}), args.positions = harness.tensor({2050, kOptWidth});
    args.x = harness.tensor({batch * kOptTokens, kOptWidth});
    args.accumulate_tokens = args.accumulate_positions = true;
    return args;
  };
  harness.run("text_embed_forward", shape, {2 * bf16_bytes(batch * kOptTokens * kOptWidth)}, [&]() -> Harness::Work {
    return [&harness, args = embed()] { harness.ops().text_embed_forward(args, harness.stream()); };
  });
  // Reads all rows, writes the queries' part, adds the tokens' part to the table's rows.
  const double backward = bf16_bytes((batch * (kOptTokens + kQueries) + 2 * tokens) * kOptWidth);
  harness.run("text_embed_backward", shape, {backward}, [&]() -> Harness::Work {
    return [&harness, args = embed()] { harness.ops().text_embed_backward(args, harness.stream()); };
  });
}

void block_cases(Harness& harness, int64_t batch) {
  const Shape one{kQueries, kQueryWidth}, all{batch * kQueries, kQueryWidth};
  const Cost tiles{bf16_bytes(one.numel() + all.numel())};
  harness.run("tile_rows", concat("32x768 to b", batch), tiles, [&]() -> Harness::Work {
    const Tensor rows = harness.tensor(one), tiled = harness.tensor(all);
    return [&harness, rows, tiled] { harness.ops().tile_rows(rows, tiled, harness.stream()); };
  });
  harness.run("sum_tiles", concat("32x768 of b", batch), tiles, [&]() -> Harness::Work {
    const Tensor rows = harness.tensor(one), tiled = harness.tensor(all);
    return [&harness, rows, tiled] { harness.ops().sum_tiles(tiled, rows, true, harness.stream()); };
  });
  const int64_t labels = kText - 1;
  const auto blocks = [&] {
    return RowBlocks{harness.tensor({batch * kOptTokens, kOptWidth}), harness.tensor({batch * labels, kOptWidth}),
                     kOptTokens, kQueries, labels};
  };
  harness.run("pick_rows", concat("49 of 82, b", batch), {2 * bf16_bytes(batch * labels * kOptWidth)},
              [&]() -> Harness::Work {
    return [&harness, args = blocks()] { harness.ops().pick_rows(args, harness.stream()); };
  });
  harness.run("spread_rows", concat("49 to 82, b", batch), {bf16_bytes(batch * (labels + kOptTokens) * kOptWidth)},
              [&]() -> Harness::Work {
    return [&harness, args = blocks()] { harness.ops().spread_rows(args, harness.stream()); };
  });
}

}  // namespace

void row_cases(Harness& harness, int64_t batch) {
  norm_cases(harness, batch * kVitTokens, kVitWidth, false, 0, kVitTokens);
  norm_cases(harness, batch * kVitTokens, kVitWidth, true, 0, kVitTokens, true);
  norm_cases(harness, batch * kOptTokens, kOptWidth, true, 0, kOptTokens);
  norm_cases(harness, batch * kOptTokens, kOptWidth, true, 0.1f, kOptTokens, true);
  norm_cases(harness, batch * kQueries, kQueryWidth, true, 0.1f, kQueries);
  norm_cases(harness, batch * 128, 4096, false, 0, 128);
  activation_cases(harness, batch);
  picture_cases(harness, batch);
  text_cases(harness, batch);
  block_cases(harness, batch);
}

}  // namespace blipft::bench
