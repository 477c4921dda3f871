// Rotary positions, in place: one block a row, its angles once for all heads.
#include "cuda/cuda_ops.h"
#include "cuda/device/overlap.cuh"
#include "cuda/gemm/largest.cuh"
#include "cuda/vector.cuh"
#include "ops/ops_check.h"

namespace blipft {
namespace {

constexpr int kThreads = 256;

struct RotaryArgs {
  int64_t row_stride = 0;
  int pairs = 0, heads = 0;                  ///< of a head those that turn: D / 2, or fewer
  int head_size = 0;
  float magnitude = 1;
  bool inverse = false;
  const int32_t* positions = nullptr;
  unsigned* amax = nullptr;                  ///< optional
  float frequencies[Rotary::kMostFrequencies] = {};
};

/// A thread turns N neighbouring pairs of a head at a time.
template <class T, int N>
__global__ void __launch_bounds__(kThreads) rotary_kernel(T* x, const __grid_constant__ RotaryArgs args) {
  __shared__ __align__(16) float cosines[Rotary::kMostFrequencies], sines[Rotary::kMostFrequencies];
  const int thread = threadIdx.x, pairs = args.pairs;
  join_chain();
  if (thread < pairs) {
    float s, c;
    sincosf(static_cast<float>(args.positions[blockIdx.x]) * args.frequencies[thread], &s, &c);
    cosines[thread] = c * args.magnitude;
    sines[thread] = (args.inverse ? -s : s) * args.magnitude;
  }
  __syncthreads();
  T* const row = x + blockIdx.x * args.row_stride;
  const int of_head = pairs / N, count = of_head * args.heads;
  unsigned most = 0;
  for (int i = thread; i < count; i += kThreads) {
    const int head = i / of_head, first = (i - head * of_head) * N;
    T* const at = row + head * args.head_size + first;
    float a[N], b[N], turned_a[N], turned_b[N];
    load(at, a);
    load(at + pairs, b);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float c = cosines[first + j], s = sines[first + j];
      turned_a[j] = a[j] * c - b[j] * s;
      turned_b[j] = b[j] * c + a[j] * s;
    }
    store(at, turned_a);
    store(at + pairs, turned_b);
    if (args.amax) most = larger(larger(most, packed<T>(turned_a)), packed<T>(turned_b));
  }
  if (args.amax) raise_by_block(most, args.amax);
}

}  // namespace

void CudaOps::rotary(const Rotary& args, Stream stream) {
  check_args(args);
  const LaunchContext context = this->context(stream);
  RotaryArgs kernel_args;
  kernel_args.row_stride = args.x.row_stride;
  kernel_args.pairs = static_cast<int>((args.rotated > 0 ? args.rotated : args.head_size) / 2);
  kernel_args.head_size = static_cast<int>(args.head_size);
  kernel_args.magnitude = args.magnitude;
  kernel_args.heads = static_cast<int>(args.x.cols() / args.head_size);
  kernel_args.inverse = args.inverse;
  kernel_args.amax = args.amax.as<unsigned>();
  kernel_args.positions = args.positions.as<int32_t>();
  std::copy_n(args.frequencies, kernel_args.pairs, kernel_args.frequencies);
  const auto rows = static_cast<unsigned>(args.x.rows());
  if (rows == 0) return;
  dispatch_float(args.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* const x = static_cast<T*>(args.x.data);
    const auto fits = [&](int n) {           // whole packs, each at a multiple of its size
      return kernel_args.pairs % n == 0 && args.head_size % n == 0 && args.x.row_stride % n == 0 &&
             reinterpret_cast<uintptr_t>(x) % (sizeof(T) * static_cast<size_t>(n)) == 0;
    };
    const auto launch = [&](auto n) {
      launch_overlapped(rotary_kernel<T, decltype(n)::value>, dim3(rows), kThreads, 0, context, x, kernel_args);
    };
    if (fits(kVector<T>)) launch(std::integral_constant<int, kVector<T>>{});
    else if (fits(2)) launch(std::integral_constant<int, 2>{});
    else launch(std::integral_constant<int, 1>{});
  });
}

}  // namespace blipft
