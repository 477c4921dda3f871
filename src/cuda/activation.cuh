// ReLU and exact GELU (erf form; Hendrycks & Gimpel 2016) with their derivatives, in f32 arithmetic.
#pragma once

#include "cuda/vector.cuh"

namespace blipft {

/// The normal distribution at x: cdf, and density.
struct Gauss {
  float cdf, density;
};

/// For f32 tensors: the math library's erf.
__device__ __forceinline__ Gauss gauss_exact(float x) {
  return {0.5f * (1.0f + erff(x * 0.70710678118654752f)), 0.39894228040143268f * expf(-0.5f * x * x)};
}

/// For bf16 tensors: Abramowitz & Stegun 7.1.26, |error of erf| <= 1.5e-7, far below bf16's 2^-9. It shares its
/// exponential with the density and computes the tail directly, without cancellation. A fused kernel with erff() is
/// bound by arithmetic; this one stays bound by memory.
__device__ __forceinline__ Gauss gauss_fast(float x) {
  const float z = fabsf(x) * 0.70710678118654752f;
  float t, e;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(t) : "f"(fmaf(0.3275911f, z, 1.0f)));
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(z * z * -1.4426950408889634f));
  float poly = fmaf(1.061405429f, t, -1.453152027f);
  poly = fmaf(poly, t, 1.421413741f);
  poly = fmaf(poly, t, -0.284496736f);
  poly = fmaf(poly, t, 0.254829592f);
  const float tail = 0.5f * poly * t * e;
  return {x >= 0 ? 1.0f - tail : tail, 0.39894228040143268f * e};
}

template <class T>
__device__ __forceinline__ Gauss gauss(float x) {
  if constexpr (sizeof(T) == 4) return gauss_exact(x);
  else return gauss_fast(x);
}

template <class T>
struct Gelu {
  __device__ __forceinline__ float operator()(float x) const { return x * gauss<T>(x).cdf; }
};

/// max(x, 0) that keeps NaN, as torch does.
struct Relu {
  __device__ __forceinline__ float operator()(float x) const { return x < 0 ? 0.0f : x; }
};

}  // namespace blipft
