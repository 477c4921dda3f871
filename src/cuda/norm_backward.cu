// Layer norm, backward. With x^ = (x - mean) rstd and g = dy gamma, over a row of n:
//   dx = rstd (g - mean(g) - x^ mean(g x^)) + add;  dgamma = sum over rows of dy x^;  dbeta = sum over rows of dy.
// A block holds several teams of threads; each team takes rows in turn and keeps its columns' parts of dgamma and dbeta
// in registers. The teams of a block add theirs up, each block writes one row of partial sums, and a second kernel adds
// those in order.
#include "cuda/cuda_ops.h"
#include "cuda/vector.cuh"
#include "ops_check.h"

namespace blipft {
namespace {

struct BackwardArgs {
  int64_t rows = 0, cols = 0;
  const float *mean = nullptr, *rstd = nullptr;
  DropoutKernelArgs dropout;
  float* partials = nullptr;        ///< [blocks, 2, cols]
};

/// mean(g) and mean(g x^) of a team's row.
struct RowMeans {
  float g, gx;
};

/// Sums of a and b over the warps of a team; `shared` is this team's [2 * warps], not in use by anybody else.
__device__ __forceinline__ RowMeans team_means(float a, float b, float* shared, int warp, int lane, int warps,
    float scale) {
  a = warp_sum(a);
  b = warp_sum(b);
  if (lane == 0) {
    shared[2 * warp] = a;
    shared[2 * warp + 1] = b;
  }
  __syncthreads();
  RowMeans means{0, 0};
  for (int i = 0; i < warps; ++i) {
    means.g += shared[2 * i];
    means.gx += shared[2 * i + 1];
  }
  return {means.g * scale, means.gx * scale};
}

/// Adds the teams' parts and writes this block's row of partial sums. `shared` holds 2 * cols floats when teams > 1.
template <int N, int kPacks>
__device__ __forceinline__ void write_parameter_partials(float (&dgamma)[kPacks][N], float (&dbeta)[kPacks][N],
                                                         float* shared, float* __restrict__ partials, int cols,
                                                         int thread, int team_threads, int team, int teams) {
  for (int other = 1; other < teams; ++other) {
    __syncthreads();
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int c = (thread + p * team_threads) * N;
      if (team != other || c >= cols) continue;
      store(shared + c, dgamma[p]);
      store(shared + cols + c, dbeta[p]);
    }
    __syncthreads();
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int c = (thread + p * team_threads) * N;
      if (team != 0 || c >= cols) continue;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        dgamma[p][j] += shared[c + j];
        dbeta[p][j] += shared[cols + c + j];
      }
    }
  }
  if (team != 0) return;
  float* out = partials + int64_t{blockIdx.x} * 2 * cols;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int c = (thread + p * team_threads) * N;
    if (c >= cols) continue;
    store(out + c, dgamma[p]);
    store(out + cols + c, dbeta[p]);
  }
}

/// Makes the compiler forget what it computed from `pack`, so that it converts again instead of holding f32 copies in
/// registers that the kernel does not have.
template <class T, int N>
__device__ __forceinline__ void forget(Pack<T, N>& pack) {
  auto* words = reinterpret_cast<uint32_t*>(&pack);
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(pack) / 4); ++i) asm volatile("" : "+r"(words[i]));
}

/// The largest block: 80 registers a thread with two blocks a multiprocessor, 128 with one.
template <int kPacks>
constexpr int kBlockThreads = kPacks == 1 ? 384 : 512;

