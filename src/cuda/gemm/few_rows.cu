// Products of one or two rows, which decoding is made of: bound by reading w once. cuBLASLt reads it at about nine tenths
// of the speed that this does.
//
// A warp computes an output of each row at a time: a lane takes 16 bytes of w, its neighbours the 16 bytes beside, kAhead of
// them on their way. x lies in shared memory: through the L1 it would wait behind what is on its way.
#include <algorithm>

#include "cuda/cuda_ops.h"
#include "cuda/vector.cuh"

namespace blipft {
namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps, kAhead = 4;
constexpr int kColumns = 32 * 8;              // of a warp at a time
constexpr int64_t kBlocksOfProcessor = 6;
constexpr int64_t kMostRows = 2;

struct FewRowsArgs {
  const bf16 *w, *x, *bias, *residual;
  bf16* y;
  int64_t x_stride, residual_stride, y_stride;
  int n, k;
  float scale;
  bool relu;
};

/// What a lane has of a row of w from column k on, on its way.
struct Ahead {
  uint4 packs[kAhead];

  __device__ __forceinline__ void load(const FewRowsArgs& args, int n, int k) {
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const int column = k + u * kColumns;
      if (column < args.k) packs[u] = load_once(args.w + int64_t{n} * args.k + column);
      else packs[u] = make_uint4(0, 0, 0, 0);
    }
  }
};

template <int M>
__global__ void __launch_bounds__(kThreads) few_rows_kernel(FewRowsArgs args) {
  extern __shared__ __align__(16) uint4 few_rows_x[];  // [M, k / 8]
  const int lane = threadIdx.x % 32, step = static_cast<int>(gridDim.x) * kWarps, packs = args.k / 8;
  int n = static_cast<int>(blockIdx.x) * kWarps + threadIdx.x / 32;
  Ahead ahead;
  if (n < args.n) ahead.load(args, n, lane * 8);
  for (int m = 0; m < M; ++m)
    for (int i = threadIdx.x; i < packs; i += kThreads)
      few_rows_x[m * packs + i] = *reinterpret_cast<const uint4*>(args.x + m * args.x_stride + i * 8);
  __syncthreads();
  for (; n < args.n; n += step) {
    float sum[M] = {};
    for (int k = 0; k < args.k; k += kAhead * kColumns) {
      const Ahead now = ahead;
      if (k + kAhead * kColumns < args.k) ahead.load(args, n, k + kAhead * kColumns + lane * 8);
      else if (n + step < args.n) ahead.load(args, n + step, lane * 8);
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        const uint32_t ws[4] = {now.packs[u].x, now.packs[u].y, now.packs[u].z, now.packs[u].w};
        const int pack = min(k / 8 + u * 32 + lane, packs - 1);  // behind the end w is zeros, and x the last that is there
#pragma unroll
        for (int m = 0; m < M; ++m) {
          const uint4 x = few_rows_x[m * packs + pack];
          const uint32_t xs[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const float2 a = unpack(ws[j]), b = unpack(xs[j]);
            sum[m] = fmaf(a.x, b.x, sum[m]);
            sum[m] = fmaf(a.y, b.y, sum[m]);
          }
        }
      }
    }
#pragma unroll
    for (int m = 0; m < M; ++m) {
      float total = warp_sum(sum[m]);
      if (lane != 0) continue;
      total *= args.scale;
      if (args.bias) total += to_float(args.bias[n]);
      if (args.relu) total = fmaxf(total, 0.0f);
      if (args.residual) total += to_float(args.residual[m * args.residual_stride + n]);
      args.y[m * args.y_stride + n] = from_float<bf16>(total);
    }
  }
}

template <int M>
void launch(const FewRowsArgs& args, const LaunchContext& launch) {
  const int shared = M * args.k * 2;
  BLIPFT_CUDA_CHECK(cudaFuncSetAttribute(few_rows_kernel<M>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
  const auto blocks = std::min<int64_t>(ceil_div(args.n, kWarps), kBlocksOfProcessor * launch.sm_count);
  few_rows_kernel<M><<<static_cast<unsigned>(blocks), kThreads, static_cast<size_t>(shared), launch.stream>>>(args);
  BLIPFT_CUDA_LAUNCHED("few_rows_kernel");
}

}  // namespace

bool launch_few_rows(const LinearForward& op, const LaunchContext& context) {
  const int64_t rows = op.x.rows(), k = op.x.cols();
  if (op.x.dtype != DType::bf16 || rows < 1 || rows > kMostRows || k % 8 != 0 || k < 8 ||
      rows * k * 2 > context.shared_bytes || op.activation == Activation::gelu || !all_aligned16(op.x, op.w) ||
      (rows > 1 && op.x.row_stride % 8 != 0))
    return false;
  FewRowsArgs args{};
  args.w = op.w.as<const bf16>(), args.x = op.x.as<const bf16>(), args.y = op.y.as<bf16>();
  args.bias = op.bias.as<const bf16>(), args.residual = op.residual.as<const bf16>();
  args.x_stride = op.x.row_stride, args.y_stride = op.y.row_stride, args.residual_stride = op.residual.row_stride;
  args.n = static_cast<int>(op.y.cols()), args.k = static_cast<int>(k);
  args.scale = op.scale;
  args.relu = op.activation == Activation::relu;
  if (rows == 1) launch<1>(args, context);
  else launch<2>(args, context);
  return true;
}

}  // namespace blipft
