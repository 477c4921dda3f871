// Layer norm, backward. With x^ = (x - mean) rstd and g = dy gamma, over a row of n:
//   dx = rstd (g - mean(g) - x^ mean(g x^)) + add;  dgamma = sum over rows of dy x^;  dbeta = sum over rows of dy;
//   dbias = sum over rows of dx, or of dx through a dropout; y = x^ gamma + beta.
// One block a multiprocessor holds several teams of threads; each team takes rows in turn and keeps its columns' parts
// of dgamma, dbeta and dbias in registers. Rows on their way lie in shared memory, where each thread reads only what it
// fetched itself. The teams of a block add their parts up, each block writes one row of partial sums, and a second
// kernel adds those in order.
#include "cuda/cuda_ops.h"
#include "cuda/vector.cuh"
#include "ops_check.h"

namespace blipft {
namespace {

struct BackwardArgs {
  int64_t rows = 0, cols = 0;
  const float *mean = nullptr, *rstd = nullptr;
  const void* beta = nullptr;       ///< T [cols], with y
  void* y = nullptr;                ///< T [rows, cols], the norm's output, optional
  DropoutKernelArgs dropout;
  float* partials = nullptr;        ///< [blocks, 2 or 3, cols]: dgamma, dbeta, dbias
};

/// mean(g) and mean(g x^) of a team's row.
struct RowMeans {
  float g, gx;
};

/// Waits for the threads of a team; the other teams go on.
__device__ __forceinline__ void team_barrier(int team, int team_threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "r"(team_threads) : "memory");
}

/// Sums of a and b over the warps of a team; `shared` is this team's [2 * warps], not in use by anybody else.
__device__ __forceinline__ RowMeans team_means(float a, float b, float* shared, int team, int team_threads, int thread,
                                               float scale) {
  a = warp_sum(a);
  b = warp_sum(b);
  if (team_threads > 32) {
    const int warps = team_threads / 32;
    if (thread % 32 == 0) *reinterpret_cast<float2*>(shared + 2 * (thread / 32)) = {a, b};
    team_barrier(team, team_threads);
    a = b = 0;
    for (int i = 0; i < warps; ++i) {
      const float2 sums = *reinterpret_cast<const float2*>(shared + 2 * i);
      a += sums.x;
      b += sums.y;
    }
  }
  return {a * scale, b * scale};
}

/// Threads of the largest block, which has a multiprocessor to itself: 64, 96 or 128 registers a thread. Dropout and
/// the norm's output need more of them.
template <int kPacks, bool kDropped, bool kOutput>
constexpr int kBlockThreads = kPacks == 1 && !kDropped && !kOutput ? 1024 : kPacks + kDropped <= 2 ? 640 : 512;
constexpr int kMaxTeams = 15;  // a block has 16 barriers, and the whole block's is one of them

/// Rows of a team in shared memory: the one it works on and those on their way.
template <int kPacks>
constexpr int kStages = kPacks == 4 ? 2 : 3;

/// Adds the teams' parts of one sum in order and writes them to this block's place among the partial sums. `shared`
/// holds teams * cols floats; the next call may use it again.
template <int N, int kPacks>
__device__ __forceinline__ void write_partials(const float (&parts)[kPacks][N], float* shared, float* __restrict__ out,
                                               int cols) {
  const int teams = blockDim.y;
  __syncthreads();
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int c = (threadIdx.x + p * blockDim.x) * N;
    if (c < cols) store(shared + threadIdx.y * cols + c, parts[p]);
  }
  __syncthreads();
  const int thread = threadIdx.y * blockDim.x + threadIdx.x;
  for (int c = thread * 4; c < cols; c += blockDim.x * blockDim.y * 4) {  // packs hold at least four columns
    float total[4] = {};
    for (int team = 0; team < teams; ++team) {
      float part[4];
      load(shared + team * cols + c, part);
#pragma unroll
      for (int j = 0; j < 4; ++j) total[j] += part[j];
    }
    store(out + c, total);
  }
}

