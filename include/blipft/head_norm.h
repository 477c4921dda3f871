// Norms of the heads of queries and keys (Qwen 3, Gemma 3; OLMo 2 norms the whole width at once).
#pragma once

#include <optional>

#include "blipft/ops.h"

namespace blipft {

/// RMSNorm of each group of `size` columns of a row: y = gamma (x rstd), rstd = 1 / sqrt(mean of x^2 + eps) of the group,
/// rounded as `rms` says (NormForward). The columns may be part of a wider matrix.
struct HeadNormForward {
  MatrixView x;                 ///< [M, groups * size]
  int64_t size = 0;             ///< columns that are normed together: the head size, or all columns
  Tensor gamma;                 ///< [size]
  float eps = 1e-6f;
  RmsForm rms;
  MatrixView y;                 ///< [M, groups * size], out; may be x
  Tensor rstd;                  ///< f32 [M, groups], out
  std::optional<Rotary> rotary;  ///< then turns y, which is its x
};

/// dx = d(norm)/d(x); dgamma (+)= the sum over rows and groups. Where positions turned y, dy is turned back first.
struct HeadNormBackward {
  MatrixView dy;                ///< [M, groups * size]
  MatrixView x;                 ///< [M, groups * size], what the norm read
  int64_t size = 0;
  Tensor gamma;                 ///< [size]
  RmsForm rms;
  Tensor rstd;                  ///< f32 [M, groups]
  Tensor dgamma;                ///< [size] parameter gradient, optional
  bool accumulate = false;
  MatrixView dx;                ///< [M, groups * size], out; may be dy
  std::optional<Rotary> rotary;  ///< inverse; its x is dy, and so is dx then
};

}  // namespace blipft
