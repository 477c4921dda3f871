// Patches of pictures of any size: values of pixels, and a table of positions.
#include <algorithm>

#include "cpu/cpu_ops.h"
#include "ops/ops_check.h"
#include "ops/pixel_scale.h"
#include "ops/table_taps.h"

namespace blipft::cpu {

void CpuOps::patch_values(const PatchValues& args, Stream) {
  check_args(args);
  float table[3][256];
  for (int c = 0; c < 3; ++c) {
    const PixelScale scale = pixel_scale(args, c);
    for (int pixel = 0; pixel < 256; ++pixel) table[c][pixel] = scale.of(static_cast<float>(pixel));
  }
  const int64_t area = args.pixels.cols() / 3, n = args.values.cols();
  for_each(args.values.rows(), [&](int64_t r) {
    const uint8_t* pixels = args.pixels.as<const uint8_t>() + r * 3 * area;
    float* out = thread_buffer(0, n);
    for (int64_t i = 0; i < n; ++i) out[i] = table[i / (args.time * area)][pixels[i / (args.time * area) * area + i % area]];
    store(out, args.values, r * n, n);
  });
}

void CpuOps::position_table_forward(const PositionTable& args, Stream) {
  check_args(args);
  const int64_t n = args.x.cols(), rows = args.x.rows();
  const int32_t* positions = args.positions.as<const int32_t>();
  for_each(rows, [&](int64_t r) {
    const TableTaps taps = table_taps(positions, rows, r, args.side, args.interpolated);
    BLIPFT_CHECK(taps.row.first >= 0 && taps.row.first < args.side && taps.column.first >= 0 && taps.column.first < args.side,
                 "position_table: patch ", r, " lies at ", positions[r], ", ", positions[rows + r], ", outside of a table of ", args.side);
    float *x = thread_buffer(0, n), *entry = thread_buffer(1, n), *sum = thread_buffer(2, n);
    std::fill_n(sum, n, 0.0f);
    for (const auto& [row, by_row] : {std::pair{taps.row.first, taps.row.first_weight}, {taps.row.second, taps.row.second_weight}})
      for (const auto& [column, by_column] :
           {std::pair{taps.column.first, taps.column.first_weight}, {taps.column.second, taps.column.second_weight}}) {
        load(args.table, (row * args.side + column) * n, n, entry);
        add_scaled(sum, by_row * by_column, entry, n);
      }
    round_to(args.x.dtype, sum, n);
    load(args.x, r * n, n, x);
    add_scaled(x, 1, sum, n);
    store(x, args.x, r * n, n);
  });
}

void CpuOps::position_table_backward(const PositionTable& args, Stream) {
  check_backward_args(args);
  const int64_t n = args.x.cols(), rows = args.x.rows();
  const int32_t* positions = args.positions.as<const int32_t>();
  for_each(args.table.rows(), [&](int64_t entry) {
    const auto row = static_cast<int32_t>(entry / args.side), column = static_cast<int32_t>(entry % args.side);
    float *sum = thread_buffer(0, n), *x = thread_buffer(1, n);
    std::fill_n(sum, n, 0.0f);
    for (int64_t r = 0; r < rows; ++r) {
      const float weight = table_taps(positions, rows, r, args.side, args.interpolated).of(row, column);
      if (weight == 0) continue;
      load(args.x, r * n, n, x);
      add_scaled(sum, weight, x, n);
    }
    store_gradient(sum, args.table, entry * n, n, args.accumulate);
  });
}

}  // namespace blipft::cpu
