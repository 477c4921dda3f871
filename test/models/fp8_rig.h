// Helpers of the tests of layers with products in fp8: units without a strategy, numbers, and their values in fp8.
#pragma once

#include <algorithm>
#include <random>
#include <vector>

#include "models/blocks/linear_layer.h"
#include "ops/fp8.h"
#include "ops/op_reference.h"

namespace blipft::test {

class NoUnits : public UnitAccess {
 public:
  explicit NoUnits(Tensor flat, Tensor gradient) : flat_(flat), gradient_(gradient) {}
  Tensor acquire(const Unit&) override { return flat_; }
  void release(const Unit&) override {}
  UnitGradient gradient(const Unit&) override { return {gradient_, accumulate}; }
  void publish(const Unit&) override {}
  bool accumulate = false;

 private:
  Tensor flat_, gradient_;
};

inline std::vector<float> random_numbers(int64_t n, uint32_t seed, float size) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, size);
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = normal(random);
  return values;
}

/// Returns `values` after rounding to fp8; the scale is at least that of `minimum`.
inline std::vector<double> in_fp8(const std::vector<float>& values, DType dtype, float minimum = 0) {
  uint32_t largest = bits_from_float(minimum);
  for (float value : values) largest = std::max(largest, bits_from_float(value) & 0x7fffffffu);
  const float scale = fp8_scale(largest, dtype);
  std::vector<double> rounded;
  for (float value : values)
    rounded.push_back(static_cast<double>(fp8_to_float(float_to_fp8(value / scale, dtype), dtype)) * static_cast<double>(scale));
  return rounded;
}

/// c[i, j] = sum over l of a(i, l) b(j, l), in f64.
template <class A, class B>
std::vector<double> product(int64_t m, int64_t n, int64_t k, A a, B b) {
  std::vector<double> c(static_cast<size_t>(m * n));
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j)
      for (int64_t l = 0; l < k; ++l) c[static_cast<size_t>(i * n + j)] += a(i, l) * b(j, l);
  return c;
}

inline std::vector<double> wide(const std::vector<float>& values) { return {values.begin(), values.end()}; }

inline const ParameterGroup kTrained{"trained"}, kFrozen{"frozen", false};

}  // namespace blipft::test
