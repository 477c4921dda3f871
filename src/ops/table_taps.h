// Bilinear interpolation of a square table of positions to the grid of a picture, with aligned corners, as Qwen3-VL
// computes it in f32. For both backends.
#pragma once

#include <cstdint>

#include "blipft/philox.h"

namespace blipft {

/// The two neighbouring entries of a table's axis, and the weight of each.
struct AxisTaps {
  int32_t first = 0, second = 0;
  float first_weight = 1, second_weight = 0;

  /// Returns the weight of entry `index`.
  BLIPFT_HOST_DEVICE float of(int32_t index) const {
    return (index == first ? first_weight : 0.0f) + (index == second ? second_weight : 0.0f);
  }
};

/// For patch `index` of `length` along an axis of `side` entries. Not interpolated: entry `index` itself.
BLIPFT_HOST_DEVICE AxisTaps axis_taps(int32_t index, int32_t length, int32_t side, bool interpolated) {
  if (!interpolated) return {index, index, 1.0f, 0.0f};
  const int32_t last = side - 1, steps = length > 1 ? length - 1 : 1;
  const float position = static_cast<float>(index) * static_cast<float>(last) / static_cast<float>(steps);
  const auto first = static_cast<int32_t>(position);
  const float fraction = position - static_cast<float>(first);
  return {first, first < last ? first + 1 : last, 1.0f - fraction, fraction};
}

/// The taps of a patch: the rows of the table are row tap * side + column tap.
struct TableTaps {
  AxisTaps row, column;
  BLIPFT_HOST_DEVICE float of(int32_t of_row, int32_t of_column) const { return row.of(of_row) * column.of(of_column); }
};
/// `positions` as in PositionTable, of `count` patches.
BLIPFT_HOST_DEVICE TableTaps table_taps(const int32_t* positions, int64_t count, int64_t patch, int64_t side, bool interpolated) {
  const auto of = [=](int64_t axis) { return positions[axis * count + patch]; };
  return {axis_taps(of(0), of(2), static_cast<int32_t>(side), interpolated),
          axis_taps(of(1), of(3), static_cast<int32_t>(side), interpolated)};
}

}  // namespace blipft
