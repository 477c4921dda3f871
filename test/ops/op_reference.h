// Helpers of the tests of the CPU ops against float64: numbers as double, differences, bounds.
#pragma once

#include <functional>
#include <memory>

#include "blipft/philox.h"
#include "ops/op_context.h"

namespace blipft::test {

using Vec = std::vector<double>;

/// Bounds of the normalised error. f32: sums of at most a few hundred terms in f32 err by less than 1e-6, the
/// differences of the reference by about 1e-7 (step 1e-5, double): 1e-5 leaves room for cancellation in gradients.
/// bf16: a stored value is off by at most 2^-9 of itself; three roundings in a row (stored sum, stored result, a
/// gradient through both) stay under 3 * 2^-9.
inline double bound(DType t) { return t == kF32 ? 1e-5 : 3.0 / 512; }

inline std::string name_of(DType t) { return dtype_name(t); }

struct Cpu {
  std::unique_ptr<Device> device = make_cpu_device(0);
  std::unique_ptr<Ops> ops = make_cpu_ops();
  Backend backend{*device, *ops};
};
inline Backend& cpu() {
  static Cpu owner;
  return owner.backend;
}

inline double at(const Vec& v, int64_t i) { return v[static_cast<size_t>(i)]; }
inline double& at(Vec& v, int64_t i) { return v[static_cast<size_t>(i)]; }

/// d loss / d x by central differences.
inline Vec differences(Vec x, const std::function<double(const Vec&)>& loss) {
  Vec gradient(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double value = x[i], h = 1e-5;
    x[i] = value + h;
    const double above = loss(x);
    x[i] = value - h;
    gradient[i] = (above - loss(x)) / (2 * h);
    x[i] = value;
  }
  return gradient;
}

inline double inner(const Vec& a, const Vec& b) {
  double total = 0;
  for (size_t i = 0; i < a.size(); ++i) total += a[i] * b[i];
  return total;
}

inline Vec sum_of(Vec a, const Vec& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

/// The factors (0 or scale / (1 - p)) of `count` elements of each sample, from Philox as philox.h documents it.
inline Vec dropout_factors(const Dropout& d, const Vec& keys, int64_t count) {
  Vec factors;
  for (double number : keys)
    for (int64_t e = 0; e < count; ++e) {
      const auto key = static_cast<uint64_t>(number);
      const Philox4 block = philox({static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32),
                                    static_cast<uint32_t>(e / 8), d.site},
                                   static_cast<uint32_t>(d.seed), static_cast<uint32_t>(d.seed >> 32));
      const uint32_t words[] = {block.x, block.y, block.z, block.w};
      const uint32_t half = e % 2 ? words[e % 8 / 2] / 65536 : words[e % 8 / 2] % 65536;
      const bool keep = d.p == 0 || half >= std::round(static_cast<double>(d.p) * 65536);
      factors.push_back(keep ? static_cast<double>(d.scale) / (1 - static_cast<double>(d.p)) : 0);
    }
  return factors;
}
inline Vec dropout_factors(const OpContext& c, const Dropout& d, int64_t samples, int64_t count) {
  return dropout_factors(d, d.p > 0 ? c.read(d.sample_keys) : Vec(static_cast<size_t>(samples)), count);
}

/// Numbers of the input `name` as OpContext makes them, for tensors that the op overwrites.
inline Vec numbers_named(const std::string& name, DType t, Shape shape) {
  OpContext c(cpu());
  const Tensor same = c.input(name, t, shape);
  c.run([](Ops&, Stream) {});
  return c.read(same);
}

#define CHECK_CLOSE(found, expected, limit) CHECK(normalised_error(found, expected) <= (limit))

}  // namespace blipft::test
