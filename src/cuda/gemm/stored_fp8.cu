// Matrices that are stored in fp8: conversion of parts of them, and the largest magnitude for their scale.
// Memory-bound: a thread handles 8 adjacent numbers, which are 8 bytes of fp8 and 16 or 32 bytes of values.
#include <cuda_fp8.h>

#include "cuda/cuda_ops.h"
#include "cuda/vector.cuh"
#include "ops/fp8.h"
#include "ops/ops_check.h"

namespace blipft {
namespace {

constexpr int kThreads = 256;
constexpr int kNumbers = 8;                // of a thread

/// Loads 8 numbers from `first` on; numbers at and after n are zeros.
template <class T>
__device__ __forceinline__ void load8(const T* __restrict__ values, int64_t first, int64_t n, bool aligned,
                                      float (&x)[kNumbers]) {
  if (aligned && first + kNumbers <= n) {
    load(values + first, x);
  } else {
#pragma unroll
    for (int j = 0; j < kNumbers; ++j) x[j] = first + j < n ? to_float(values[first + j]) : 0.0f;
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
encode_fp8_kernel(const T* __restrict__ values, const float* __restrict__ scale, uint8_t* __restrict__ quantized, int64_t n,
                  bool aligned) {
  const int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kNumbers;
  if (first >= n) return;
  const float factor = __frcp_rn(*scale);  // exact: a power of two
  float x[kNumbers];
  load8(values, first, n, aligned, x);
  uint8_t eight[kNumbers];
#pragma unroll
  for (int j = 0; j < kNumbers; ++j) eight[j] = __nv_cvt_float_to_fp8(x[j] * factor, __NV_SATFINITE, __NV_E4M3);
#pragma unroll
  for (int j = 0; j < kNumbers; ++j)
    if (first + j < n) quantized[first + j] = eight[j];
}

template <class T>
__global__ void __launch_bounds__(kThreads)
decode_fp8_kernel(const uint8_t* __restrict__ quantized, const float* __restrict__ scale, T* __restrict__ values, int64_t n,
                  bool aligned) {
  const float factor = *scale;
  const int64_t step = int64_t{gridDim.x} * kThreads * kNumbers;
  for (int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kNumbers; first < n; first += step) {
    const bool whole = aligned && first + kNumbers <= n;
    alignas(8) uint8_t eight[kNumbers];
    if (whole) {
      *reinterpret_cast<uint2*>(eight) = __ldg(reinterpret_cast<const uint2*>(quantized + first));
    } else {
#pragma unroll
      for (int j = 0; j < kNumbers; ++j) eight[j] = first + j < n ? quantized[first + j] : uint8_t{0};
    }
    float x[kNumbers];
#pragma unroll
    for (int j = 0; j < kNumbers; ++j)
      x[j] = __half2float(__half(__nv_cvt_fp8_to_halfraw(eight[j], __NV_E4M3))) * factor;
    if (whole) {
      store(values + first, x);
    } else {
#pragma unroll
      for (int j = 0; j < kNumbers; ++j)
        if (first + j < n) values[first + j] = from_float<T>(x[j]);
    }
  }
}

/// Raises `largest` to the bits of the largest magnitude; infinities and NaNs are largest.
template <class T>
__global__ void __launch_bounds__(kThreads)
raise_largest_kernel(const T* __restrict__ values, unsigned* largest, int64_t n, bool aligned) {
  const int64_t step = int64_t{gridDim.x} * kThreads * kNumbers;
  unsigned maximum = 0;
  for (int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kNumbers; first < n; first += step) {
    float x[kNumbers];
    load8(values, first, n, aligned, x);
#pragma unroll
    for (int j = 0; j < kNumbers; ++j) maximum = max(maximum, __float_as_uint(x[j]) & 0x7fffffffu);
  }
  maximum = __reduce_max_sync(0xffffffffu, maximum);
  if (threadIdx.x % 32 == 0) atomicMax(largest, maximum);  // an integer maximum does not depend on the order
}

__global__ void fp8_scale_kernel(const unsigned* largest, float* scale) { *scale = fp8_scale(*largest, DType::f8e4m3); }

/// Returns the number of blocks for a grid-stride loop over n numbers.
unsigned blocks_for(int64_t n, const LaunchContext& context) {
  return static_cast<unsigned>(std::min<int64_t>(ceil_div(n, kThreads * kNumbers), int64_t{context.sm_count} * 8));
}

}  // namespace

void CudaOps::encode_fp8(const Tensor& values, const Fp8Matrix& to, Stream stream) {
  check_stored_fp8("encode_fp8", values, to);
  const int64_t n = values.numel();
  if (n == 0) return;
  dispatch_cast(values.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    encode_fp8_kernel<T><<<static_cast<unsigned>(ceil_div(n, kThreads * kNumbers)), kThreads, 0, context(stream).stream>>>(
        values.as<const T>(), to.scale.as<const float>(), to.quantized.as<uint8_t>(), n, aligned16(values.data));
  });
  BLIPFT_CUDA_LAUNCHED("encode_fp8_kernel");
}

void CudaOps::decode_fp8(const Fp8Matrix& from, const Tensor& values, Stream stream) {
  check_stored_fp8("decode_fp8", values, from);
  const int64_t n = values.numel();
  if (n == 0) return;
  const LaunchContext to = context(stream);
  const bool aligned = aligned16(values.data) && reinterpret_cast<uintptr_t>(from.quantized.data) % 8 == 0;
  dispatch_cast(values.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    decode_fp8_kernel<T><<<blocks_for(n, to), kThreads, 0, to.stream>>>(
        from.quantized.as<const uint8_t>(), from.scale.as<const float>(), values.as<T>(), n, aligned);
  });
  BLIPFT_CUDA_LAUNCHED("decode_fp8_kernel");
}

void CudaOps::raise_fp8_scale(const Tensor& x, const Tensor& largest, const Tensor& scale, Stream stream) {
  check_raise_fp8_scale(x, largest, scale);
  const int64_t n = x.numel();
  const LaunchContext to = context(stream);
  if (n > 0)
    dispatch_cast(x.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      raise_largest_kernel<T><<<blocks_for(n, to), kThreads, 0, to.stream>>>(x.as<const T>(), largest.as<unsigned>(), n,
                                                                          aligned16(x.data));
    });
  BLIPFT_CUDA_LAUNCHED("raise_largest_kernel");
  fp8_scale_kernel<<<1, 1, 0, to.stream>>>(largest.as<const unsigned>(), scale.as<float>());
  BLIPFT_CUDA_LAUNCHED("fp8_scale_kernel");
}

}  // namespace blipft