/// blockDim = (threads of a team, teams). Rows of a block: blockIdx.x * teams + team, then gridDim.x * teams further
/// on. The next row is loaded before this one's sums are waited for. Rows stay in registers as they were loaded:
/// converting twice costs less than holding them in f32.
template <class T, int N, int kPacks, bool kParameters, bool kDropped>
__global__ void __launch_bounds__(kBlockThreads<kPacks>, kPacks == 1 ? 2 : 1)
norm_backward_kernel(const T* dy, const T* __restrict__ x, const T* __restrict__ gamma, const T* add, T* dx,
                     T* __restrict__ dropped, BackwardArgs args) {
  extern __shared__ __align__(16) float dynamic[];
  __shared__ float sums[2][2 * 16];  // alternating, so that one barrier per row is enough
  const int thread = threadIdx.x, team_threads = blockDim.x, team = threadIdx.y, teams = blockDim.y;
  const int warp = thread / 32, lane = thread % 32, warps = team_threads / 32;
  const int cols = static_cast<int>(args.cols);
  const float scale = 1.0f / static_cast<float>(cols);
  float dgamma[kParameters ? kPacks : 1][N] = {}, dbeta[kParameters ? kPacks : 1][N] = {};
  Pack<T, N> next_dy[kPacks], next_x[kPacks];
  const auto prefetch = [&](int64_t row) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int c = (thread + p * team_threads) * N;
      if (row >= args.rows || c >= cols) continue;
      next_dy[p] = load_pack<N>(dy + row * cols + c);
      next_x[p] = load_pack<N>(x + row * cols + c);
    }
  };
  const int64_t stride = int64_t{gridDim.x} * teams;
  int phase = 0;
  prefetch(int64_t{blockIdx.x} * teams + team);
  // All teams make the same number of rounds, since they share barriers.
  for (int64_t base = int64_t{blockIdx.x} * teams; base < args.rows; base += stride, phase ^= 1) {
    const int64_t row = base + team;
    const bool valid = row < args.rows;
    const float mean = valid ? args.mean[row] : 0, rstd = valid ? args.rstd[row] : 0;
    Pack<T, N> own_dy[kPacks], own_x[kPacks], added[kPacks];
    float sum_g = 0, sum_gx = 0;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int c = (thread + p * team_threads) * N;
      if (!valid || c >= cols) continue;
      own_dy[p] = next_dy[p];
      own_x[p] = next_x[p];
      if (add) added[p] = load_pack<N>(add + row * cols + c);
      float weight[N];
      load(gamma + c, weight);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const float gradient = to_float(own_dy[p].v[j]), normalized = (to_float(own_x[p].v[j]) - mean) * rstd;
        if constexpr (kParameters) {
          dgamma[p][j] += gradient * normalized;
          dbeta[p][j] += gradient;
        }
        sum_g += gradient * weight[j];
        sum_gx += gradient * weight[j] * normalized;
      }
    }
    prefetch(row + stride);
    const RowMeans means = team_means(sum_g, sum_gx, sums[phase] + team * 2 * warps, warp, lane, warps, scale);
    if (!valid) continue;
    DropoutRow place{};
    if constexpr (kDropped) place = dropout_row(args.dropout, row, cols);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int c = (thread + p * team_threads) * N;
      if (c >= cols) continue;
      forget(own_dy[p]);
      forget(own_x[p]);
      const T* weights = gamma + c;
      asm volatile("" : "+l"(weights));  // read again, from the L1 cache
      float out[N], weight[N];
      load(weights, weight);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const float normalized = (to_float(own_x[p].v[j]) - mean) * rstd;
        out[j] = rstd * (to_float(own_dy[p].v[j]) * weight[j] - means.g - normalized * means.gx);
        if (add) out[j] += to_float(added[p].v[j]);
      }
      store(dx + row * cols + c, out);
      if constexpr (kDropped) {
        apply_dropout(out, args.dropout, place, c);
        store(dropped + row * cols + c, out);
      }
    }
  }
  if constexpr (kParameters)
    write_parameter_partials<N, kPacks>(dgamma, dbeta, dynamic, args.partials, cols, thread, team_threads, team, teams);
}

constexpr int kGeneralThreads = 256;

