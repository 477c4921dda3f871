// Numbers of the choice of tokens that both backends compute to the same bits, so that the same logits give the same
// tokens: sums are of whole numbers, which have no order; exp, log and powers are written in steps that each machine
// rounds alike (no product is followed by a sum that a compiler could join with it, other than in fma).
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

/// Whole numbers in the order of the numbers; -0 is 0, and a NaN is above all.
BLIPFT_HOST_DEVICE uint32_t score_key(float x) {
  if (x != x) return 0xffffffffu;
  const uint32_t bits = bits_of(x == 0 ? 0.0f : x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
/// The number of a key that is no NaN's.
BLIPFT_HOST_DEVICE float score_of(uint32_t key) {
  return float_of(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

BLIPFT_HOST_DEVICE bool is_finite(float x) { return (bits_of(x) & 0x7f800000u) != 0x7f800000u; }

/// a b, rounded before anything is added to it.
BLIPFT_HOST_DEVICE float rounded_product(float a, float b) { return fmaf(a, b, 0.0f); }

/// e^x for x <= 0, within 2^-23 of it; 0 below -80.
BLIPFT_HOST_DEVICE float exp_of(float x) {
  if (!(x > -80.0f)) return 0;
  const float n = fmaf(x, 1.44269504f, 12582912.0f) - 12582912.0f;  // to the nearest whole number
  float r = fmaf(n, -0.693145752f, x);                              // ln 2 in two parts
  r = fmaf(n, -1.42860677e-6f, r);
  float p = 1.0f / 5040;
  p = fmaf(p, r, 1.0f / 720), p = fmaf(p, r, 1.0f / 120), p = fmaf(p, r, 1.0f / 24), p = fmaf(p, r, 1.0f / 6);
  p = fmaf(p, r, 0.5f), p = fmaf(p, r, 1.0f), p = fmaf(p, r, 1.0f);
  return p * float_of(static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23);
}

/// ln x for x > 0 that is no subnormal number.
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

/// e^x; beyond +-700 as there.
BLIPFT_HOST_DEVICE double exp_of(double x) {
  x = x > 700 ? 700 : x < -700 ? -700 : x;
  const double n = floor(fma(x, 1.4426950408889634, 0.5));
  double r = fma(n, -6.93147180369123816490e-01, x);
  r = fma(n, -1.90821492927058770002e-10, r);
  double p = 1;  // 1 + r (1 + r / 2 (1 + r / 3 (...)))
  for (int i = 14; i >= 1; --i) p = fma(p, r / i, 1.0);
  return p * double_of(static_cast<uint64_t>(static_cast<int64_t>(n) + 1023) << 52);
}

/// length^power of a text's score, within the positive numbers that f32 has.
BLIPFT_HOST_DEVICE float length_factor(int64_t length, float power) {
  const double factor = exp_of(static_cast<double>(power) * log_of(static_cast<double>(length)));
  return factor > 1e38 ? 1e38f : factor < 1e-37 ? 1e-37f : static_cast<float>(factor);
}

/// The weights of a softmax, e^(x - largest) in units of 2^-44: sums of up to 2^19 of them fit into 64 bits.
BLIPFT_HOST_DEVICE uint64_t softmax_weight(float x, float largest) {
  return static_cast<uint64_t>(exp_of(x - largest) * 17592186044416.0f);
}
/// ln of the sum of e^(x - largest) whose weights add up to `total`.
BLIPFT_HOST_DEVICE float log_of_weights(uint64_t total) {
  return static_cast<float>(log_of(static_cast<double>(total)) - 44 * 0.69314718055994530942);
}

/// The upper half of the product: a number below b, of a random number a.
BLIPFT_HOST_DEVICE uint64_t scaled_down(uint64_t a, uint64_t b) {
#if defined(__CUDA_ARCH__)
  return __umul64hi(a, b);
#else
  return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
#endif
}

/// The random number that chooses new token `number` of the text with this key.
BLIPFT_HOST_DEVICE uint64_t token_draw(uint64_t seed, int64_t text_key, int64_t number) {
  constexpr uint32_t kTokens = 0x746f6b65;  // apart from dropout's sites, which count from 0
  const auto key = static_cast<uint64_t>(text_key);
  const Philox4 words = philox({static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32),
                                static_cast<uint32_t>(number), kTokens},
                               static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  return static_cast<uint64_t>(words.y) << 32 | words.x;
}

}  // namespace blipft