/// blockDim = (threads of a team, teams). Team t of block b takes rows b + gridDim.x * (t + k teams): blocks differ by
/// one row at most.
template <class T, int N, int kPacks, bool kParameters, bool kOutput, bool kDropped, bool kAdd, bool kBias>
__global__ void __launch_bounds__(kBlockThreads<kPacks, kDropped, kOutput>, 1)
norm_backward_kernel(const T* dy, const T* __restrict__ x, const T* __restrict__ gamma, const T* add, T* dx,
                     T* __restrict__ dropped, BackwardArgs args) {
  extern __shared__ __align__(16) unsigned char dynamic[];
  __shared__ __align__(8) float team_sums[2][2 * 32];  // alternating, so that one barrier a row is enough
  constexpr int kInputs = kAdd ? 3 : 2, kRing = kStages<kPacks>;
  const int thread = threadIdx.x, team_threads = blockDim.x, team = threadIdx.y;
  const int cols = static_cast<int>(args.cols);
  const float scale = 1.0f / static_cast<float>(cols);
  const int64_t stride = int64_t{gridDim.x} * blockDim.y;
  auto* ring = reinterpret_cast<Pack<T, N>*>(dynamic) + team * team_threads + thread;
  const int ring_step = team_threads * blockDim.y;  // packs between one thread's places
  const auto place = [&](int stage, int input, int p) {
    return ring + ((stage * kInputs + input) * kPacks + p) * ring_step;
  };
  const auto fetch = [&](int64_t row, int stage) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int c = (thread + p * team_threads) * N;
      if (row >= args.rows || c >= cols) continue;
      fetch_async16(place(stage, 0, p), dy + row * cols + c);
      fetch_async16(place(stage, 1, p), x + row * cols + c);
      if constexpr (kAdd) fetch_async16(place(stage, 2, p), add + row * cols + c);
    }
    commit_fetches();
  };
  int64_t row = blockIdx.x + int64_t{gridDim.x} * team;
#pragma unroll
  for (int s = 0; s < kRing - 1; ++s) fetch(row + s * stride, s);
  float next_mean = row < args.rows ? args.mean[row] : 0, next_rstd = row < args.rows ? args.rstd[row] : 0;
  Pack<T, N> weights[kPacks];
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int c = (thread + p * team_threads) * N;
    if (c < cols) weights[p] = load_pack<N>(gamma + c);
  }
  float dgamma[kParameters ? kPacks : 1][N] = {}, dbeta[kParameters ? kPacks : 1][N] = {};
  float dbias[kBias ? kPacks : 1][N] = {};
  int stage = 0, phase = 0;
  for (; row < args.rows; row += stride, phase ^= 1) {
    fetch(row + (kRing - 1) * stride, stage == 0 ? kRing - 1 : stage - 1);  // where the row before this one was
    const float rstd = next_rstd, shift = -next_mean * rstd;  // x^ = x rstd + shift
    if (row + stride < args.rows) {
      next_mean = args.mean[row + stride];
      next_rstd = args.rstd[row + stride];
    }
    // Read early (see padded_row). Row numbers fit into 31 bits, and registers are scarce.
    const int mask_row = kDropped ? static_cast<int>(padded_row(args.dropout, row)) : 0;
    wait_fetches<kRing - 1>();
    float sum_g = 0, sum_gx = 0;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if ((thread + p * team_threads) * N >= cols) continue;
      const Pack<T, N> gradients = *place(stage, 0, p), inputs = *place(stage, 1, p);
      if constexpr (kOutput) {
        const int c = (thread + p * team_threads) * N;
        float y[N];
        load(static_cast<const T*>(args.beta) + c, y);
#pragma unroll
        for (int j = 0; j < N; ++j)
          y[j] = fmaf(fmaf(to_float(inputs.v[j]), rstd, shift), to_float(weights[p].v[j]), y[j]);
        store(static_cast<T*>(args.y) + row * cols + c, y);
      }
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const float gradient = to_float(gradients.v[j]), normalized = fmaf(to_float(inputs.v[j]), rstd, shift);
        if constexpr (kParameters) {
          dgamma[p][j] += gradient * normalized;
          dbeta[p][j] += gradient;
        }
        const float weighted = gradient * to_float(weights[p].v[j]);
        sum_g += weighted;
        sum_gx += weighted * normalized;
      }
    }
    const RowMeans means = team_means(sum_g, sum_gx, team_sums[phase] + team * (team_threads / 16), team, team_threads,
                                      thread, scale);
    // rstd (g - mean(g) - x^ mean(g x^)), as g rstd + x slope + offset.
    const float slope = -rstd * rstd * means.gx, offset = -rstd * fmaf(shift, means.gx, means.g);
    DropoutRow sample{};
    if constexpr (kDropped) sample = dropout_row(args.dropout, mask_row, cols);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int c = (thread + p * team_threads) * N;
      if (c >= cols) continue;
      // Read and converted again: registers for copies would cost more.
      const Pack<T, N> gradients = *place(stage, 0, p), inputs = *place(stage, 1, p);
      float out[N];
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const float weighted = to_float(gradients.v[j]) * to_float(weights[p].v[j]);
        out[j] = fmaf(weighted, rstd, fmaf(to_float(inputs.v[j]), slope, offset));
      }
      if constexpr (kAdd) {
        const Pack<T, N> added = *place(stage, 2, p);
#pragma unroll
        for (int j = 0; j < N; ++j) out[j] += to_float(added.v[j]);
      }
      store(dx + row * cols + c, out);
      if constexpr (kDropped) {
        apply_dropout(out, args.dropout, sample, c);
        store(dropped + row * cols + c, out);
      }
      if constexpr (kBias) {
#pragma unroll
        for (int j = 0; j < N; ++j) dbias[p][j] += out[j];
      }
    }
    stage = stage == kRing - 1 ? 0 : stage + 1;
  }
  auto* shared = reinterpret_cast<float*>(dynamic);
  wait_fetches<0>();
  float* partials = args.partials + int64_t{blockIdx.x} * (2 * kParameters + kBias) * cols;
  if constexpr (kParameters) {
    write_partials<N, kPacks>(dgamma, shared, partials, cols);
    write_partials<N, kPacks>(dbeta, shared, partials + cols, cols);
  }
  if constexpr (kBias) write_partials<N, kPacks>(dbias, shared, partials + 2 * kParameters * cols, cols);
}

