// Forward of LayerNorm and RMSNorm: residual + dropout(x), statistics and output in one kernel that keeps the row in
// registers.
#include "cuda/cuda_ops.h"
#include "cuda/device/overlap.cuh"
#include "cuda/gemm/largest.cuh"
#include "cuda/vector.cuh"
#include "ops/ops_check.h"

namespace blipft {
namespace {

struct ForwardArgs {
  int64_t rows = 0, cols = 0;
  float eps = 0, scale = 0;        ///< scale: 1 / cols
  DropoutKernelArgs dropout;
  float *mean = nullptr, *rstd = nullptr;  ///< mean is null for RMSNorm
  RmsForm rms;
  unsigned* amax = nullptr;        ///< optional
};

/// Applies gamma of RMSNorm to a normalized value, which is rounded first unless `form` says otherwise.
template <class T>
__device__ __forceinline__ float rms_output(float scaled, float gamma, const RmsForm& form) {
  return (form.rounds_once ? scaled : to_float(from_float<T>(scaled))) * (form.offset + gamma);
}

/// One block per row; a thread holds kPacks packs of N elements that are `blockDim.x` packs apart. All loads of a row
/// precede its stores, and no thread reads another's elements, so sum or y may be x or residual.
// The kernel has 86 lines: three passes over a row in registers, ordered so that the sums' barriers hide the loads.
template <class T, int N, int kPacks, bool kRms, bool kResidual, bool kDropped, bool kAmax>
__global__ void __launch_bounds__(512, kPacks == 1 ? 3 : 1)
norm_forward_kernel(const T* x, const T* residual, T* sum, const T* __restrict__ gamma, const T* __restrict__ beta,
                    T* y, const __grid_constant__ ForwardArgs args) {
  __shared__ TeamSlots slots[2];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const int cols = static_cast<int>(args.cols), column = threadIdx.x * N, step = blockDim.x * N;
  const int64_t first = blockIdx.x * args.cols + column;
  const auto inside = [&](int p) { return column + p * step < cols; };
  join_chain();
  const uint32_t mask_row = kDropped ? padded_row(args.dropout, blockIdx.x) : 0;
  float v[kPacks][N];
  Pack<T, N> added[kResidual ? kPacks : 1];
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (inside(p)) {
      load(x + first + p * step, v[p]);
      if constexpr (kResidual) added[p] = load_pack<N>(residual + first + p * step);
    } else {
#pragma unroll
      for (int j = 0; j < N; ++j) v[p][j] = 0;
    }
  }
  if constexpr (kResidual || kDropped) {
    DropoutRow place{};
    if constexpr (kDropped) place = dropout_row(args.dropout, mask_row, cols);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (!inside(p)) continue;
      if constexpr (kDropped) apply_dropout(v[p], args.dropout, place, column + p * step);
      if constexpr (kResidual) {
        float r[N];
        unpack(added[p], r);
#pragma unroll
        for (int j = 0; j < N; ++j) v[p][j] += r[j];
      }
      // The statistics use the sum as stored, which is what backward reads.
      const Pack<T, N> stored = packed<T>(v[p]);
      *reinterpret_cast<Pack<T, N>*>(sum + first + p * step) = stored;
      unpack(stored, v[p]);
    }
  }

  float mean = 0;
  if constexpr (!kRms) {
    float total = 0;
#pragma unroll
    for (int p = 0; p < kPacks; ++p)
#pragma unroll
      for (int j = 0; j < N; ++j) total += v[p][j];
    mean = team_sum(total, slots[0], warp, lane, warps) * args.scale;
  }
  float squares = 0;
  Pack<T, N> weights[kPacks], biases[kRms ? 1 : kPacks];  // loaded before the barrier, to hide their latency
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (!inside(p)) continue;
    weights[p] = load_pack<N>(gamma + column + p * step);
    if constexpr (!kRms) biases[p] = load_pack<N>(beta + column + p * step);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      if constexpr (!kRms) v[p][j] -= mean;
      squares += v[p][j] * v[p][j];
    }
  }
  const float variance = team_sum(squares, slots[1], warp, lane, warps) * args.scale;
  const float rstd = rsqrtf(variance + args.eps);
  if (threadIdx.x == 0) {
    if constexpr (!kRms) args.mean[blockIdx.x] = mean;
    args.rstd[blockIdx.x] = rstd;
  }
  unsigned maximum = 0;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (!inside(p)) continue;
    float w[N], b[N] = {};
    unpack(weights[p], w);
    if constexpr (!kRms) unpack(biases[p], b);
#pragma unroll
    for (int j = 0; j < N; ++j)
      v[p][j] = kRms ? rms_output<T>(v[p][j] * rstd, w[j], args.rms) : v[p][j] * rstd * w[j] + b[j];
    const Pack<T, N> stored = packed<T>(v[p]);
    *reinterpret_cast<Pack<T, N>*>(y + first + p * step) = stored;
    if constexpr (kAmax) maximum = larger(maximum, stored);
  }
  if constexpr (kAmax) raise_by_block(maximum, args.amax);
}

