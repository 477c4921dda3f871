// Parameters whose rows lie in another order in files.
#include <doctest/doctest.h>

#include <vector>

#include "blipft/checkpoint.h"
#include "blipft/model.h"
#include "support/temporary_directory.h"
#include "weights/stored_tensors.h"

using namespace blipft;

TEST_SUITE("row order") {
  TEST_CASE("pairs that lie side by side in files are half of the rotated elements apart here") {
    const RowOrder order{.head_size = 8, .rotated = 6};
    std::vector<int64_t> rows;
    for (int64_t row = 8; row < 16; ++row) rows.push_back(order.in_file(row));
    CHECK(rows == std::vector<int64_t>{8, 10, 12, 9, 11, 13, 14, 15});
    CHECK_FALSE(RowOrder{});
  }

  TEST_CASE("any range of a parameter is read in its own order, and written in that of files") {
    const testing::TemporaryDirectory directory;
    const ParameterGroup group{"layers"};
    constexpr int64_t kRows = 24, kColumns = 5;
    Unit unit("layer", group);
    unit.add("q.weight", {kRows, kColumns}, Init::constant(0));
    unit.add("q.bias", {kRows}, Init::constant(0));
    for (const char* name : {"q.weight", "q.bias"}) unit.order_rows(name, {.head_size = 12, .rotated = 4});
    CheckpointWriter writer(directory / "model", {{"q.weight", DType::f32, {kRows, kColumns}}, {"q.bias", DType::f32, {kRows}}});
    std::vector<float> stored(static_cast<size_t>(kRows * kColumns));
    for (size_t i = 0; i < stored.size(); ++i) stored[i] = static_cast<float>(i);
    writer.write("q.weight", 0, kRows * kColumns, stored.data());
    writer.write("q.bias", 0, kRows, stored.data());
    writer.finish();
    const SafetensorsReader reader(directory / "model");
    for (const Parameter& parameter : unit.parameters()) {
      CAPTURE(parameter.name);
      const int64_t row = parameter.numel() / kRows;
      std::vector<float> ours;
      for (int64_t i = 0; i < parameter.numel(); ++i)
        ours.push_back(static_cast<float>(parameter.rows.in_file(i / row) * row + i % row));
      for (int64_t first = 0; first < parameter.numel(); ++first)
        for (const int64_t count : {int64_t{1}, int64_t{7}, parameter.numel() - first}) {
          if (first + count > parameter.numel()) continue;
          std::vector<float> part(static_cast<size_t>(count), -1);
          read_parameter(reader, *find_stored(reader, parameter), parameter, first, count, part.data());
          CHECK(part == std::vector<float>(ours.begin() + first, ours.begin() + first + count));
        }
      order_for_files(parameter, sizeof(float), reinterpret_cast<char*>(ours.data()));
      CHECK(ours == std::vector<float>(stored.begin(), stored.begin() + parameter.numel()));
    }
  }

  TEST_CASE("rows that are no whole heads are refused") {
    const ParameterGroup group{"layers"};
    Unit unit("layer", group);
    unit.add("q.weight", {24, 5}, Init::constant(0));
    CHECK_THROWS_AS(unit.order_rows("q.weight", {.head_size = 16, .rotated = 8}), Error);
    CHECK_THROWS_AS(unit.order_rows("k.weight", {.head_size = 12, .rotated = 8}), Error);
  }
}