constexpr int kGeneralThreads = 256;

/// Any row size and alignment, rows in memory. Without parameter gradients; those come from the kernel below.
/// dx may be dy: the passes before the last only read, and each thread writes the elements that it reads.
template <class T>
__global__ void __launch_bounds__(kGeneralThreads)
norm_backward_general_kernel(const T* dy, const T* x, const T* gamma, const T* add, T* dx, T* dropped,
    BackwardArgs args) {
  __shared__ __align__(8) float sums[2 * kGeneralThreads / 32];
  const int64_t row = blockIdx.x, cols = args.cols, first = row * cols;
  const float mean = args.mean[row], rstd = args.rstd[row];
  float sum_g = 0, sum_gx = 0;
  for (int64_t c = threadIdx.x; c < cols; c += kGeneralThreads) {
    const float g = to_float(dy[first + c]) * to_float(gamma[c]);
    const float normalized = (to_float(x[first + c]) - mean) * rstd;
    sum_g += g;
    sum_gx += g * normalized;
    if (args.y)
      static_cast<T*>(args.y)[first + c] =
          from_float<T>(normalized * to_float(gamma[c]) + to_float(static_cast<const T*>(args.beta)[c]));
  }
  const RowMeans means = team_means(sum_g, sum_gx, sums, 0, kGeneralThreads, threadIdx.x,
                                    1.0f / static_cast<float>(cols));
  DropoutRow place{};
  if (dropped) place = dropout_row(args.dropout, padded_row(args.dropout, row), cols);
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
template <class T, int kPacks, bool kParameters, bool kOutput, bool kDropped, bool kAdd, bool kBias>
int64_t launch_packs(const NormBackward& args, const BackwardArgs& kernel_args, const LaunchContext& context) {
  constexpr int N = kVector<T>;
  const auto kernel = norm_backward_kernel<T, N, kPacks, kParameters, kOutput, kDropped, kAdd, kBias>;
  const int64_t rows = kernel_args.rows;
  const int64_t team_threads = round_up(ceil_div(kernel_args.cols, N * kPacks), 32);
  int64_t blocks = std::min<int64_t>(context.sm_count, rows);
  constexpr int64_t kSums = 2 * kParameters + kBias;
  if (kSums > 0) blocks = std::min(blocks, context.scratch_bytes / (4 * kSums * kernel_args.cols));
  BLIPFT_CHECK(blocks >= 1, "norm_backward of ", kernel_args.cols, " columns needs a larger workspace");
  const int64_t teams = std::clamp<int64_t>(kBlockThreads<kPacks, kDropped, kOutput> / team_threads, 1,
                                            std::min<int64_t>(kMaxTeams, ceil_div(rows, blocks)));
  const int64_t shared = teams * team_threads * 16 * kPacks * kStages<kPacks> * (kAdd ? 3 : 2);
  static_assert(16 * kStages<kPacks> * 2 >= 4 * N, "the teams' sums take the place of the rows");
  // 192 KiB at most (512 threads, 4 packs); above 48 KiB a kernel must ask.
  BLIPFT_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         static_cast<int>(shared)));
  const dim3 block(static_cast<unsigned>(team_threads), static_cast<unsigned>(teams));
  kernel<<<static_cast<unsigned>(blocks), block, static_cast<size_t>(shared), context.stream>>>(
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

/// Whether the kernel that keeps whole rows in its team can do it; it alone makes dbias as well. The norm's output it
/// makes with parameter gradients only: who wants the one wants the other.
template <class T>
bool fits_packs(const NormBackward& args) {
  const int64_t cols = args.dy.cols();
  return cols % kVector<T> == 0 && cols <= 8192 && (!args.y || args.dgamma) &&
         all_aligned16(args.dy, args.x, args.gamma, args.beta, args.y, args.add, args.dx, args.dropped);
}

template <class T>
int64_t launch_norm_backward(const NormBackward& args, const BackwardArgs& kernel_args, const LaunchContext& context) {
  const int64_t packs = kernel_args.cols / kVector<T>;
  int64_t blocks = 0;
  const auto launch_for = [&](auto output, auto parameters, auto dropped, auto add, auto bias) {
    constexpr bool kParameters = decltype(parameters)::value, kOutput = decltype(output)::value;
    constexpr bool kDropped = decltype(dropped)::value, kAdd = decltype(add)::value, kBias = decltype(bias)::value;
    const auto run = [&](auto count) {
      blocks = launch_packs<T, decltype(count)::value, kParameters, kOutput, kDropped, kAdd, kBias>(args, kernel_args,
                                                                                                   context);
    };
    if (packs <= 512) run(std::integral_constant<int, 1>{});
    else if (packs <= 1024) run(std::integral_constant<int, 2>{});
    else if constexpr (sizeof(T) == 4) run(std::integral_constant<int, 4>{});
  };
  const auto launch = [&](auto parameters, auto dropped, auto add, auto bias) {
    if constexpr (decltype(parameters)::value) {
      if (args.y) return launch_for(std::true_type{}, parameters, dropped, add, bias);
    }
    launch_for(std::false_type{}, parameters, dropped, add, bias);
  };
  dispatch_bool(static_cast<bool>(args.dgamma), [&](auto parameters) {
    dispatch_bool(static_cast<bool>(args.dropped), [&](auto dropped) {
      dispatch_bool(static_cast<bool>(args.add), [&](auto add) {
        dispatch_bool(static_cast<bool>(args.dbias), [&](auto bias) { launch(parameters, dropped, add, bias); });
      });
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
                                 args.rstd.as<const float>(), args.beta.data, args.y.data,
                                 dropout_kernel_args(args.dropout), launch.scratch};
  int64_t groups = 0;
  bool packs = false;
  dispatch_float(args.dy.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    packs = fits_packs<T>(args);
    groups = packs ? launch_norm_backward<T>(args, kernel_args, launch) : launch_general<T>(args, kernel_args, launch);
  });
  PartialSums sums{launch.scratch, groups, kernel_args.cols};
  if (args.dgamma) {
    sums.add(args.dgamma, args.accumulate);
    sums.add(args.dbeta, args.accumulate);
  }
  if (args.dbias && packs) sums.add(args.dbias, args.accumulate_dbias);
  if (sums.count > 0) launch_reduce_partials(sums, launch);
  if (args.dbias && !packs)
    launch_column_sums(args.dropped ? args.dropped : args.dx, args.dbias, args.accumulate_dbias, launch);
}

}  // namespace blipft
