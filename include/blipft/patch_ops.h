// Arguments of the ops of patches of pictures, of one size and of any size.
//
// Dimensions: R patches, A pixels of a patch, N hidden size; of pictures of one size: B pictures, S side in pixels, P patches.
#pragma once

#include "blipft/tensor.h"

namespace blipft {

/// patches[b * P + p, (c * patch + y) * patch + x] = (pixel / 255 - mean[c]) / std[c], where p counts patches in
/// row-major order. Pixels right of and below the last whole patch are ignored, as in a convolution with stride
/// `patch`.
struct Patchify {
  Tensor pixels;                ///< u8 [B, S, S, 3]
  int64_t patch = 14;
  float mean[3], std[3];
  Tensor patches;               ///< [B * P, 3 * patch * patch], out; P = floor(S / patch)^2
};

/// x[b, 0] = class_embedding + positions[0]; x[b, 1 + p] = patch[b, p] + positions[1 + p]
struct VisionEmbed {
  Tensor patches;               ///< [B * P, N]; in backward: gradient, out
  Tensor class_embedding;       ///< [N]; in backward: parameter gradient
  Tensor positions;             ///< [1 + P, N]; in backward: parameter gradient
  Tensor x;                     ///< [B * (1 + P), N], out; in backward: the incoming gradient
  bool accumulate = false;      ///< backward only
  bool parameters = true;       ///< backward only: true if parameter gradients are wanted
};

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
