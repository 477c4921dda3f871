// Positions of pictures of any size: of their rows in a text, of their patches in the picture, and in a tower's windows. All functions are pure and run on the host.
//
// Patches are in block order: the merge * merge patches of a cell, which become one row of the text, are neighbours, and
// cells are ordered by rows. Pictures follow each other.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace blipft {

/// The patches of a picture.
struct PatchGrid {
  int64_t height = 0, width = 0;
  int64_t patches() const { return height * width; }
};

/// A part of a sample: rows of text or, with a grid, the rows of a picture.
struct PositionRun {
  int64_t text_rows = 0;
  PatchGrid grid;
};

/// Positions on three axes: time, row and column.
struct StreamPositions {
  std::array<std::vector<int32_t>, 3> axes;  ///< [rows] each
  int64_t next = 0;                          ///< position on all axes of the row after the last
  /// Returns the difference between the position and the index of the rows that are generated.
  int64_t delta() const { return next - static_cast<int64_t>(axes[0].size()); }
};
/// Returns the positions of a sample's rows. A picture takes one position on the time axis, and the text after it
/// continues behind its longer side.
StreamPositions text_positions(std::span<const PositionRun> runs, int64_t merge);

/// Row and column of a patch.
struct PatchPlace {
  int32_t row = 0, column = 0;
  bool operator==(const PatchPlace&) const = default;
};
std::vector<PatchPlace> patch_places(std::span<const PatchGrid> grids, int64_t merge);

/// Returns the angles by which the pairs of a tower's heads turn, f32 [patches, head_size / 2]: the first half from the
/// row, the second from the column.
std::vector<float> tower_angles(std::span<const PatchPlace> positions, int64_t head_size);

/// Cells in the order of windows.
struct WindowOrder {
  std::vector<int32_t> cells;    ///< [cells]: cell at each position; cells are numbered over all pictures
  std::vector<int32_t> starts;   ///< [windows + 1]: first patch of each window, and the number of patches
};
/// Cuts each picture into windows of `window` * `window` cells, which the edges of the picture clip.
WindowOrder window_order(std::span<const PatchGrid> grids, int64_t merge, int64_t window);

}  // namespace blipft
