// RMSNorm of the heads of a row, or of any groups of its columns, forward and backward; bound by memory.
//
// A team of threads takes one group of one row: a warp where groups are heads, a block where they are long. It reads
// its elements once for the sum and once more, from the cache, for the result; each thread reads and writes elements
// of its own alone, so that outputs may be inputs. dgamma is summed in chunks of groups, and these in order: no
// atomics.
#include "blipft/head_norm.h"
#include "cuda/cuda_ops.h"
#include "cuda/vector.cuh"
#include "ops/ops_check.h"

namespace blipft {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int64_t kMostOfWarp = 1024;      // elements that a warp takes

struct HeadArgs {
  int64_t groups = 0;                      // of a row
  int64_t pairs = 0;                       // rows * groups
  int64_t x_stride = 0, y_stride = 0, dy_stride = 0;  // from row to row
  int size = 0;
  float eps = 0, scale = 0, offset = 0;    // scale: 1 / size
  bool rounds_once = false;
};

/// The group of this team, and its threads.
template <bool kBlock>
struct Team {
  int64_t pair = kBlock ? int64_t{blockIdx.x} : int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  int thread = kBlock ? threadIdx.x : threadIdx.x % 32;
  static constexpr int kSize = kBlock ? kThreads : 32;

  /// The same in each thread. All threads of the block call it where the team is a block.
  __device__ __forceinline__ float sum(float x, TeamSlots& slots) const {
    if constexpr (!kBlock) return warp_sum(x);
    else return team_sum(x, slots, threadIdx.x / 32, threadIdx.x % 32, kWarps);
  }
};

template <class T, int N, bool kBlock>
__global__ void __launch_bounds__(kThreads)
head_norm_forward_kernel(const T* x, const T* __restrict__ gamma, T* y, float* __restrict__ rstds,
                         const __grid_constant__ HeadArgs args) {
  __shared__ TeamSlots slots;
  const Team<kBlock> team;
  if (team.pair >= args.pairs) return;     // whole teams
  const int64_t row = team.pair / args.groups, first = (team.pair - row * args.groups) * args.size;
  const T* from = x + row * args.x_stride + first;
  T* to = y + row * args.y_stride + first;
  float squares = 0;
  for (int c = team.thread * N; c < args.size; c += team.kSize * N) {
    float v[N];
    load(from + c, v);
#pragma unroll
    for (int j = 0; j < N; ++j) squares += v[j] * v[j];
  }
  const float rstd = rsqrtf(team.sum(squares, slots) * args.scale + args.eps);
  if (team.thread == 0) rstds[team.pair] = rstd;
  for (int c = team.thread * N; c < args.size; c += team.kSize * N) {
    float v[N], weight[N];
    load(from + c, v);
    load(gamma + c, weight);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      v[j] *= rstd;
      if (!args.rounds_once) v[j] = to_float(from_float<T>(v[j]));
      v[j] *= args.offset + weight[j];
    }
    store(to + c, v);
  }
}

/// With x^ = x rstd and g = dy (offset + gamma): dx = rstd (g - x^ mean(g x^)).
template <class T, int N, bool kBlock>
__global__ void __launch_bounds__(kThreads)
head_norm_backward_kernel(const T* dy, const T* x, const T* __restrict__ gamma, T* dx, const float* __restrict__ rstds,
                          const __grid_constant__ HeadArgs args) {
  __shared__ TeamSlots slots;
  const Team<kBlock> team;
  if (team.pair >= args.pairs) return;
  const int64_t row = team.pair / args.groups, first = (team.pair - row * args.groups) * args.size;
  const T* of_y = dy + row * args.dy_stride + first;
  const T* from = x + row * args.x_stride + first;
  T* to = dx + row * args.y_stride + first;
  const float rstd = rstds[team.pair];
  float products = 0;
  for (int c = team.thread * N; c < args.size; c += team.kSize * N) {
    float v[N], d[N], weight[N];
    load(from + c, v);
    load(of_y + c, d);
    load(gamma + c, weight);
#pragma unroll
    for (int j = 0; j < N; ++j) products += d[j] * (args.offset + weight[j]) * (v[j] * rstd);
  }
  const float mean = team.sum(products, slots) * args.scale;
  for (int c = team.thread * N; c < args.size; c += team.kSize * N) {
    float v[N], d[N], weight[N];
    load(from + c, v);
    load(of_y + c, d);
    load(gamma + c, weight);
#pragma unroll
    for (int j = 0; j < N; ++j) d[j] = rstd * (d[j] * (args.offset + weight[j]) - v[j] * rstd * mean);
    store(to + c, d);
  }
}

/// partials[chunk, c] = sum of dy x^ over the groups of a chunk. blockIdx = (columns, chunk).
template <class T>
__global__ void head_norm_parameters_kernel(const T* __restrict__ dy, const T* __restrict__ x,
                                            const float* __restrict__ rstds, float* __restrict__ partials,
                                            const __grid_constant__ HeadArgs args, int64_t chunk) {
  const int c = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (c >= args.size) return;
  const int64_t begin = int64_t{blockIdx.y} * chunk, end = min(begin + chunk, args.pairs);
  float sum = 0;
#pragma unroll 4
  for (int64_t pair = begin; pair < end; ++pair) {
    const int64_t row = divided(pair, args.groups), first = (pair - row * args.groups) * args.size + c;
    sum += to_float(dy[row * args.dy_stride + first]) * (to_float(x[row * args.x_stride + first]) * rstds[pair]);
  }
  partials[int64_t{blockIdx.y} * args.size + c] = sum;
}

