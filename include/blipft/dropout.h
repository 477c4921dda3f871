// Packing of samples into rows, and dropout over such rows.
#pragma once

#include <cstdint>

#include "blipft/tensor.h"

namespace blipft {

/// Samples of different lengths that are concatenated in the rows of an [M, N] matrix: sample b has rows starts[b] to
/// starts[b + 1] - 1. If absent, all samples have the same number of rows. An op with packed rows also has an argument
/// for the maximum number of rows of a sample.
struct Packing {
  Tensor starts;                ///< i32 [samples + 1], not descending, from 0 to M
  Tensor padded_rows;           ///< i32 [M]: sample * maximum + row in the sample: the row's index in a padded batch
  explicit operator bool() const { return static_cast<bool>(starts); }
};

constexpr int64_t kMaxDropoutElements = int64_t{1} << 35;  ///< per sample and site: 2^32 blocks of 8 (philox.h)

/// Inverted dropout keyed by sample and element (see philox.h): y = keep ? scale x / (1 - p) : 0. With p = 0 all
/// elements are kept and only multiplied by scale.
/// The element number of row r, column c is (r % rows_per_sample) * cols + c, and its sample number r /
/// rows_per_sample. For packed samples packing.padded_rows[r] replaces r, so that packing changes no mask.
struct Dropout {
  float p = 0;
  uint32_t site = 0;            ///< unique for each dropout layer of the model
  uint64_t seed = 0;
  Tensor sample_keys;           ///< i64 [samples]
  int64_t rows_per_sample = 1;  ///< if packed, the maximum
  Packing packing;              ///< optional
  Tensor row_numbers;           ///< i32 [M], optional, not with packing: for rows that were selected from a larger
                                ///< matrix, their index there (like packing.padded_rows)
  float scale = 1;              ///< factor of the output rows; must be 1 for attention probabilities
  explicit operator bool() const { return p > 0 || scale != 1; }
};

}  // namespace blipft
