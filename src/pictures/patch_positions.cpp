#include "pictures/patch_positions.h"

#include <algorithm>
#include <cmath>

#include "blipft/error.h"

namespace blipft {

StreamPositions text_positions(std::span<const PositionRun> runs, int64_t merge) {
  StreamPositions positions;
  const auto add = [&](int64_t time, int64_t row, int64_t column) {
    const int64_t values[] = {time, row, column};
    for (size_t axis = 0; axis < 3; ++axis) positions.axes[axis].push_back(static_cast<int32_t>(values[axis]));
  };
  for (const PositionRun& run : runs) {
    const int64_t start = positions.next, height = run.grid.height / merge, width = run.grid.width / merge;
    for (int64_t i = 0; i < run.text_rows; ++i) add(start + i, start + i, start + i);
    for (int64_t row = 0; row < height; ++row)
      for (int64_t column = 0; column < width; ++column) add(start, start + row, start + column);
    positions.next += run.text_rows + std::max(height, width);
  }
  return positions;
}

std::vector<PatchPlace> patch_places(std::span<const PatchGrid> grids, int64_t merge) {
  std::vector<PatchPlace> positions;
  for (const PatchGrid& grid : grids) {
    BLIPFT_CHECK(grid.height % merge == 0 && grid.width % merge == 0, grid.height, " x ", grid.width, " in ", merge);
    for (int64_t top = 0; top < grid.height; top += merge)
      for (int64_t left = 0; left < grid.width; left += merge)
        for (int64_t i = 0; i < merge * merge; ++i)
          positions.push_back({static_cast<int32_t>(top + i / merge), static_cast<int32_t>(left + i % merge)});
  }
  return positions;
}

std::vector<float> tower_angles(std::span<const PatchPlace> positions, int64_t head_size) {
  constexpr double base = 10000;
  const int64_t size = head_size / 2, pairs = size / 2;
  BLIPFT_CHECK(pairs * 4 == head_size, "heads of ", head_size, " values");
  std::vector<float> frequencies;
  for (int64_t i = 0; i < pairs; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(size);
    frequencies.push_back(1.0f / static_cast<float>(std::pow(base, double{exponent})));
  }
  std::vector<float> angles;
  angles.reserve(positions.size() * static_cast<size_t>(size));
  for (const PatchPlace& placement : positions)
    for (const int32_t position : {placement.row, placement.column})
      for (const float frequency : frequencies) angles.push_back(static_cast<float>(position) * frequency);
  return angles;
}

WindowOrder window_order(std::span<const PatchGrid> grids, int64_t merge, int64_t window) {
  WindowOrder order;
  order.starts.push_back(0);
  int64_t first = 0;
  for (const PatchGrid& grid : grids) {
    const int64_t height = grid.height / merge, width = grid.width / merge;
    for (int64_t top = 0; top < height; top += window)
      for (int64_t left = 0; left < width; left += window) {
        const int64_t bottom = std::min(top + window, height), right = std::min(left + window, width);
        for (int64_t row = top; row < bottom; ++row)
          for (int64_t column = left; column < right; ++column)
            order.cells.push_back(static_cast<int32_t>(first + row * width + column));
        order.starts.push_back(static_cast<int32_t>(static_cast<int64_t>(order.cells.size()) * merge * merge));
      }
    first += height * width;
  }
  return order;
}

}  // namespace blipft
