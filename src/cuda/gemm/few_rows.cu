// Products of one or two rows, which dominate decoding; bound by reading w once.
//
// Each block owns the same number of consecutive rows of w, so that all blocks end together. A thread owns columns: one
// pack out of every blockDim.x packs. It keeps its part of x in registers, so the loop only reads w. The sums of a row
// over its columns are added in shared memory in the order of warps.
#include <algorithm>

#include "cuda/cuda_ops.h"
#include "cuda/device/overlap.cuh"
#include "cuda/vector.cuh"

namespace blipft {
namespace {

constexpr int kMaxThreads = 256;
constexpr int kMaxPacks = 8;                 // of a thread at a time, 8 columns each
constexpr int kThreadsOfProcessor = 1024;     // with up to 3 packs; half as many with more registers
constexpr int kSumBytes = 32 << 10;           // maximum of shared memory
constexpr int64_t kMaxRows = 2;

struct FewRowsArgs {
  const bf16 *w, *x, *bias, *residual;
  bf16* y;
  int64_t x_stride, residual_stride, y_stride;
  int n, k, rows;                             ///< rows: rows of w per block
  float scale;
  bool relu;
};

/// A thread's prefetched packs of kRows rows of w.
template <int kRows, int kPacks>
struct Ahead {
  uint4 packs[kRows][kPacks];

