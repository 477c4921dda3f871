// Arithmetic of token selection that both backends compute to the same bits, so that equal logits give equal tokens.
// Sums are integer sums, whose order does not matter. exp, log and powers consist of steps that round identically on
// all machines: no product is followed by an addition that a compiler could fuse, except in explicit fma calls.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "blipft/philox.h"

namespace blipft {

BLIPFT_HOST_DEVICE uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
BLIPFT_HOST_DEVICE float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}
BLIPFT_HOST_DEVICE uint64_t bits_of(double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
BLIPFT_HOST_DEVICE double double_of(uint64_t bits) {
  double x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/// Maps a float to an integer of the same order; -0 equals 0, and a NaN is larger than all numbers.
BLIPFT_HOST_DEVICE uint32_t score_key(float x) {
  if (x != x) return 0xffffffffu;
  const uint32_t bits = bits_of(x == 0 ? 0.0f : x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
/// Returns the float of a key that is not that of a NaN.
BLIPFT_HOST_DEVICE float score_of(uint32_t key) {
  return float_of(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

BLIPFT_HOST_DEVICE bool is_finite(float x) { return (bits_of(x) & 0x7f800000u) != 0x7f800000u; }

/// Returns a b, rounded before anything is added to it.
BLIPFT_HOST_DEVICE float rounded_product(float a, float b) { return fmaf(a, b, 0.0f); }

/// Returns e^x for x <= 0, accurate to 2^-23; 0 if x <= -80.
BLIPFT_HOST_DEVICE float exp_of(float x) {
  if (!(x > -80.0f)) return 0;
  const float n = fmaf(x, 1.44269504f, 12582912.0f) - 12582912.0f;  // rounds to the nearest integer
  float r = fmaf(n, -0.693145752f, x);                              // ln 2 as a sum of two parts
  r = fmaf(n, -1.42860677e-6f, r);
  float p = 1.0f / 5040;
  p = fmaf(p, r, 1.0f / 720), p = fmaf(p, r, 1.0f / 120), p = fmaf(p, r, 1.0f / 24), p = fmaf(p, r, 1.0f / 6);
  p = fmaf(p, r, 0.5f), p = fmaf(p, r, 1.0f), p = fmaf(p, r, 1.0f);
  return p * float_of(static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23);
}

/// Returns ln x for x > 0 that is not subnormal.
BLIPFT_HOST_DEVICE double log_of(double x) {
  const uint64_t bits = bits_of(x);
  int64_t exponent = static_cast<int64_t>(bits >> 52) - 1023;
  double m = double_of((bits & 0xfffffffffffffu) | 0x3ff0000000000000u);
  if (m > 1.4142135623730951) m *= 0.5, ++exponent;
  const double f = (m - 1) / (m + 1), s = f * f;  // ln m = 2 (f + f^3 / 3 + f^5 / 5 + ...), |f| < 0.172
  double p = 1.0 / 21;
  for (int i = 19; i >= 1; i -= 2) p = fma(p, s, 1.0 / i);
  return fma(static_cast<double>(exponent), 0.69314718055994530942, 2 * f * p);
}

/// Returns e^x with x clamped to [-700, 700].
BLIPFT_HOST_DEVICE double exp_of(double x) {
  x = x > 700 ? 700 : x < -700 ? -700 : x;
  const double n = floor(fma(x, 1.4426950408889634, 0.5));
  double r = fma(n, -6.93147180369123816490e-01, x);
  r = fma(n, -1.90821492927058770002e-10, r);
  double p = 1;  // 1 + r (1 + r / 2 (1 + r / 3 (...)))
  for (int i = 14; i >= 1; --i) p = fma(p, r / i, 1.0);
  return p * double_of(static_cast<uint64_t>(static_cast<int64_t>(n) + 1023) << 52);
}

/// Returns length^power, by which a text's score is divided, clamped to positive f32 numbers.
BLIPFT_HOST_DEVICE float length_factor(int64_t length, float power) {
  const double factor = exp_of(static_cast<double>(power) * log_of(static_cast<double>(length)));
  return factor > 1e38 ? 1e38f : factor < 1e-37 ? 1e-37f : static_cast<float>(factor);
}

/// Returns a softmax weight e^(x - largest) in units of 2^-44: the sum of up to 2^19 weights fits into 64 bits.
BLIPFT_HOST_DEVICE uint64_t softmax_weight(float x, float largest) {
  return static_cast<uint64_t>(exp_of(x - largest) * 17592186044416.0f);
}
/// Returns ln of the sum of e^(x - largest) whose weights sum to `total`.
BLIPFT_HOST_DEVICE float log_of_weights(uint64_t total) {
  return static_cast<float>(log_of(static_cast<double>(total)) - 44 * 0.69314718055994530942);
}

/// Returns the upper half of a * b: for a random 64-bit a, a random number below b.
BLIPFT_HOST_DEVICE uint64_t scaled_down(uint64_t a, uint64_t b) {
#if defined(__CUDA_ARCH__)
  return __umul64hi(a, b);
#else
  return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
#endif
}

/// Returns the random number that selects new token `number` of the text with key `text_key`.
BLIPFT_HOST_DEVICE uint64_t token_draw(uint64_t seed, int64_t text_key, int64_t number) {
  constexpr uint32_t kTokens = 0x746f6b65;  // separate from dropout sites, which count from 0
  const auto key = static_cast<uint64_t>(text_key);
  const Philox4 words = philox({static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32),
                                static_cast<uint32_t>(number), kTokens},
                               static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  return static_cast<uint64_t>(words.y) << 32 | words.x;
}

}  // namespace blipft
