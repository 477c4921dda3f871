// Blocks of codes on the CPU: plain loops, a search over all midpoints.
#pragma once

#include <cstdint>

#include "blipft/ops.h"

namespace blipft::cpu {

constexpr int64_t kMostCodes = 256;        ///< of a block

/// Numbers [0, count) of block `block`, count at most code_block(); the rest of the block's codes are those of zeros.
void encode_block(const float* values, int64_t count, const Quantized& to, int64_t block);
void decode_block(const Quantized& from, int64_t block, float* values, int64_t count);

}  // namespace blipft::cpu
