// SwiGLU, forward and backward; bound by memory.
#include "cuda/cuda_ops.h"
#include "cuda/vector.cuh"
#include "ops/ops_check.h"

namespace blipft {
namespace {

constexpr int kThreads = 256;

/// 1 / (1 + exp(-x)); of bf16 tensors with the hardware's exponential and reciprocal, whose errors are far below 2^-9.
template <class T>
__device__ __forceinline__ float sigmoid(float x) {
  if constexpr (sizeof(T) == 4) return 1.0f / (1.0f + expf(-x));
  else return __fdividef(1.0f, 1.0f + __expf(-x));
}

/// Block (r, c): pack c * kThreads + thread of row r. `y` and `gate_up` as in Swiglu.
template <class T, int N>
__global__ void __launch_bounds__(kThreads) swiglu_forward_kernel(const T* __restrict__ gate_up, T* __restrict__ y,
                                                                  int64_t cols) {
  const int64_t column = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * N;
  if (column >= cols) return;
  const int64_t row = blockIdx.x;
  float gate[N], up[N];
  load(gate_up + row * 2 * cols + column, gate);
  load(gate_up + row * 2 * cols + cols + column, up);
#pragma unroll
  for (int j = 0; j < N; ++j) up[j] *= gate[j] * sigmoid<T>(gate[j]);
  store(y + row * cols + column, up);
}

/// dgate_up may be gate_up: a thread reads both halves' packs before it writes them.
template <class T, int N>
__global__ void __launch_bounds__(kThreads) swiglu_backward_kernel(const T* gate_up, const T* __restrict__ dy,
                                                                   T* dgate_up, T* __restrict__ y, int64_t cols) {
  const int64_t column = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * N;
  if (column >= cols) return;
  const int64_t row = blockIdx.x, at = row * 2 * cols + column;
  float gate[N], up[N], d[N], out[N];
  load(gate_up + at, gate);
  load(gate_up + at + cols, up);
  load(dy + row * cols + column, d);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const float s = sigmoid<T>(gate[j]), silu = gate[j] * s;
    out[j] = silu * up[j];
    gate[j] = d[j] * up[j] * (s + silu * (1.0f - s));
    up[j] = d[j] * silu;
  }
  store(dgate_up + at, gate);
  store(dgate_up + at + cols, up);
  if (y) store(y + row * cols + column, out);
}

/// Calls launch(number of elements of a pack, grid).
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
  const cudaStream_t in = context(stream).stream;
  dispatch_float(args.y.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    with_packs<T>(all_aligned16(args.gate_up, args.y), args.y.rows(), args.y.cols(), [&](auto n, dim3 grid) {
      swiglu_forward_kernel<T, decltype(n)::value>
          <<<grid, kThreads, 0, in>>>(args.gate_up.as<T>(), args.y.as<T>(), args.y.cols());
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
      swiglu_backward_kernel<T, decltype(n)::value><<<grid, kThreads, 0, in>>>(
          args.gate_up.as<T>(), args.dy.as<T>(), args.dgate_up.as<T>(), args.y.as<T>(), args.dy.cols());
    });
  });
}

}  // namespace blipft