constexpr int64_t kManyRows = 2048;  // from this number of rows on, one warp per row fills the GPU
constexpr int kRowWarps = 4;  // rows of a block of the kernel below

/// One warp per row without barriers and with the whole row in flight at once; a lane holds kPacks packs that are 32
/// packs apart, in T. Otherwise it is like the kernel above, but without dropout.
// The kernel has 76 lines: several passes over a row in registers, as above.
template <class T, int N, int kPacks, bool kRms, bool kResidual, bool kAmax>
__global__ void __launch_bounds__(32 * kRowWarps, kResidual ? 4 : 8)
norm_forward_warp_kernel(const T* x, const T* residual, T* sum, const T* __restrict__ gamma,
                         const T* __restrict__ beta, T* y, ForwardArgs args) {
  const int lane = threadIdx.x % 32, cols = static_cast<int>(args.cols);
  const int64_t row = int64_t{blockIdx.x} * kRowWarps + threadIdx.x / 32;
  if (row >= args.rows) return;
  const int64_t first = row * cols + lane * N;
  Pack<T, N> own[kPacks];
  Pack<T, N> added[kResidual ? kPacks : 1];
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if ((lane + p * 32) * N >= cols) continue;
    own[p] = load_pack<N>(x + first + p * 32 * N);
    if constexpr (kResidual) added[p] = load_pack<N>(residual + first + p * 32 * N);
  }
  if constexpr (kResidual) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if ((lane + p * 32) * N >= cols) continue;
      float v[N], r[N];
      unpack(own[p], v);
      unpack(added[p], r);
#pragma unroll
      for (int j = 0; j < N; ++j) v[j] += r[j];
      own[p] = packed<T>(v);
      *reinterpret_cast<Pack<T, N>*>(sum + first + p * 32 * N) = own[p];
    }
  }
  float mean = 0;
  if constexpr (!kRms) {
    float total = 0;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if ((lane + p * 32) * N >= cols) continue;
      float v[N];
      unpack(own[p], v);
#pragma unroll
      for (int j = 0; j < N; ++j) total += v[j];
    }
    mean = warp_sum(total) * args.scale;
  }
  float squares = 0;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if ((lane + p * 32) * N >= cols) continue;
    forget(own[p]);
    float v[N];
    unpack(own[p], v);
#pragma unroll
    for (int j = 0; j < N; ++j) squares += (v[j] - mean) * (v[j] - mean);
  }
  const float rstd = rsqrtf(warp_sum(squares) * args.scale + args.eps);
  if (lane == 0) {
    if constexpr (!kRms) args.mean[row] = mean;
    args.rstd[row] = rstd;
  }
  unsigned maximum = 0;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int c = (lane + p * 32) * N;
    if (c >= cols) continue;
    forget(own[p]);
    float v[N], g[N], b[N] = {};
    unpack(own[p], v);
    load(gamma + c, g);
    if constexpr (!kRms) load(beta + c, b);
#pragma unroll
    for (int j = 0; j < N; ++j)
      v[j] = kRms ? rms_output<T>(v[j] * rstd, g[j], args.rms) : (v[j] - mean) * rstd * g[j] + b[j];
    const Pack<T, N> stored = packed<T>(v);
    *reinterpret_cast<Pack<T, N>*>(y + first + p * 32 * N) = stored;
    if constexpr (kAmax) maximum = larger(maximum, stored);
  }
  if constexpr (kAmax) raise_by_warp(maximum, args.amax);
}

constexpr int kGeneralThreads = 256;

/// For any row size and alignment: each pass reads the row from memory. A thread reads back from `sum` only what it has
/// written itself.
template <class T>
__global__ void __launch_bounds__(kGeneralThreads)
norm_forward_general_kernel(const T* x, const T* residual, T* sum, const T* gamma, const T* beta, T* y,
    ForwardArgs args) {
  __shared__ TeamSlots slots[2];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t row = blockIdx.x, cols = args.cols;
  DropoutRow place{};
  if (args.dropout.active) place = dropout_row(args.dropout, padded_row(args.dropout, row), cols);
  float total = 0;
  for (int64_t c = threadIdx.x; c < cols; c += kGeneralThreads) {
    float v[1] = {to_float(x[row * cols + c])};
    if (sum) {
      if (args.dropout.active) apply_dropout(v, args.dropout, place, c);
      if (residual) v[0] += to_float(residual[row * cols + c]);
      const T stored = from_float<T>(v[0]);
      sum[row * cols + c] = stored;
      v[0] = to_float(stored);
    }
    total += v[0];
  }
  const T* from = (sum ? sum : x) + row * cols;
  float mean = team_sum(total, slots[0], warp, lane, kGeneralThreads / 32) * args.scale;
  if (!args.mean) mean = 0;
  float squares = 0;
  for (int64_t c = threadIdx.x; c < cols; c += kGeneralThreads) {
    const float centred = to_float(from[c]) - mean;
    squares += centred * centred;
  }
  const float variance = team_sum(squares, slots[1], warp, lane, kGeneralThreads / 32) * args.scale;
  const float rstd = rsqrtf(variance + args.eps);
  if (threadIdx.x == 0) {
    if (args.mean) args.mean[row] = mean;
    args.rstd[row] = rstd;
  }
  unsigned maximum = 0;
  for (int64_t c = threadIdx.x; c < cols; c += kGeneralThreads) {
    const float normalized = (to_float(from[c]) - mean) * rstd, g = to_float(gamma[c]);
    const Pack<T, 1> stored{
        from_float<T>(args.mean ? normalized * g + to_float(beta[c]) : rms_output<T>(normalized, g, args.rms))};
    y[row * cols + c] = stored.v[0];
    maximum = larger(maximum, stored);
  }
  if (args.amax) raise_by_block(maximum, args.amax);
}

