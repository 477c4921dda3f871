// The CPU ops of pictures' patches: their values, positions, and patches of pictures of one size.
#include <doctest/doctest.h>

#include <algorithm>

#include "blipft/patch_ops.h"
#include "ops/op_reference.h"
#include "pictures/picture_patches.h"

namespace blipft::test {

TEST_SUITE("cpu_patches") {
  TEST_CASE("patch_values are those of the processors to the bit, in equal slices") {
    for (const bool of_bytes : {false, true}) {
      OpContext c(cpu());
      PatchValues a{.pixels = c.input("pixels", DType::u8, {3, 12}, 0, 256), .time = 2, .mean = {0.48145466f, 0.5f, 0.1f},
                    .std = {0.26862954f, 0.5f, 0.9f}, .of_bytes = of_bytes, .values = c.output("values", kF32, {3, 24})};
      c.run([&](Ops& ops, Stream s) { ops.patch_values(a, s); });
      const PixelTable table = pixel_table({{a.mean[0], a.mean[1], a.mean[2]}, {a.std[0], a.std[1], a.std[2]}},
                                           of_bytes ? PixelLibrary::torchvision : PixelLibrary::pillow);
      const Vec pixels = c.read(a.pixels), values = c.read(a.values);
      for (int64_t i = 0; i < 72; ++i) {
        const int64_t row = i / 24, colour = i % 24 / 8, pixel = i % 4;
        CHECK(at(values, i) ==
              static_cast<double>(table.values[colour][static_cast<int>(at(pixels, row * 12 + colour * 4 + pixel))]));
      }
    }
  }

  TEST_CASE("position_table adds interpolated entries, and its gradient is the adjoint") {
    constexpr int64_t kRows = 26, n = 5;
    for (const bool interpolated : {false, true})
      for (const int64_t side : {1, 4, 7})
        for (auto [t, gradient] : {std::pair{kF32, kF32}, {kBf16, kF32}, {kBf16, kBf16}}) {
          OpContext c(cpu());
          // Pictures of 3 x 4, 1 x 1 and 6 x 2 patches, and one row of padding; or one square.
          Vec positions(4 * kRows), weights(static_cast<size_t>(kRows * side * side));
          int64_t row = 0;
          const auto add = [&](int64_t y, int64_t x, int64_t height, int64_t width) {
            const int64_t values[] = {y, x, height, width};
            for (int64_t axis = 0; axis < 4; ++axis) at(positions, axis * kRows + row) = static_cast<double>(values[axis]);
            const auto weight = [&](int64_t index, int64_t length, int64_t entry) {
              const double place = interpolated ? static_cast<double>(index * (side - 1)) / static_cast<double>(std::max<int64_t>(length - 1, 1))
                                                : static_cast<double>(index);
              return std::max(0.0, 1 - std::fabs(place - static_cast<double>(entry)));
            };
            for (int64_t e = 0; e < side * side; ++e)
              at(weights, row * side * side + e) = weight(y, height, e / side) * weight(x, width, e % side);
            ++row;
          };
          if (interpolated) {
            for (auto [height, width] : {std::pair<int64_t, int64_t>{3, 4}, {1, 1}, {6, 2}})
              for (int64_t i = 0; i < height * width; ++i) add(i / width, i % width, height, width);
            add(0, 0, 0, 0);
          } else {
            for (int64_t i = 0; i < kRows; ++i) add(i / side % side, i % side, side, side);
          }
          PositionTable f{.positions = c.values("positions", DType::i32, positions), .side = side, .interpolated = interpolated,
                          .table = c.input("table", t, {side * side, n}), .x = c.inout("x", t, {kRows, n})};
          PositionTable b = f;
          b.table = c.inout("dtable", gradient, {side * side, n}), b.x = c.input("dx", t, {kRows, n}), b.accumulate = true;
          c.run([&](Ops& ops, Stream s) {
            ops.position_table_forward(f, s);
            ops.position_table_backward(b, s);
          });
          const Vec table = c.read(f.table), dx = c.read(b.x);
          Vec x = numbers_named("x", t, {kRows, n}), dtable = numbers_named("dtable", gradient, {side * side, n});
          for (int64_t r = 0; r < kRows; ++r)
            for (int64_t e = 0; e < side * side; ++e)
              for (int64_t column = 0; column < n; ++column) {
                at(x, r * n + column) += at(weights, r * side * side + e) * at(table, e * n + column);
                at(dtable, e * n + column) += at(weights, r * side * side + e) * at(dx, r * n + column);
              }
          CHECK_CLOSE(c.read(f.x), x, bound(t) * 2);  // two roundings
          CHECK_CLOSE(c.read(b.table), dtable, bound(gradient));
        }
  }

  TEST_CASE("patchify orders channels before rows, as a convolution's weight, and leaves out what no patch covers") {
    constexpr int64_t kSamples = 2, kPatch = 3, kCovered = 6;
    for (auto [t, kSize] : {std::pair<DType, int64_t>{kF32, 6}, {kBf16, 6}, {kF32, 7}, {kBf16, 8}}) {
      CAPTURE(kSize);
      OpContext c(cpu());
      Patchify a{c.input("pixels", DType::u8, {kSamples, kSize, kSize, 3}, 0, 256), kPatch,
                 {0.5f, 0.4f, 0.3f}, {0.2f, 0.3f, 0.4f}, c.output("patches", t, {kSamples * 4, 27})};
      c.run([&](Ops& ops, Stream s) { ops.patchify(a, s); });
      const Vec pixels = c.read(a.pixels);
      Vec expected(kSamples * 4 * 27);
      for (int64_t b = 0; b < kSamples; ++b)
        for (int64_t row = 0; row < kCovered; ++row)
          for (int64_t col = 0; col < kCovered; ++col)
            for (int64_t ch = 0; ch < 3; ++ch) {
              const int64_t patch = b * 4 + row / kPatch * 2 + col / kPatch;
              const int64_t column = (ch * kPatch + row % kPatch) * kPatch + col % kPatch;
              at(expected, patch * 27 + column) = (at(pixels, ((b * kSize + row) * kSize + col) * 3 + ch) / 255 -
                                                  static_cast<double>(a.mean[ch])) / static_cast<double>(a.std[ch]);
            }
      CHECK_CLOSE(c.read(a.patches), expected, bound(t));
    }
  }
}

}  // namespace blipft::test
