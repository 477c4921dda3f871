// Arguments of the ops of patches of pictures of any size.
//
// Dimensions: R patches, A pixels of a patch, N hidden size.
#pragma once

#include "blipft/tensor.h"

namespace blipft {

/// values[r, ((c * time + t) * A + i)] = (pixels[r, c * A + i] / 255 - mean[c]) / std[c] for all t, where A is the area of a
/// patch. pixel / 255 is one rounding of pixel * (1 / 255) in f64. With `of_bytes` the value is (pixel - 255 mean) / (255 std).
/// Each step is f32, so that the values have the same bits as those of transformers' processors.
struct PatchValues {
  Tensor pixels;                ///< u8 [R, 3 * A]
  int64_t time = 1;             ///< equal slices of a patch
  float mean[3] = {}, std[3] = {};
  bool of_bytes = false;
  Tensor values;                ///< [R, 3 * time * A], out
};

/// x[r] += the entry for row r's position in a table of `side` * `side` entries, rounded to the compute dtype. It is entry
/// row * side + column or, with `interpolated`, the bilinear interpolation of the table to the picture's grid, with aligned
/// corners: see table_taps.h.
struct PositionTable {
  Tensor positions;             ///< i32 [4, R]: row and column of the patch, rows and columns of its picture
  int64_t side = 0;
  bool interpolated = false;
  Tensor table;                 ///< [side * side, N]; in backward: parameter gradient
  Tensor x;                     ///< [R, N], in and out; in backward: the incoming gradient
  bool accumulate = false;      ///< backward only
};

}  // namespace blipft