/// Any row size and alignment, rows in memory. Without parameter gradients; those come from the kernel below.
/// dx may be dy: the passes before the last only read, and each thread writes the elements that it reads.
template <class T>
__global__ void __launch_bounds__(kGeneralThreads)
norm_backward_general_kernel(const T* dy, const T* x, const T* gamma, const T* add, T* dx, T* dropped,
    BackwardArgs args) {
  __shared__ float sums[2 * kGeneralThreads / 32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t row = blockIdx.x, cols = args.cols, first = row * cols;
  const float mean = args.mean[row], rstd = args.rstd[row];
  float sum_g = 0, sum_gx = 0;
  for (int64_t c = threadIdx.x; c < cols; c += kGeneralThreads) {
    const float g = to_float(dy[first + c]) * to_float(gamma[c]);
    sum_g += g;
    sum_gx += g * (to_float(x[first + c]) - mean) * rstd;
  }
  const RowMeans means = team_means(sum_g, sum_gx, sums, warp, lane, kGeneralThreads / 32,
      1.0f / static_cast<float>(cols));
  DropoutRow place{};
  if (dropped) place = dropout_row(args.dropout, row, cols);
  for (int64_t c = threadIdx.x; c < cols; c += kGeneralThreads) {
    const float g = to_float(dy[first + c]) * to_float(gamma[c]);
    float out[1] = {rstd * (g - means.g - (to_float(x[first + c]) - mean) * rstd * means.gx)};
    if (add) out[0] += to_float(add[first + c]);
    dx[first + c] = from_float<T>(out[0]);
    if (!dropped) continue;
    apply_dropout(out, args.dropout, place, c);
    dropped[first + c] = from_float<T>(out[0]);
  }
}

/// Parameter gradients for the general kernel, before it overwrites dy: one thread per column of a chunk of rows.
template <class T>
__global__ void norm_parameters_general_kernel(const T* __restrict__ dy, const T* __restrict__ x, BackwardArgs args,
                                               int64_t chunk_rows) {
  const int64_t c = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (c >= args.cols) return;
  const int64_t begin = int64_t{blockIdx.y} * chunk_rows;
  const int64_t end = begin + chunk_rows < args.rows ? begin + chunk_rows : args.rows;
  float dgamma = 0, dbeta = 0;
  for (int64_t r = begin; r < end; ++r) {
    const float gradient = to_float(dy[r * args.cols + c]);
    dgamma += gradient * (to_float(x[r * args.cols + c]) - args.mean[r]) * args.rstd[r];
    dbeta += gradient;
  }
  float* out = args.partials + int64_t{blockIdx.y} * 2 * args.cols;
  out[c] = dgamma;
  out[args.cols + c] = dbeta;
}

/// Returns the number of rows of partial sums.
template <class T, int kPacks, bool kParameters, bool kDropped>
int64_t launch_packs(const NormBackward& args, const BackwardArgs& kernel_args, const LaunchContext& context) {
  constexpr int N = kVector<T>;
  const auto kernel = norm_backward_kernel<T, N, kPacks, kParameters, kDropped>;
  const int team_threads = static_cast<int>(round_up(ceil_div(kernel_args.cols, N * kPacks), 32));
  int teams = std::max(1, kBlockThreads<kPacks> / team_threads);
  const int64_t combine_bytes = kParameters ? 2 * 4 * kernel_args.cols : 0;
  if (combine_bytes > 47 << 10) teams = 1;  // 48 KiB go without an opt-in, the row sums' among them
  const auto shared = static_cast<size_t>(teams > 1 ? combine_bytes : 0);
  int per_sm = 1;
  BLIPFT_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, kernel, team_threads * teams, shared));
  int64_t blocks = std::min<int64_t>(int64_t{context.sm_count} * std::max(per_sm, 1),
                                    ceil_div(kernel_args.rows, teams));
  if (kParameters) blocks = std::min(blocks, context.scratch_bytes / (8 * kernel_args.cols));
  BLIPFT_CHECK(blocks >= 1, "norm_backward of ", kernel_args.cols, " columns needs a larger workspace");
  const dim3 block(static_cast<unsigned>(team_threads), static_cast<unsigned>(teams));
  kernel<<<static_cast<unsigned>(blocks), block, shared, context.stream>>>(
      args.dy.as<const T>(), args.x.as<const T>(), args.gamma.as<const T>(), args.add.as<const T>(), args.dx.as<T>(),
      args.dropped.as<T>(), kernel_args);
  BLIPFT_CUDA_LAUNCHED("norm_backward_kernel");
  return blocks;
}

