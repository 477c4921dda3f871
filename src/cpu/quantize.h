// Block-wise quantization on the CPU with plain loops and a binary search of the midpoints.
#pragma once

#include <cstdint>

#include "blipft/ops.h"

namespace blipft::cpu {

constexpr int64_t kMaxEntries = 256;        ///< maximum number of values of a block

/// encode_block() encodes `count` <= code_block() numbers as block `block`; the other values of the block are those of
/// zeros.
void encode_block(const float* values, int64_t count, const Quantized& to, int64_t block);
void decode_block(const Quantized& from, int64_t block, float* values, int64_t count);

}  // namespace blipft::cpu
