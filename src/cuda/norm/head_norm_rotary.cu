// Head norms and rotary position embedding in one pass over memory, with the same bits as head_norm.cu and rotary.cu.
//
// A block processes several rows, to have enough work for its threads, and computes their angles once for all heads.
// The lanes of a team hold one head: each has a pack of the first half and the pack of the second half that is rotated
// with it.
#include "cuda/norm/head_norm_rotary.h"

#include "cuda/device/overlap.cuh"
#include "cuda/vector.cuh"

namespace blipft {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxRows = 8;               // of a block
constexpr int kPacksOfBlock = 1024;        // approximate; each pack is read and written once

struct TurnArgs {
  int64_t rows = 0;
  int64_t x_stride = 0, y_stride = 0;      // row strides of the norm's input and of y, or dy
  int block_rows = 1, groups = 0, size = 0;
  float eps = 0, scale = 0, offset = 0;    // scale: 1 / size
  bool rounds_once = false, inverse = false;
  float magnitude = 1;
  const int32_t* positions = nullptr;
  float frequencies[Rotary::kMaxFrequencies] = {};
};

/// Per-thread position in the block, and the angles that the block shares.
template <int N, int kLanes>
struct Turn {
  static constexpr int kTeams = kThreads / kLanes;
  int half, column, team, heads;           // column: of the lane's first pack; heads: of the block
  int64_t first_row;
  bool inside;

  __device__ __forceinline__ Turn(const TurnArgs& args, float* cosines, float* sines)
      : half(args.size / 2), column(static_cast<int>(threadIdx.x % kLanes) * N), team(threadIdx.x / kLanes),
        first_row(int64_t{blockIdx.x} * args.block_rows), inside(column < half) {
    const int rows = static_cast<int>(min(int64_t{args.block_rows}, args.rows - first_row));
    heads = rows * args.groups;
    for (int i = threadIdx.x; i < rows * half; i += kThreads) {
      const int row = i / half;
      float s, c;
      sincosf(static_cast<float>(args.positions[first_row + row]) * args.frequencies[i - row * half], &s, &c);
      cosines[i] = c * args.magnitude;
      sines[i] = (args.inverse ? -s : s) * args.magnitude;
    }
    __syncthreads();
  }
  __device__ __forceinline__ static float sum(float x) {
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
  }
  /// Rotates a and b, the lane's two packs of a head of row `row` of the block.
  __device__ __forceinline__ void turn(float (&a)[N], float (&b)[N], const float* cosines, const float* sines, int row) const {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float c = cosines[row * half + column + j], s = sines[row * half + column + j], first = a[j];
      a[j] = first * c - b[j] * s;
      b[j] = b[j] * c + first * s;
    }
  }
};

template <class T, int N>
__device__ __forceinline__ void round_all(float (&x)[N]) {
#pragma unroll
  for (int j = 0; j < N; ++j) x[j] = to_float(from_float<T>(x[j]));
}

template <class T, int N, int kLanes>
__global__ void __launch_bounds__(kThreads)
norm_then_turn_kernel(const T* x, const T* __restrict__ gamma, T* y, float* __restrict__ rstds, const __grid_constant__ TurnArgs args) {
  __shared__ float cosines[kMaxRows * Rotary::kMaxFrequencies], sines[kMaxRows * Rotary::kMaxFrequencies];
  join_chain();
  const Turn<N, kLanes> here(args, cosines, sines);
  float of_a[N] = {}, of_b[N] = {};
  if (here.inside) load(gamma + here.column, of_a), load(gamma + here.half + here.column, of_b);
  const auto scaled = [&](float (&v)[N], const float (&weight)[N], float rstd) {
#pragma unroll
    for (int j = 0; j < N; ++j) v[j] *= rstd;
    if (!args.rounds_once) round_all<T>(v);
#pragma unroll
    for (int j = 0; j < N; ++j) v[j] *= args.offset + weight[j];
    round_all<T>(v);                       // like y after a store
  };
  for (int first = 0; first < here.heads; first += here.kTeams) {
    const int head = first + here.team, row = head / args.groups;
    const bool there = here.inside && head < here.heads;
    const int64_t at = (head - row * args.groups) * args.size + here.column;
    float a[N] = {}, b[N] = {}, squares = 0;
    if (there) {
      load(x + (here.first_row + row) * args.x_stride + at, a);
      load(x + (here.first_row + row) * args.x_stride + at + here.half, b);
    }
#pragma unroll
    for (int j = 0; j < N; ++j) squares += a[j] * a[j] + b[j] * b[j];
    const float rstd = rsqrtf(here.sum(squares) * args.scale + args.eps);
    if (!there) continue;
    if (here.column == 0) rstds[here.first_row * args.groups + head] = rstd;
    scaled(a, of_a, rstd);
    scaled(b, of_b, rstd);
    here.turn(a, b, cosines, sines, row);
    T* const to = y + (here.first_row + row) * args.y_stride + at;
    store(to, a);
    store(to + here.half, b);
  }
}

