// ReLU and GELU (exact, in its erf form, and the tanh approximation; Hendrycks & Gimpel 2016) and their derivatives, in f32
// arithmetic.
#pragma once

#include "cuda/vector.cuh"

namespace blipft {

/// Cumulative distribution function and density of the standard normal distribution at x.
struct Gauss {
  float cdf, density;
};

/// For f32 tensors: uses erff() of the math library.
__device__ __forceinline__ Gauss gauss_exact(float x) {
  return {0.5f * (1.0f + erff(x * 0.70710678118654752f)), 0.39894228040143268f * expf(-0.5f * x * x)};
}

/// For bf16 tensors: Abramowitz & Stegun 7.1.26, with an erf error of at most 1.5e-7, far below the 2^-9 of bf16. It
/// uses one exponential for erf and density and computes the tail without cancellation. A fused kernel with erff() is
/// compute-bound; with this function it stays memory-bound.
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

/// An activation and its derivative.
struct SlopedValue {
  float value, slope;
};
__device__ __forceinline__ SlopedValue gelu_tanh(float x) {
  constexpr float kTanhScale = 0.79788456080286536f, kTanhCube = 0.044715f;  // sqrt(2 / pi)
  const float t = tanhf(kTanhScale * (x + kTanhCube * x * x * x));
  const float inner = kTanhScale * (1.0f + 3.0f * kTanhCube * x * x);
  return {0.5f * x * (1.0f + t), 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * inner};
}
struct GeluTanh {
  __device__ __forceinline__ float operator()(float x) const { return gelu_tanh(x).value; }
};

/// max(x, 0) that propagates NaN, like torch.
struct Relu {
  __device__ __forceinline__ float operator()(float x) const { return x < 0 ? 0.0f : x; }
};

}  // namespace blipft