HeadArgs head_args(const MatrixView& x, int64_t size, const RmsForm& form) {
  HeadArgs args;
  args.groups = x.cols() / size;
  args.pairs = x.rows() * args.groups;
  args.x_stride = x.row_stride;
  args.size = static_cast<int>(size);
  args.scale = 1.0f / static_cast<float>(size);
  args.offset = form.offset;
  args.rounds_once = form.rounds_once;
  return args;
}

/// Whether every group of these views, and gamma, can be read in packs of N.
template <class T, int N, class... Views>
bool in_packs(int64_t size, const Tensor& gamma, const Views&... views) {
  const auto fits = [](const MatrixView& view) { return view.row_stride % N == 0 && aligned16(view.data); };
  return size % N == 0 && aligned16(gamma.data) && (fits(views) && ...);
}

/// Calls launch(elements of a pack, whether a team is a block, blocks), the first two as integral constants.
template <class T, class Launch>
void with_teams(const HeadArgs& args, bool packs, const Launch& launch) {
  const bool block = args.size > kMostOfWarp;
  const auto blocks = static_cast<unsigned>(block ? args.pairs : ceil_div(args.pairs, kWarps));
  dispatch_bool(block, [&](auto of_block) {
    if (packs) launch(std::integral_constant<int, kVector<T>>(), of_block, blocks);
    else launch(std::integral_constant<int, 1>(), of_block, blocks);
  });
  BLIPFT_CUDA_LAUNCHED("head norm kernel");
}

void launch_parameters(const HeadNormBackward& args, const HeadArgs& kernel_args, const LaunchContext& context) {
  const int64_t limit = std::min<int64_t>(1024, context.scratch_bytes / (4 * args.size));
  BLIPFT_CHECK(limit >= 1, "head_norm_backward of groups of ", args.size, " needs a larger workspace");
  const int64_t wanted = std::clamp<int64_t>(ceil_div(kernel_args.pairs, 16), 1, limit);
  const int64_t chunk = ceil_div(kernel_args.pairs, wanted), chunks = ceil_div(kernel_args.pairs, chunk);
  const dim3 grid(static_cast<unsigned>(ceil_div(args.size, 128)), static_cast<unsigned>(chunks));
  dispatch_float(args.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    head_norm_parameters_kernel<T><<<grid, 128, 0, context.stream>>>(
        static_cast<const T*>(args.dy.data), static_cast<const T*>(args.x.data), args.rstd.as<const float>(),
        context.scratch, kernel_args, chunk);
  });
  BLIPFT_CUDA_LAUNCHED("head norm parameters kernel");
  PartialSums sums{context.scratch, chunks, args.size};
  sums.add(args.dgamma, args.accumulate);
  launch_reduce_partials(sums, context);
}

}  // namespace

void CudaOps::head_norm_forward(const HeadNormForward& args, Stream stream) {
  check_args(args);
  if (args.x.numel() == 0) return;
  HeadArgs kernel_args = head_args(args.x, args.size, args.rms);
  kernel_args.y_stride = args.y.row_stride;
  kernel_args.eps = args.eps;
  const cudaStream_t queue = context(stream).stream;
  dispatch_float(args.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    with_teams<T>(kernel_args, in_packs<T, kVector<T>>(args.size, args.gamma, args.x, args.y),
                  [&](auto n, auto block, unsigned blocks) {
      head_norm_forward_kernel<T, decltype(n)::value, decltype(block)::value><<<blocks, kThreads, 0, queue>>>(
          static_cast<const T*>(args.x.data), args.gamma.as<const T>(), static_cast<T*>(args.y.data),
          args.rstd.as<float>(), kernel_args);
    });
  });
}

void CudaOps::head_norm_backward(const HeadNormBackward& args, Stream stream) {
  check_args(args);
  const LaunchContext launch = context(stream);
  if (args.x.numel() == 0) {
    if (args.dgamma && !args.accumulate)
      BLIPFT_CUDA_CHECK(cudaMemsetAsync(args.dgamma.data, 0, static_cast<size_t>(args.dgamma.bytes()), launch.stream));
    return;
  }
  HeadArgs kernel_args = head_args(args.x, args.size, args.rms);
  kernel_args.y_stride = args.dx.row_stride;
  kernel_args.dy_stride = args.dy.row_stride;
  if (args.dgamma) launch_parameters(args, kernel_args, launch);  // first: dx may overwrite dy
  dispatch_float(args.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    with_teams<T>(kernel_args, in_packs<T, kVector<T>>(args.size, args.gamma, args.x, args.dy, args.dx),
                  [&](auto n, auto block, unsigned blocks) {
      head_norm_backward_kernel<T, decltype(n)::value, decltype(block)::value><<<blocks, kThreads, 0, launch.stream>>>(
          static_cast<const T*>(args.dy.data), static_cast<const T*>(args.x.data), args.gamma.as<const T>(),
          static_cast<T*>(args.dx.data), args.rstd.as<const float>(), kernel_args);
    });
  });
}

}  // namespace blipft
