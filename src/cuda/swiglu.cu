// SwiGLU and the variants with other gates, forward and backward; memory-bound.
#include "cuda/activation.cuh"
#include "cuda/cuda_ops.h"
#include "cuda/device/overlap.cuh"
#include "cuda/gemm/largest.cuh"
#include "cuda/vector.cuh"
#include "ops/ops_check.h"

namespace blipft {
namespace {

constexpr int kThreads = 256;

/// 1 / (1 + exp(-x)); for bf16 with the hardware's exponential and reciprocal, whose errors are far below 2^-9.
template <class T>
__device__ __forceinline__ float sigmoid(float x) {
  if constexpr (sizeof(T) == 4) return 1.0f / (1.0f + expf(-x));
  else return __fdividef(1.0f, 1.0f + __expf(-x));
}

/// Value and derivative of the activations other than silu at g.
template <GateActivation kGate>
__device__ __forceinline__ SlopedValue gate_value(float g) {
  constexpr float kSqrtHalf = 0.70710678118654752f, kInvSqrtTwoPi = 0.39894228040143268f;
  if constexpr (kGate == GateActivation::relu) {
    return {g < 0 ? 0.0f : g, g > 0 ? 1.0f : 0.0f};
  } else if constexpr (kGate == GateActivation::gelu) {
    const float phi = 0.5f * (1.0f + erff(g * kSqrtHalf));
    return {g * phi, phi + g * kInvSqrtTwoPi * expf(-0.5f * g * g)};
  } else {
    return gelu_tanh(g);
  }
}

/// Computes one pack of swiglu_forward_kernel; returns the bits of the pack's largest |y|.
template <class T, int N, GateActivation kGate>
__device__ __forceinline__ unsigned swiglu_forward(const T* __restrict__ gate_up, T* __restrict__ y, int64_t row,
                                                   int64_t column, int64_t cols) {
  float gate[N], up[N];
  load(gate_up + row * 2 * cols + column, gate);
  load(gate_up + row * 2 * cols + cols + column, up);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    if constexpr (kGate == GateActivation::silu) up[j] *= gate[j] * sigmoid<T>(gate[j]);
    else up[j] *= gate_value<kGate>(gate[j]).value;
  }
  store(y + row * cols + column, up);
  return larger(0, packed<T>(up));
}

/// Block (r, c) computes packs c * kThreads + thread of row r. `y`, `gate_up` and `amax` are as in Swiglu.
template <class T, int N, GateActivation kGate, bool kAmax>
__global__ void __launch_bounds__(kThreads) swiglu_forward_kernel(const T* __restrict__ gate_up, T* __restrict__ y,
                                                                  int64_t cols, unsigned* amax) {
  join_chain();
  const int64_t column = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * N;
  unsigned maximum = 0;
  if (column < cols) maximum = swiglu_forward<T, N, kGate>(gate_up, y, blockIdx.x, column, cols);
  if constexpr (kAmax) raise_by_block(maximum, amax);
}

/// Computes one pack of swiglu_backward_kernel; returns the bits of its largest |dgate_up|. dgate_up may be gate_up: a
/// thread reads the packs of both halves before it writes them.
template <class T, int N, GateActivation kGate>
__device__ __forceinline__ unsigned swiglu_backward(const T* gate_up, const T* __restrict__ dy, T* dgate_up,
                                                    T* __restrict__ y, int64_t row, int64_t column, int64_t cols) {
  const int64_t at = row * 2 * cols + column;
  float gate[N], up[N], d[N], out[N];
  load(gate_up + at, gate);
  load(gate_up + at + cols, up);
  load(dy + row * cols + column, d);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    if constexpr (kGate != GateActivation::silu) {
      const SlopedValue of = gate_value<kGate>(gate[j]);
      out[j] = of.value * up[j];
      gate[j] = d[j] * up[j] * of.slope;
      up[j] = d[j] * of.value;
    } else {
      const float s = sigmoid<T>(gate[j]), silu = gate[j] * s;
      out[j] = silu * up[j];
      gate[j] = d[j] * up[j] * (s + silu * (1.0f - s));
      up[j] = d[j] * silu;
    }
  }
  store_streaming(dgate_up + at, gate);
  store_streaming(dgate_up + at + cols, up);
  if (y) store_streaming(y + row * cols + column, out);
  return larger(larger(0, packed<T>(gate)), packed<T>(up));
}