template <class T>
int64_t launch_general(const NormBackward& args, const BackwardArgs& kernel_args, const LaunchContext& context) {
  int64_t chunks = 0;
  if (args.dgamma) {
    const int64_t limit = std::min<int64_t>(65535, context.scratch_bytes / (8 * kernel_args.cols));
    BLIPFT_CHECK(limit >= 1, "norm_backward of ", kernel_args.cols, " columns needs a larger workspace");
    const int64_t chunk_rows = ceil_div(kernel_args.rows, std::min<int64_t>(limit, 256));
    chunks = ceil_div(kernel_args.rows, chunk_rows);
    const dim3 grid(static_cast<unsigned>(ceil_div(kernel_args.cols, 128)), static_cast<unsigned>(chunks));
    norm_parameters_general_kernel<T>
        <<<grid, 128, 0, context.stream>>>(args.dy.as<const T>(), args.x.as<const T>(), kernel_args, chunk_rows);
    BLIPFT_CUDA_LAUNCHED("norm_parameters_general_kernel");
  }
  norm_backward_general_kernel<T><<<static_cast<unsigned>(kernel_args.rows), kGeneralThreads, 0, context.stream>>>(
      args.dy.as<const T>(), args.x.as<const T>(), args.gamma.as<const T>(), args.add.as<const T>(), args.dx.as<T>(),
      args.dropped.as<T>(), kernel_args);
  BLIPFT_CUDA_LAUNCHED("norm_backward_general_kernel");
  return chunks;
}

template <class T>
int64_t launch_norm_backward(const NormBackward& args, const BackwardArgs& kernel_args, const LaunchContext& context) {
  const int64_t packs = kernel_args.cols / kVector<T>;
  const bool vectors = kernel_args.cols % kVector<T> == 0 && kernel_args.cols <= 8192 &&
                       all_aligned16(args.dy, args.x, args.gamma, args.add, args.dx, args.dropped);
  if (!vectors) return launch_general<T>(args, kernel_args, context);
  int64_t blocks = 0;
  dispatch_bool(static_cast<bool>(args.dgamma), [&](auto parameters) {
    dispatch_bool(static_cast<bool>(args.dropped), [&](auto dropped) {
      constexpr bool kParameters = decltype(parameters)::value, kDropped = decltype(dropped)::value;
      if (packs <= 256) blocks = launch_packs<T, 1, kParameters, kDropped>(args, kernel_args, context);
      else if (packs <= 1024) blocks = launch_packs<T, 2, kParameters, kDropped>(args, kernel_args, context);
      else if constexpr (sizeof(T) == 4) blocks = launch_packs<T, 4, kParameters, kDropped>(args, kernel_args, context);
    });
  });
  return blocks;
}

}  // namespace

void CudaOps::norm_backward(const NormBackward& args, Stream stream) {
  check_args(args);
  if (args.dy.numel() == 0) return;
  const LaunchContext launch = context(stream);
  const BackwardArgs kernel_args{args.dy.rows(), args.dy.cols(), args.mean.as<const float>(),
      args.rstd.as<const float>(),
                                 dropout_kernel_args(args.dropout), launch.scratch};
  int64_t partials = 0;
  dispatch_float(args.dy.dtype, [&](auto tag) {
    partials = launch_norm_backward<typename decltype(tag)::type>(args, kernel_args, launch);
  });
  if (!args.dgamma) return;
  launch_reduce_partials(launch.scratch, partials, 2 * kernel_args.cols, args.dgamma, args.dbeta, args.accumulate,
      launch);
}

}  // namespace blipft
