// Patches of pictures of any size: values of pixels, and a table of positions. The gradient of the table uses no atomics: a
// block owns an entry, and adds the rows of the patches that read it in their order.
#include "cuda/cuda_ops.h"
#include "cuda/vector.cuh"
#include "ops/ops_check.h"
#include "ops/pixel_scale.h"
#include "ops/table_taps.h"

namespace blipft {
namespace {

constexpr int kThreads = 256;

struct PixelScales {
  PixelScale colours[3];
};

/// One block per patch.
template <class T>
__global__ void __launch_bounds__(kThreads)
patch_values_kernel(const uint8_t* __restrict__ pixels, T* __restrict__ values, int area, int time, PixelScales scales) {
  const uint8_t* from = pixels + int64_t{blockIdx.x} * 3 * area;
  T* to = values + int64_t{blockIdx.x} * 3 * time * area;
  for (int i = threadIdx.x; i < 3 * area; i += kThreads) {
    const int colour = i / area;
    const T value = from_float<T>(scales.colours[colour].of(static_cast<float>(from[i])));
    for (int t = 0; t < time; ++t) to[(colour * time + t) * area + i - colour * area] = value;
  }
}

struct TableArgs {
  const int32_t* positions = nullptr;
  int64_t rows = 0, cols = 0;
  int32_t side = 0;
  bool interpolated = false, accumulate = false;

  __device__ __forceinline__ TableTaps taps(int64_t row) const { return table_taps(positions, rows, row, side, interpolated); }
};

TableArgs kernel_args(const PositionTable& args) {
  return {args.positions.as<const int32_t>(), args.x.rows(), args.x.cols(), static_cast<int32_t>(args.side), args.interpolated,
          args.accumulate};
}

/// One block per patch.
template <class T>
__global__ void __launch_bounds__(kThreads) position_table_kernel(const T* __restrict__ table, T* __restrict__ x, TableArgs args) {
  const TableTaps taps = args.taps(blockIdx.x);
  const int64_t side = args.side, cols = args.cols;
  const T* const above = table + taps.row.first * side * cols;
  const T* const below = table + taps.row.second * side * cols;
  const int64_t left = taps.column.first * cols, right = taps.column.second * cols;
  const float weights[4] = {taps.row.first_weight * taps.column.first_weight, taps.row.first_weight * taps.column.second_weight,
                            taps.row.second_weight * taps.column.first_weight, taps.row.second_weight * taps.column.second_weight};
  T* const row = x + blockIdx.x * cols;
  for (int64_t c = threadIdx.x; c < cols; c += kThreads) {
    float sum = weights[0] * to_float(above[left + c]);
    if (args.interpolated) {
      sum = fmaf(weights[1], to_float(above[right + c]), sum);
      sum = fmaf(weights[2], to_float(below[left + c]), sum);
      sum = fmaf(weights[3], to_float(below[right + c]), sum);
    }
    row[c] = from_float<T>(to_float(row[c]) + to_float(from_float<T>(sum)));
  }
}

/// blockIdx.x is an entry of the table, blockIdx.y a tile of columns.
template <class T, class Out>
__global__ void __launch_bounds__(kThreads)
position_table_gradient_kernel(const T* __restrict__ x, Out* __restrict__ table, TableArgs args) {
  __shared__ uint32_t matches[kThreads / 32];
  __shared__ float weights[kThreads];
  const int32_t row = static_cast<int32_t>(blockIdx.x) / args.side, column = static_cast<int32_t>(blockIdx.x) % args.side;
  const int64_t c = int64_t{blockIdx.y} * kThreads + threadIdx.x;
  float sum = 0;
  for (int64_t base = 0; base < args.rows; base += kThreads) {
    const int64_t patch = base + threadIdx.x;
    const float weight = patch < args.rows ? args.taps(patch).of(row, column) : 0.0f;
    const uint32_t found = __ballot_sync(0xffffffffu, weight != 0);
    if (!__syncthreads_or(weight != 0)) continue;  // all threads have read the matches of the preceding iteration
    weights[threadIdx.x] = weight;
    if (threadIdx.x % 32 == 0) matches[threadIdx.x / 32] = found;
    __syncthreads();
    if (c >= args.cols) continue;
    for (int w = 0; w < kThreads / 32; ++w)
      for (uint32_t bits = matches[w]; bits != 0; bits &= bits - 1) {
        const int i = w * 32 + __ffs(static_cast<int>(bits)) - 1;
        sum = fmaf(weights[i], to_float(x[(base + i) * args.cols + c]), sum);
      }
  }
  if (c >= args.cols) return;
  Out* const to = table + int64_t{blockIdx.x} * args.cols + c;
  *to = from_float<Out>(args.accumulate ? to_float(*to) + sum : sum);
}

}  // namespace

void CudaOps::patch_values(const PatchValues& args, Stream stream) {
  check_args(args);
  if (args.values.numel() == 0) return;
  PixelScales scales;
  for (int c = 0; c < 3; ++c) scales.colours[c] = pixel_scale(args, c);
  dispatch_float(args.values.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    patch_values_kernel<T><<<static_cast<unsigned>(args.values.rows()), kThreads, 0, context(stream).stream>>>(
        args.pixels.as<const uint8_t>(), args.values.as<T>(), static_cast<int>(args.pixels.cols() / 3),
        static_cast<int>(args.time), scales);
  });
  BLIPFT_CUDA_LAUNCHED("patch_values_kernel");
}

void CudaOps::position_table_forward(const PositionTable& args, Stream stream) {
  check_args(args);
  if (args.x.numel() == 0) return;
  dispatch_float(args.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    position_table_kernel<T><<<static_cast<unsigned>(args.x.rows()), kThreads, 0, context(stream).stream>>>(
        args.table.as<const T>(), args.x.as<T>(), kernel_args(args));
  });
  BLIPFT_CUDA_LAUNCHED("position_table_kernel");
}

void CudaOps::position_table_backward(const PositionTable& args, Stream stream) {
  check_backward_args(args);
  const dim3 grid(static_cast<unsigned>(args.table.rows()), static_cast<unsigned>(ceil_div(args.x.cols(), kThreads)));
  dispatch_float(args.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    dispatch_float(args.table.dtype, [&](auto out_tag) {
      using Out = typename decltype(out_tag)::type;
      position_table_gradient_kernel<T, Out><<<grid, kThreads, 0, context(stream).stream>>>(
          args.x.as<const T>(), args.table.as<Out>(), kernel_args(args));
    });
  });
  BLIPFT_CUDA_LAUNCHED("position_table_gradient_kernel");
}

}  // namespace blipft