template <class T, int N, GateActivation kGate, bool kAmax>
__global__ void __launch_bounds__(kThreads) swiglu_backward_kernel(const T* gate_up, const T* __restrict__ dy,
                                                                   T* dgate_up, T* __restrict__ y, int64_t cols,
                                                                   unsigned* amax) {
  const int64_t column = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * N;
  unsigned maximum = 0;
  if (column < cols) maximum = swiglu_backward<T, N, kGate>(gate_up, dy, dgate_up, y, blockIdx.x, column, cols);
  if constexpr (kAmax) raise_by_block(maximum, amax);
}

/// Calls launch(activation) with the activation as an integral constant.
template <class Launch>
void with_gate(GateActivation activation, const Launch& launch) {
  using enum GateActivation;
  switch (activation) {
    case silu: return launch(std::integral_constant<GateActivation, silu>());
    case gelu: return launch(std::integral_constant<GateActivation, gelu>());
    case gelu_tanh: return launch(std::integral_constant<GateActivation, gelu_tanh>());
    case relu: return launch(std::integral_constant<GateActivation, relu>());
  }
}

/// Calls launch(elements of a pack, grid).
template <class T, class Launch>
void with_packs(bool aligned, int64_t rows, int64_t cols, const Launch& launch) {
  const auto grid = [&](int n) {
    return dim3(static_cast<unsigned>(rows), static_cast<unsigned>(ceil_div(ceil_div(cols, n), kThreads)));
  };
  if (rows == 0 || cols == 0) return;
  if (aligned && cols % kVector<T> == 0) launch(std::integral_constant<int, kVector<T>>(), grid(kVector<T>));
  else launch(std::integral_constant<int, 1>(), grid(1));
  BLIPFT_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void CudaOps::swiglu_forward(const Swiglu& args, Stream stream) {
  check_args(args);
  const LaunchContext to = context(stream);
  dispatch_float(args.y.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    with_packs<T>(all_aligned16(args.gate_up, args.y), args.y.rows(), args.y.cols(), [&](auto n, dim3 grid) {
      with_gate(args.activation, [&](auto gate) {
        dispatch_bool(static_cast<bool>(args.amax), [&](auto amax) {
          launch_overlapped(swiglu_forward_kernel<T, decltype(n)::value, decltype(gate)::value, decltype(amax)::value>, grid,
                            kThreads, 0, to, args.gate_up.as<T>(), args.y.as<T>(), args.y.cols(), args.amax.as<unsigned>());
        });
      });
    });
  });
}

void CudaOps::swiglu_backward(const Swiglu& args, Stream stream) {
  check_backward_args(args);
  const cudaStream_t in = context(stream).stream;
  dispatch_float(args.dy.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const bool aligned = all_aligned16(args.gate_up, args.dy, args.dgate_up, args.y);
    with_packs<T>(aligned, args.dy.rows(), args.dy.cols(), [&](auto n, dim3 grid) {
      with_gate(args.activation, [&](auto gate) {
        dispatch_bool(static_cast<bool>(args.amax), [&](auto amax) {
          swiglu_backward_kernel<T, decltype(n)::value, decltype(gate)::value, decltype(amax)::value>
              <<<grid, kThreads, 0, in>>>(args.gate_up.as<T>(), args.dy.as<T>(), args.dgate_up.as<T>(), args.y.as<T>(),
                                          args.dy.cols(), args.amax.as<unsigned>());
        });
      });
    });
  });
}

}  // namespace blipft
