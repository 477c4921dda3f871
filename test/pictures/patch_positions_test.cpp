// Positions of pictures of any size against transformers: the golden set "patch_positions".
#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "ops/table_taps.h"
#include "pictures/patch_positions.h"
#include "support/golden_files.h"

using namespace blipft;
using nlohmann::json;

namespace {

/// The runs of text and pictures of a case, and its grids.
std::vector<PositionRun> runs_of(const json& runs) {
  std::vector<PositionRun> out;
  for (const json& run : runs)
    out.push_back(run.size() == 1 ? PositionRun{run[0], {}} : PositionRun{0, {run[0], run[1]}});
  return out;
}

int64_t checksum(const std::vector<int64_t>& values) {
  int64_t sum = 0;
  for (size_t i = 0; i < values.size(); ++i) sum += values[i] * (static_cast<int64_t>(i + 1) % 65521) % 65521;
  return sum % 65521;
}

/// Compares values [rows, columns] with short() of patch_positions.py: three rows, and the sum.
void check_values(const std::vector<float>& values, size_t columns, const json& expected) {
  const size_t rows = values.size() / columns, chosen[] = {0, rows / 2, rows - 1};
  double sum = 0;
  for (const float value : values) sum += value;
  CHECK(sum == doctest::Approx(expected[3].get<double>()).epsilon(1e-6));
  for (size_t i = 0; i < 3; ++i) {
    REQUIRE(expected[i].size() == columns);
    for (size_t c = 0; c < columns; ++c)
      CHECK(values[chosen[i] * columns + c] == doctest::Approx(expected[i][c].get<double>()).epsilon(2e-7).scale(1e-2));
  }
}

void check_tower(const json& golden, const std::vector<PatchGrid>& grids) {
  const int64_t merge = golden["merge"], head_size = golden["head_size"], side = golden["side"];
  const WindowOrder order = window_order(grids, merge, golden["window"]);
  CHECK(order.cells == golden["cells"].get<std::vector<int32_t>>());
  CHECK(order.starts == golden["starts"].get<std::vector<int32_t>>());
  const std::vector<PatchPlace> places = patch_places(grids, merge);
  std::vector<int64_t> flat, rows;
  for (const PatchPlace& place : places) flat.insert(flat.end(), {place.row, place.column});
  CHECK(checksum(flat) == golden["places"].get<int64_t>());
  std::vector<float> weights;
  size_t patch = 0;
  for (const PatchGrid& grid : grids)
    for (int64_t i = 0; i < grid.patches(); ++i, ++patch) {
      const int32_t position[] = {places[patch].row, places[patch].column, static_cast<int32_t>(grid.height), static_cast<int32_t>(grid.width)};
      const TableTaps taps = table_taps(position, 1, 0, side, true);
      for (const auto& [row, by_row] : {std::pair{taps.row.first, taps.row.first_weight}, {taps.row.second, taps.row.second_weight}})
        for (const auto& [column, by_column] :
             {std::pair{taps.column.first, taps.column.first_weight}, {taps.column.second, taps.column.second_weight}}) {
          rows.push_back(row * side + column);
          weights.push_back(by_row * by_column);
        }
    }
  CHECK(checksum(rows) == golden["tap_rows"].get<int64_t>());
  check_values(weights, 4, golden["tap_weights"]);
  check_values(tower_angles(places, head_size), static_cast<size_t>(head_size / 2), golden["angles"]);
}

}  // namespace

TEST_SUITE("patch positions") {
  TEST_CASE("positions, windows, tables and angles are transformers'") {
    std::ifstream in(testing::golden_path("patch_positions/index.json"));
    const json cases = json::parse(in);
    REQUIRE(cases.size() == 300);
    for (const json& golden : cases) {
      CAPTURE(golden["runs"].dump());
      CAPTURE(golden["merge"].get<int64_t>());
      const std::vector<PositionRun> runs = runs_of(golden["runs"]);
      const StreamPositions positions = text_positions(runs, golden["merge"]);
      for (size_t axis = 0; axis < 3; ++axis)
        CHECK(positions.axes[axis] == golden["positions"][axis].get<std::vector<int32_t>>());
      CHECK(positions.delta() == golden["delta"].get<int64_t>());
      std::vector<PatchGrid> grids;
      for (const PositionRun& run : runs)
        if (run.grid.patches() > 0) grids.push_back(run.grid);
      if (!grids.empty()) check_tower(golden, grids);
    }
  }
}
