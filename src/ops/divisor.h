// Division by an invariant number as a multiplication, because division is slow in kernels.
#pragma once

#include <cstdint>

#include "blipft/philox.h"

namespace blipft {

/// Computes n / d for n, d < 2^31 as n m / 2^(32 + s), rounded down, where 2^s < d <= 2^(s + 1) and m = 2^(32 + s) / d,
/// rounded up (Granlund & Montgomery, "Division by Invariant Integers using Multiplication", 1994).
struct Divisor {
  uint32_t multiplier = 0, shift = 0;  ///< multiplier 0: division by 1

  static Divisor of(int64_t d) {
    if (d <= 1) return {};
    uint32_t shift = 0;
    while ((int64_t{1} << (shift + 1)) < d) ++shift;
    const uint64_t power = uint64_t{1} << (32 + shift), divisor = static_cast<uint64_t>(d);
    return {static_cast<uint32_t>((power + divisor - 1) / divisor), shift};
  }
  BLIPFT_HOST_DEVICE uint32_t divide(uint32_t n) const {
#if defined(__CUDA_ARCH__)
    return multiplier == 0 ? n : __umulhi(n, multiplier) >> shift;
#else
    return multiplier == 0 ? n : static_cast<uint32_t>(uint64_t{n} * multiplier >> 32) >> shift;
#endif
  }
};

}  // namespace blipft
