// RMSNorm of the heads of a row, or of other equal groups of its columns, forward and backward; memory-bound.
//
// Short groups (heads) are kept in registers: one lane per pack of a head, several heads at once, so that enough loads
// are in flight. For other groups a team, which is a warp or for long groups a block, reads the elements once for the
// sum and again, from the cache, for the result. Each thread reads and writes only its own elements, so outputs may be
// inputs. dgamma is summed in chunks of groups, and the chunks are added in order: no atomics.
#include "blipft/head_norm.h"
#include "cuda/cuda_ops.h"
#include "cuda/norm/head_norm_rotary.h"
#include "cuda/vector.cuh"
#include "ops/ops_check.h"

namespace blipft {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int64_t kMaxOfWarp = 1024;      // largest group of a warp, in elements

struct HeadArgs {
  int64_t groups = 0;                      // of a row
  int64_t pairs = 0;                       // rows * groups
  int64_t x_stride = 0, y_stride = 0, dy_stride = 0;  // row strides
  int size = 0;
  float eps = 0, scale = 0, offset = 0;    // scale: 1 / size
  bool rounds_once = false;
};

/// The group of this team and the index of the thread in the team.
template <bool kBlock>
struct Team {
  int64_t pair = kBlock ? int64_t{blockIdx.x} : int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  int thread = kBlock ? threadIdx.x : threadIdx.x % 32;
  static constexpr int kSize = kBlock ? kThreads : 32;

  /// Returns the sum in every thread. All threads of the team must call it.
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
  if (team.pair >= args.pairs) return;     // uniform over a team
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

constexpr int kAtOnce = 4;                 // heads of one lane

/// Heads of at most kLanes packs, with one pack per lane. Each team of kLanes lanes holds kAtOnce heads.
template <class T, int N, int kLanes>
struct HeadLanes {
  static constexpr int kTeams = kThreads / kLanes, kHeads = kTeams * kAtOnce;
  int column;                              // of the lane's pack
  int64_t first;                           // the lane's first head
  bool inside;
  int64_t pairs;

  __device__ __forceinline__ explicit HeadLanes(const HeadArgs& args)
      : column(static_cast<int>(threadIdx.x % kLanes) * N), first(int64_t{blockIdx.x} * kHeads + threadIdx.x / kLanes),
        inside(column < args.size), pairs(args.pairs) {}
  __device__ __forceinline__ int64_t head(int i) const { return first + i * kTeams; }
  __device__ __forceinline__ bool has(int i) const { return inside && head(i) < pairs; }
  /// Returns the element index of the lane's pack of head i.
  __device__ __forceinline__ int64_t at(const HeadArgs& args, int i, int64_t stride) const {
    const int64_t row = divided(head(i), args.groups);
    return row * stride + (head(i) - row * args.groups) * args.size + column;
  }
  __device__ __forceinline__ static float sum(float x) {
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
  }
};

template <class T, int N, int kLanes>
__global__ void __launch_bounds__(kThreads)
head_norm_forward_lanes_kernel(const T* x, const T* __restrict__ gamma, T* y, float* __restrict__ rstds,
                               const __grid_constant__ HeadArgs args) {
  const HeadLanes<T, N, kLanes> lanes(args);
  Pack<T, N> packs[kAtOnce];
  float weight[N] = {};
  if (lanes.inside) load(gamma + lanes.column, weight);
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i)
    if (lanes.has(i)) packs[i] = load_pack<N>(x + lanes.at(args, i, args.x_stride));
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) {
    float v[N] = {}, squares = 0;
    if (lanes.has(i)) unpack(packs[i], v);
#pragma unroll
    for (int j = 0; j < N; ++j) squares += v[j] * v[j];
    const float rstd = rsqrtf(lanes.sum(squares) * args.scale + args.eps);
    if (!lanes.has(i)) continue;
    if (lanes.column == 0) rstds[lanes.head(i)] = rstd;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      v[j] *= rstd;
      if (!args.rounds_once) v[j] = to_float(from_float<T>(v[j]));
      v[j] *= args.offset + weight[j];
    }
    store_streaming(y + lanes.at(args, i, args.y_stride), v);
  }
}

template <class T, int N, int kLanes>
__global__ void __launch_bounds__(kThreads)
head_norm_backward_lanes_kernel(const T* dy, const T* x, const T* __restrict__ gamma, T* dx, const float* __restrict__ rstds,
                                const __grid_constant__ HeadArgs args) {
  const HeadLanes<T, N, kLanes> lanes(args);
  Pack<T, N> of_x[kAtOnce], of_y[kAtOnce];
  float rstd[kAtOnce], weight[N] = {};
  if (lanes.inside) load(gamma + lanes.column, weight);
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) {
    if (!lanes.has(i)) continue;
    of_x[i] = load_pack<N>(x + lanes.at(args, i, args.x_stride));
    of_y[i] = load_pack<N>(dy + lanes.at(args, i, args.dy_stride));
    rstd[i] = rstds[lanes.head(i)];
  }
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) {
    float v[N] = {}, d[N] = {}, products = 0;
    if (lanes.has(i)) {
      unpack(of_x[i], v);
      unpack(of_y[i], d);
#pragma unroll
      for (int j = 0; j < N; ++j) products += d[j] * (args.offset + weight[j]) * (v[j] * rstd[i]);
    }
    const float mean = lanes.sum(products) * args.scale;
    if (!lanes.has(i)) continue;
#pragma unroll
    for (int j = 0; j < N; ++j) d[j] = rstd[i] * (d[j] * (args.offset + weight[j]) - v[j] * rstd[i] * mean);
    store_streaming(dx + lanes.at(args, i, args.y_stride), d);
  }
}