template <class T, int kPacks>
void launch_packs(const NormForward& args, const ForwardArgs& kernel_args, const LaunchContext& context) {
  constexpr int N = kVector<T>;
  const int64_t threads = round_up(ceil_div(kernel_args.cols, N * kPacks), 32);
  const auto launch = [&](auto rms, auto residual, auto dropped, auto amax) {
    launch_overlapped(norm_forward_kernel<T, N, kPacks, decltype(rms)::value, decltype(residual)::value, decltype(dropped)::value,
                                          decltype(amax)::value>,
                      blocks_of(kernel_args.rows), threads, 0, context, args.x.as<const T>(), args.residual.as<const T>(),
                      args.sum.as<T>(), args.gamma.as<const T>(), args.beta.as<const T>(), args.y.as<T>(), kernel_args);
  };
  dispatch_bool(static_cast<bool>(args.residual), [&](auto residual) {
    dispatch_bool(!args.mean, [&](auto rms) {
      dispatch_bool(static_cast<bool>(args.dropout), [&](auto dropped) {
        dispatch_bool(static_cast<bool>(args.amax), [&](auto amax) { launch(rms, residual, dropped, amax); });
      });
    });
  });
}

template <class T, int kPacks>
void launch_warps(const NormForward& args, const ForwardArgs& kernel_args, cudaStream_t stream) {
  dispatch_bool(!args.mean, [&](auto rms) {
    dispatch_bool(static_cast<bool>(args.residual), [&](auto residual) {
      dispatch_bool(static_cast<bool>(args.amax), [&](auto amax) {
        norm_forward_warp_kernel<T, kVector<T>, kPacks, decltype(rms)::value, decltype(residual)::value, decltype(amax)::value>
            <<<static_cast<unsigned>(ceil_div(kernel_args.rows, kRowWarps)), 32 * kRowWarps, 0, stream>>>(
                args.x.as<const T>(), args.residual.as<const T>(), args.sum.as<T>(), args.gamma.as<const T>(),
                args.beta.as<const T>(), args.y.as<T>(), kernel_args);
      });
    });
  });
}

}  // namespace

void CudaOps::norm_forward(const NormForward& args, Stream stream) {
  check_args(args);
  const ForwardArgs kernel_args{.rows = args.x.rows(), .cols = args.x.cols(), .eps = args.eps,
                                .scale = 1.0f / static_cast<float>(args.x.cols()),
                                .dropout = dropout_kernel_args(args.dropout), .mean = args.mean.as<float>(),
                                .rstd = args.rstd.as<float>(), .rms = args.rms, .amax = args.amax.as<unsigned>()};
  if (args.x.numel() == 0) return;
  const LaunchContext to = context(stream);
  dispatch_float(args.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const int64_t packs = kernel_args.cols / kVector<T>;
    if (kernel_args.cols % kVector<T> == 0 && kernel_args.cols <= 8192 &&
        all_aligned16(args.x, args.residual, args.sum, args.gamma, args.beta, args.y)) {
      // One warp per row is slow at dropout masks; a block with more threads than packs leaves threads idle.
      if (sizeof(T) == 2 && packs <= 192 && kernel_args.rows >= kManyRows && !args.dropout)
        launch_warps<T, 6>(args, kernel_args, to.stream);
      else if (packs <= 512) launch_packs<T, 1>(args, kernel_args, to);
      else if (packs <= 1024) launch_packs<T, 2>(args, kernel_args, to);
      else if constexpr (sizeof(T) == 4) launch_packs<T, 4>(args, kernel_args, to);
    } else {
      norm_forward_general_kernel<T><<<static_cast<unsigned>(kernel_args.rows), kGeneralThreads, 0, to.stream>>>(
          args.x.as<const T>(), args.residual.as<const T>(), args.sum.as<T>(), args.gamma.as<const T>(),
          args.beta.as<const T>(), args.y.as<T>(), kernel_args);
    }
  });
  BLIPFT_CUDA_LAUNCHED("norm_forward_kernel");
}

}  // namespace blipft