/// Works in place: dy becomes dx.
template <class T, int N, int kLanes>
__global__ void __launch_bounds__(kThreads)
turn_then_norm_backward_kernel(T* dy, const T* __restrict__ x, const T* __restrict__ gamma, const float* __restrict__ rstds,
                               const __grid_constant__ TurnArgs args) {
  __shared__ float cosines[kMaxRows * Rotary::kMaxFrequencies], sines[kMaxRows * Rotary::kMaxFrequencies];
  const Turn<N, kLanes> here(args, cosines, sines);
  float of_a[N] = {}, of_b[N] = {};
  if (here.inside) load(gamma + here.column, of_a), load(gamma + here.half + here.column, of_b);
  for (int first = 0; first < here.heads; first += here.kTeams) {
    const int head = first + here.team, row = head / args.groups;
    const bool there = here.inside && head < here.heads;
    const int64_t at = (head - row * args.groups) * args.size + here.column;
    T* const own = dy + (here.first_row + row) * args.y_stride + at;
    float a[N] = {}, b[N] = {}, x_a[N] = {}, x_b[N] = {}, rstd = 0, products = 0;
    if (there) {
      const T* const from = x + (here.first_row + row) * args.x_stride + at;
      load(own, a), load(own + here.half, b);
      load(from, x_a), load(from + here.half, x_b);
      rstd = rstds[here.first_row * args.groups + head];
      here.turn(a, b, cosines, sines, row);
      round_all<T>(a), round_all<T>(b);    // like dy after a store
    }
#pragma unroll
    for (int j = 0; j < N; ++j)
      products += a[j] * (args.offset + of_a[j]) * (x_a[j] * rstd) + b[j] * (args.offset + of_b[j]) * (x_b[j] * rstd);
    const float mean = here.sum(products) * args.scale;
    if (!there) continue;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      a[j] = rstd * (a[j] * (args.offset + of_a[j]) - x_a[j] * rstd * mean);
      b[j] = rstd * (b[j] * (args.offset + of_b[j]) - x_b[j] * rstd * mean);
    }
    store(own, a);
    store(own + here.half, b);
  }
}

template <class T>
bool takes(const Rotary& rotary, int64_t size, const Tensor& gamma, const MatrixView& x, const MatrixView& y) {
  constexpr int N = kVector<T>;
  const auto in_packs = [](const MatrixView& view) { return view.row_stride % N == 0 && aligned16(view.data); };
  return rotary.axes() == 1 && rotary.head_size == size && (rotary.rotated == 0 || rotary.rotated == size) && size / 2 % N == 0 && size / 2 / N <= 32 &&
         aligned16(gamma.data) && in_packs(x) && in_packs(y);
}

TurnArgs turn_args(const Rotary& rotary, const MatrixView& x, const RmsForm& form) {
  TurnArgs args;
  args.rows = x.rows();
  args.x_stride = x.row_stride, args.y_stride = rotary.x.row_stride;
  args.size = static_cast<int>(rotary.head_size);
  args.groups = static_cast<int>(x.cols() / rotary.head_size);
  args.scale = 1.0f / static_cast<float>(args.size), args.offset = form.offset, args.rounds_once = form.rounds_once;
  args.inverse = rotary.inverse, args.magnitude = rotary.magnitude;
  args.positions = rotary.positions.as<const int32_t>();
  std::copy_n(rotary.frequencies, args.size / 2, args.frequencies);
  return args;
}

/// Sets args.block_rows and calls launch(lanes of a head as an integral constant, blocks).
template <class T, class Launch>
void with_lanes(TurnArgs& args, const Launch& launch) {
  const int packs = args.size / 2 / kVector<T>;  // packs of half a head
  const int64_t packs_of_row = int64_t{2} * packs * args.groups;
  args.block_rows = static_cast<int>(std::clamp<int64_t>(kPacksOfBlock / packs_of_row, 1, kMaxRows));
  const auto blocks = static_cast<unsigned>(ceil_div(args.rows, args.block_rows));
  if (packs <= 4) launch(std::integral_constant<int, 4>(), blocks);
  else if (packs <= 8) launch(std::integral_constant<int, 8>(), blocks);
  else if (packs <= 16) launch(std::integral_constant<int, 16>(), blocks);
  else launch(std::integral_constant<int, 32>(), blocks);
  BLIPFT_CUDA_LAUNCHED("kernel of head norms and rotary positions");
}

}  // namespace

bool launch_head_norm_rotary(const HeadNormForward& args, const LaunchContext& context) {
  bool launched = false;
  dispatch_float(args.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    launched = takes<T>(*args.rotary, args.size, args.gamma, args.x, args.y);
    if (!launched) return;
    TurnArgs kernel_args = turn_args(*args.rotary, args.x, args.rms);
    kernel_args.eps = args.eps;
    with_lanes<T>(kernel_args, [&](auto lanes, unsigned blocks) {
      launch_overlapped(norm_then_turn_kernel<T, kVector<T>, decltype(lanes)::value>, dim3(blocks), kThreads, 0, context,
                        static_cast<const T*>(args.x.data), args.gamma.as<const T>(), static_cast<T*>(args.y.data),
                        args.rstd.as<float>(), kernel_args);
    });
  });
  return launched;
}

bool launch_head_norm_rotary(const HeadNormBackward& args, const LaunchContext& context) {
  bool launched = false;
  if (args.dgamma) return launched;
  dispatch_float(args.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    launched = args.x.numel() > 0 && takes<T>(*args.rotary, args.size, args.gamma, args.x, args.dy);
    if (!launched) return;
    TurnArgs kernel_args = turn_args(*args.rotary, args.x, args.rms);
    with_lanes<T>(kernel_args, [&](auto lanes, unsigned blocks) {
      turn_then_norm_backward_kernel<T, kVector<T>, decltype(lanes)::value><<<blocks, kThreads, 0, context.stream>>>(
          static_cast<T*>(args.dx.data), static_cast<const T*>(args.x.data), args.gamma.as<const T>(),
          args.rstd.as<const float>(), kernel_args);
    });
  });
  return launched;
}

}  // namespace blipft
