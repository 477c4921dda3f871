// The 8-bit floats of matrix products (OCP "8-bit floating point specification", 2023): conversion from and to float,
// and the scale of a matrix. Both backends compute scales here and round like the GPU's conversion instructions.
#pragma once

#include <bit>
#include <cstdint>

#include "blipft/tensor.h"
#include "ops/bf16.h"

namespace blipft {

/// Mantissa bits, exponent bias, and exponent of the largest number, which is 1.75 * 2^top in both formats.
struct Fp8Form {
  int mantissa, bias, top;
};
constexpr Fp8Form fp8_form(DType dtype) {
  return dtype == DType::f8e4m3 ? Fp8Form{3, 7, 8} : Fp8Form{2, 15, 15};
}

/// Returns the largest exponent in [-126, 126] for which largest * 2^exponent is at most the largest fp8 number; 0 if
/// `largest`, the bits of a matrix's largest |x|, is zero or not finite.
constexpr int fp8_exponent(uint32_t largest, DType dtype) {
  constexpr uint32_t kSignificand = 0x007fffffu, kThreeQuarters = 0x00600000u;
  if (largest == 0 || largest >= 0x7f800000u) return 0;
  const int exponent = fp8_form(dtype).top - (static_cast<int>(largest >> 23) - 127) -
                       ((largest & kSignificand) > kThreeQuarters);
  return exponent > 126 ? 126 : exponent < -126 ? -126 : exponent;  // 2^exponent and its inverse are normal
}
constexpr float power_of_two(int exponent) { return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23); }
/// Returns Fp8Cast::scale.
constexpr float fp8_scale(uint32_t largest, DType dtype) {
  return largest >= 0x7f800000u ? std::bit_cast<float>(0x7fc00000u) : power_of_two(-fp8_exponent(largest, dtype));
}

/// Rounds to nearest even and saturates at the largest number; a NaN becomes 0x7f.
inline uint8_t float_to_fp8(float value, DType dtype) {
  const Fp8Form form = fp8_form(dtype);
  const uint32_t bits = bits_from_float(value), magnitude = bits & 0x7fffffffu;
  const auto sign = static_cast<uint8_t>(bits >> 24 & 0x80u);
  if (magnitude > 0x7f800000u) return 0x7f;
  const int dropped = 23 - form.mantissa;
  const uint32_t largest = (static_cast<uint32_t>(form.top + 127) << 23) | 0x00600000u;
  uint32_t code = 0;
  if (magnitude >= (static_cast<uint32_t>(128 - form.bias) << 23)) {  // at least the smallest normal number, 2^(1 - bias)
    const uint32_t capped = magnitude < largest ? magnitude : largest;
    const uint32_t rounded = capped + (1u << (dropped - 1)) - 1 + ((capped >> dropped) & 1u);
    code = (rounded >> dropped) - (static_cast<uint32_t>(127 - form.bias) << form.mantissa);
  } else {
    // The last bit of the sum is worth the smallest subnormal number, so the FPU does the rounding.
    const float magic = power_of_two(24 - form.bias - form.mantissa);
    code = bits_from_float(float_from_bits(magnitude) + magic) - bits_from_float(magic);
  }
  return static_cast<uint8_t>(sign | code);
}

inline float fp8_to_float(uint8_t code, DType dtype) {
  const Fp8Form form = fp8_form(dtype);
  const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24, magnitude = code & 0x7fu;
  const uint32_t exponent = magnitude >> form.mantissa, fraction = magnitude & ((1u << form.mantissa) - 1);
  if (dtype == DType::f8e4m3 ? magnitude == 0x7f : exponent == 0x1f)
    return float_from_bits(sign | (dtype == DType::f8e5m2 && fraction == 0 ? 0x7f800000u : 0x7fc00000u));
  if (exponent != 0)
    return float_from_bits(sign | (exponent + static_cast<uint32_t>(127 - form.bias)) << 23 | fraction << (23 - form.mantissa));
  const float value = static_cast<float>(fraction) * power_of_two(1 - form.bias - form.mantissa);
  return float_from_bits(sign | bits_from_float(value));
}

}  // namespace blipft