  /// Calls f(row of kRows, pack, address) for each pack; the address is null outside of [row, end) or w's columns.
  template <class F>
  static __device__ __forceinline__ void each(const FewRowsArgs& args, int row, int end, int column, F f) {
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        const int at = column + p * static_cast<int>(blockDim.x) * 8;
        f(r, p, row + r < end && at < args.k ? args.w + int64_t{row + r} * args.k + at : nullptr);
      }
  }
  __device__ __forceinline__ void load(const FewRowsArgs& args, int row, int end, int column) {
    each(args, row, end, column, [&](int r, int p, const bf16* from) {
      packs[r][p] = from ? load_once(from) : make_uint4(0, 0, 0, 0);
    });
  }
};

__device__ __forceinline__ float product_of_eight(const uint4& w, const uint4& x, float sum) {
  const uint32_t ws[4] = {w.x, w.y, w.z, w.w}, xs[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float2 a = unpack(ws[j]), b = unpack(xs[j]);
    sum = fmaf(a.x, b.x, sum);
    sum = fmaf(a.y, b.y, sum);
  }
  return sum;
}

/// M rows of x. If a row is longer than the packs of all threads, it is processed in parts.
template <int M, int kRows, int kPacks>
__global__ void __launch_bounds__(kMaxThreads) few_rows_kernel(FewRowsArgs args) {
  extern __shared__ float few_rows_sums[];    // [M, rows, warps]
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const int begin = static_cast<int>(blockIdx.x) * args.rows, end = min(begin + args.rows, args.n);
  let_next_start();
  Ahead<kRows, kPacks>::each(args, begin, end, static_cast<int>(threadIdx.x) * 8, [](int, int, const bf16* from) {
    if (from) prefetch(from);
  });
  wait_for_earlier();
  for (int part = 0; part < args.k; part += kPacks * static_cast<int>(blockDim.x) * 8) {
    const int column = part + static_cast<int>(threadIdx.x) * 8;
    Ahead<kRows, kPacks> ahead;
    ahead.load(args, begin, end, column);
    uint4 x[M][kPacks];
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        const int at = column + p * static_cast<int>(blockDim.x) * 8;
        x[m][p] = at < args.k ? *reinterpret_cast<const uint4*>(args.x + m * args.x_stride + at) : make_uint4(0, 0, 0, 0);
      }
    for (int row = begin; row < end; row += kRows) {
      const Ahead<kRows, kPacks> now = ahead;
      if (row + kRows < end) ahead.load(args, row + kRows, end, column);
#pragma unroll
      for (int r = 0; r < kRows; ++r)
#pragma unroll
        for (int m = 0; m < M; ++m) {
          float sum = 0;
#pragma unroll
          for (int p = 0; p < kPacks; ++p) sum = product_of_eight(now.packs[r][p], x[m][p], sum);
          sum = warp_sum(sum);
          float& of_row = few_rows_sums[(m * args.rows + row + r - begin) * warps + warp];
          if (lane == 0 && row + r < end) of_row = part == 0 ? sum : of_row + sum;
        }
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < M * args.rows; i += blockDim.x) {
    const int m = i / args.rows, n = begin + i - m * args.rows;
    if (n >= end) continue;
    float total = 0;
    for (int other = 0; other < warps; ++other) total += few_rows_sums[i * warps + other];
    total *= args.scale;
    if (args.bias) total += to_float(args.bias[n]);
    if (args.relu) total = fmaxf(total, 0.0f);
    if (args.residual) total += to_float(args.residual[m * args.residual_stride + n]);
    args.y[m * args.y_stride + n] = from_float<bf16>(total);
  }
}

template <int M, int kPacks>
void launch(FewRowsArgs args, const LaunchContext& launch) {
  constexpr int kRows = kPacks == 1 ? 4 : kPacks == 2 ? 2 : 1;
  const int64_t packs = args.k / 8, parts = ceil_div(packs, kPacks * kMaxThreads);
  const int64_t threads = round_up(ceil_div(packs, kPacks * parts), 32), warps = threads / 32;
  const int64_t blocks = launch.sm_count * (kThreadsOfProcessor / (kPacks <= 3 ? 1 : 2) / threads);
  args.rows = static_cast<int>(std::min<int64_t>(ceil_div(args.n, blocks), kSumBytes / (M * warps * 4)));
  launch_overlapped(few_rows_kernel<M, kRows, kPacks>, blocks_of(ceil_div(args.n, args.rows)), threads,
                    static_cast<size_t>(M * args.rows * warps * 4), launch, args);
}

template <int M>
void launch_packs(const FewRowsArgs& args, const LaunchContext& to) {
  const int64_t packs = ceil_div(args.k, 8 * kMaxThreads), parts = ceil_div(packs, int64_t{kMaxPacks});
  switch (ceil_div(packs, parts)) {
    case 1: return launch<M, 1>(args, to);
    case 2: return launch<M, 2>(args, to);
    case 3: return launch<M, 3>(args, to);
    case 4: return launch<M, 4>(args, to);
    case 5: return launch<M, 5>(args, to);
    case 6: return launch<M, 6>(args, to);
    case 7: return launch<M, 7>(args, to);
    default: return launch<M, kMaxPacks>(args, to);
  }
}

}  // namespace

bool launch_few_rows(const LinearForward& op, const LaunchContext& context) {
  const int64_t rows = op.x.rows(), k = op.x.cols();
  if (op.x.dtype != DType::bf16 || rows < 1 || rows > kMaxRows || k % 8 != 0 || k < 8 ||
      is_gelu(op.activation) || !all_aligned16(op.x, op.w) ||
      (rows > 1 && op.x.row_stride % 8 != 0))
    return false;
  FewRowsArgs args{};
  args.w = op.w.as<const bf16>(), args.x = op.x.as<const bf16>(), args.y = op.y.as<bf16>();
  args.bias = op.bias.as<const bf16>(), args.residual = op.residual.as<const bf16>();
  args.x_stride = op.x.row_stride, args.y_stride = op.y.row_stride, args.residual_stride = op.residual.row_stride;
  args.n = static_cast<int>(op.y.cols()), args.k = static_cast<int>(k);
  args.scale = op.scale;
  args.relu = op.activation == Activation::relu;
  if (rows == 1) launch_packs<1>(args, context);
  else launch_packs<2>(args, context);
  return true;
}

}  // namespace blipft
