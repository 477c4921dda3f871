// Conversion of bf16 and f16 bit patterns to and from float on the host, rounding to nearest even.
#pragma once

#include <cstdint>
#include <cstring>

namespace blipft {

inline float float_from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline uint32_t bits_from_float(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

/// The bits of a bf16 number are the upper half of its f32 bits.
inline float bf16_to_float(uint16_t bits) { return float_from_bits(static_cast<uint32_t>(bits) << 16); }

/// Rounds to nearest even; a NaN stays a NaN (the lower half of its payload is lost, the quiet bit is set).
inline uint16_t float_to_bf16(float value) {
  const uint32_t bits = bits_from_float(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40u;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

/// Converts IEEE binary16 (1 sign, 5 exponent, 10 fraction bits), including subnormals.
inline float f16_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 0x1fu, fraction = half & 0x3ffu;
  if (exponent == 0x1f) return float_from_bits(sign | 0x7f800000u | (fraction << 13));
  if (exponent != 0) return float_from_bits(sign | ((exponent + 112) << 23) | (fraction << 13));
  // A subnormal number is fraction * 2^-24, which is exact in f32.
  const float magnitude = static_cast<float>(fraction) * (1.0f / 16777216.0f);
  return float_from_bits(sign | bits_from_float(magnitude));
}

/// Rounds to nearest even; a magnitude of at least 65504 + half a step becomes infinity.
inline uint16_t float_to_f16(float value) {
  const uint32_t bits = bits_from_float(value);
  const uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {
    // For a subnormal result, adding 0.5 makes the last bit of the sum worth 2^-24, so the FPU does the rounding.
    const float shifted = float_from_bits(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (bits_from_float(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | (rounded >> 13));
}

}  // namespace blipft
