// Packed rows, and dropout over them.
#pragma once

#include <cstdint>

#include "blipft/tensor.h"

namespace blipft {

/// Samples of different lengths, one after the other in the rows of an [M, N] matrix: sample b has rows starts[b] up to
/// starts[b + 1]. Absent: all samples have equally many rows. Ops that take it say what the most rows of a sample are.
struct Packing {
  Tensor starts;                ///< i32 [samples + 1], not descending, from 0 to M
  Tensor padded_rows;           ///< i32 [M]: sample * most + row of the sample: its number if all had the most rows
  explicit operator bool() const { return static_cast<bool>(starts); }
};

constexpr int64_t kMaxDropoutElements = int64_t{1} << 35;  ///< of a sample at a site: philox.h counts blocks of 8 in 32 bits

/// Inverted dropout keyed by sample and element (see philox.h): y = keep ? scale x / (1 - p) : 0. With p = 0 all elements are
/// kept, and scale alone counts.
/// Element number of row r, column c: (r % rows_per_sample) * cols + c, sample number: r / rows_per_sample; of packed
/// samples with packing.padded_rows[r] for r, so that packing changes no mask.
struct Dropout {
  float p = 0;
  uint32_t site = 0;            ///< unique per place in the model
  uint64_t seed = 0;
  Tensor sample_keys;           ///< i64 [samples]
  int64_t rows_per_sample = 1;  ///< packed: the most
  Packing packing;              ///< optional
  Tensor row_numbers;           ///< i32 [M], optional: of rows that were picked out of others, each one's number there
                                ///< (as packing.padded_rows has it); then without packing
  float scale = 1;              ///< of rows; probabilities of attention have 1
  explicit operator bool() const { return p > 0 || scale != 1; }
};

}  // namespace blipft
