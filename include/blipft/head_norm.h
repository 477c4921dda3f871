// Norms of the query and key heads (Qwen 3, Gemma 3); OLMo 2 normalizes the whole width at once.
#pragma once

#include <optional>

#include "blipft/ops.h"

namespace blipft {

/// RMSNorm of each group of `size` columns of a row: y = gamma (x rstd), where rstd = 1 / sqrt(mean of x^2 + eps) of
/// the group; `rms` selects the rounding (NormForward). The columns may be part of a wider matrix.
struct HeadNormForward {
  MatrixView x;                 ///< [M, groups * size]
  int64_t size = 0;             ///< columns of a group: the head size, or all columns
  Tensor gamma;                 ///< [size]
  float eps = 1e-6f;
  RmsForm rms;
  MatrixView y;                 ///< [M, groups * size], out; may be x
  Tensor rstd;                  ///< f32 [M, groups], out
  std::optional<Rotary> rotary;  ///< optional: then rotates y, which is its x
};

/// dx = d(norm)/d(x); dgamma (+)= the sum over rows and groups. With `rotary`, dy is first rotated back.
struct HeadNormBackward {
  MatrixView dy;                ///< [M, groups * size]
  MatrixView x;                 ///< [M, groups * size], the input of the norm
  int64_t size = 0;
  Tensor gamma;                 ///< [size]
  RmsForm rms;
  Tensor rstd;                  ///< f32 [M, groups]
  Tensor dgamma;                ///< [size] parameter gradient, optional
  bool accumulate = false;
  MatrixView dx;                ///< [M, groups * size], out; may be dy
  std::optional<Rotary> rotary;  ///< optional: with inverse = true and dy as its x; dx is then dy
};

}  // namespace blipft