/// Computes partials[chunk, c] = sum of dy x^ over the groups of a chunk. blockIdx = (columns, chunk).
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

/// True if every group of these views, and gamma, can be accessed in packs of N.
template <class T, int N, class... Views>
bool in_packs(int64_t size, const Tensor& gamma, const Views&... views) {
  const auto fits = [](const MatrixView& view) { return view.row_stride % N == 0 && aligned16(view.data); };
  return size % N == 0 && aligned16(gamma.data) && (fits(views) && ...);
}

/// Calls launch(lanes of a head as an integral constant, blocks) if heads fit into registers; returns whether they do.
template <class T, class Launch>
bool with_lanes(const HeadArgs& args, bool packs, const Launch& launch) {
  constexpr int N = kVector<T>;
  const int64_t lanes = args.size / N;
  if (!packs || lanes > 32) return false;
  const auto run = [&](auto count) {
    launch(count, static_cast<unsigned>(ceil_div(args.pairs, kThreads / decltype(count)::value * kAtOnce)));
  };
  if (lanes <= 8) run(std::integral_constant<int, 8>());
  else if (lanes <= 16) run(std::integral_constant<int, 16>());
  else run(std::integral_constant<int, 32>());
  BLIPFT_CUDA_LAUNCHED("head norm kernel");
  return true;
}

/// Calls launch(elements of a pack, team is a block, blocks), the first two as integral constants.
template <class T, class Launch>
void with_teams(const HeadArgs& args, bool packs, const Launch& launch) {
  const bool block = args.size > kMaxOfWarp;
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
  if (args.rotary) {
    if (launch_head_norm_rotary(args, context(stream))) return;
    HeadNormForward alone = args;
    alone.rotary.reset();
    head_norm_forward(alone, stream);
    return rotary(*args.rotary, stream);
  }
  HeadArgs kernel_args = head_args(args.x, args.size, args.rms);
  kernel_args.y_stride = args.y.row_stride;
  kernel_args.eps = args.eps;
  const cudaStream_t queue = context(stream).stream;
  dispatch_float(args.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const bool packs = in_packs<T, kVector<T>>(args.size, args.gamma, args.x, args.y);
    const auto in_registers = [&](auto lanes, unsigned blocks) {
      head_norm_forward_lanes_kernel<T, kVector<T>, decltype(lanes)::value><<<blocks, kThreads, 0, queue>>>(
          static_cast<const T*>(args.x.data), args.gamma.as<const T>(), static_cast<T*>(args.y.data),
          args.rstd.as<float>(), kernel_args);
    };
    if (with_lanes<T>(kernel_args, packs, in_registers)) return;
    with_teams<T>(kernel_args, packs, [&](auto n, auto block, unsigned blocks) {
      head_norm_forward_kernel<T, decltype(n)::value, decltype(block)::value><<<blocks, kThreads, 0, queue>>>(
          static_cast<const T*>(args.x.data), args.gamma.as<const T>(), static_cast<T*>(args.y.data),
          args.rstd.as<float>(), kernel_args);
    });
  });
}

void CudaOps::head_norm_backward(const HeadNormBackward& args, Stream stream) {
  check_args(args);
  if (args.rotary) {
    if (launch_head_norm_rotary(args, context(stream))) return;
    HeadNormBackward alone = args;
    alone.rotary.reset();
    rotary(*args.rotary, stream);
    return head_norm_backward(alone, stream);
  }
  const LaunchContext launch = context(stream);
  if (args.x.numel() == 0) {
    if (args.dgamma && !args.accumulate)
      BLIPFT_CUDA_CHECK(cudaMemsetAsync(args.dgamma.data, 0, static_cast<size_t>(args.dgamma.bytes()), launch.stream));
    return;
  }
  HeadArgs kernel_args = head_args(args.x, args.size, args.rms);
  kernel_args.y_stride = args.dx.row_stride;
  kernel_args.dy_stride = args.dy.row_stride;
  if (args.dgamma) launch_parameters(args, kernel_args, launch);  // before dx, which may overwrite dy
  dispatch_float(args.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const bool packs = in_packs<T, kVector<T>>(args.size, args.gamma, args.x, args.dy, args.dx);
    const auto in_registers = [&](auto lanes, unsigned blocks) {
      head_norm_backward_lanes_kernel<T, kVector<T>, decltype(lanes)::value><<<blocks, kThreads, 0, launch.stream>>>(
          static_cast<const T*>(args.dy.data), static_cast<const T*>(args.x.data), args.gamma.as<const T>(),
          static_cast<T*>(args.dx.data), args.rstd.as<const float>(), kernel_args);
    };
    if (with_lanes<T>(kernel_args, packs, in_registers)) return;
    with_teams<T>(kernel_args, packs, [&](auto n, auto block, unsigned blocks) {
      head_norm_backward_kernel<T, decltype(n)::value, decltype(block)::value><<<blocks, kThreads, 0, launch.stream>>>(
          static_cast<const T*>(args.dy.data), static_cast<const T*>(args.x.data), args.gamma.as<const T>(),
          static_cast<T*>(args.dx.data), args.rstd.as<const float>(), kernel_args);
    });
  });
}

}  // namespace blipft
