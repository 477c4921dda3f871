// Backward of LayerNorm and RMSNorm. With x^ = (x - mean) rstd and g = dy gamma, for a row of n elements:
//   dx = rstd (g - mean(g) - x^ mean(g x^)) + add;  dgamma = sum over rows of dy x^;  dbeta = sum over rows of dy;
//   dbias = sum over rows of dx, or of dx through a dropout; y = x^ gamma + beta.
// For RMSNorm x^ = x rstd, and there is no mean(g) and no beta.
// One block per multiprocessor contains several teams of threads. Each team processes rows in turn and keeps its
// columns' partial sums of dgamma, dbeta and dbias in registers. Prefetched rows are in shared memory, where each
// thread reads only what it has copied itself. The teams of a block add their partial sums, each block writes one row
// of partial sums, and a second kernel adds these in order.
#include "cuda/cuda_ops.h"
#include "cuda/gemm/largest.cuh"
#include "cuda/vector.cuh"
#include "ops/ops_check.h"

namespace blipft {
namespace {

struct BackwardArgs {
  int64_t rows = 0, cols = 0;
  const float *mean = nullptr, *rstd = nullptr;  ///< mean is null for RMSNorm
  const void* beta = nullptr;       ///< T [cols], goes with y
  void* y = nullptr;                ///< T [rows, cols], the norm's output, optional
  DropoutKernelArgs dropout;
  float* partials = nullptr;        ///< [blocks, sums, cols]: the requested ones of dgamma, dbeta, dbias
  RmsForm rms;
  unsigned* amax = nullptr;         ///< optional; of `dropped`, or of dx if `dropped` is absent
};

/// Number of row sums for parameter gradients: dgamma and, except for RMSNorm, dbeta.
constexpr int parameter_sums(bool parameters, bool rms) { return parameters ? (rms ? 1 : 2) : 0; }

/// Returns the value that RMSNorm multiplies by gamma.
template <class T>
__device__ __forceinline__ float before_gamma(float normalized, const RmsForm& form) {
  return form.rounds_once ? normalized : to_float(from_float<T>(normalized));
}

/// mean(g) and mean(g x^) of a team's row.
struct RowMeans {
  float g, gx;
};

/// Barrier of the threads of one team.
__device__ __forceinline__ void team_barrier(int team, int team_threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "r"(team_threads) : "memory");
}

constexpr int kMaxWarps = 16;  ///< of a team
/// Partial sums of a team's warps: of g, then of g x^. Entries of warps that the team does not have stay zero.
using WarpSums = float[2 * kMaxWarps];

/// Computes the means of a team's row. `shared` belongs to this team and must not be in use.
__device__ __forceinline__ RowMeans team_means(float g, float gx, WarpSums& shared, int team, int team_threads,
                                               int thread, float scale) {
  // The lower half of the warp reduces g, the upper half g x^.
  const bool upper = (thread & 16) != 0;
  float sum = (upper ? gx : g) + __shfl_xor_sync(0xffffffffu, upper ? g : gx, 16);
#pragma unroll
  for (int offset = 8; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  if (team_threads == 32) {
    const float other = __shfl_xor_sync(0xffffffffu, sum, 16);
    return {(upper ? other : sum) * scale, (upper ? sum : other) * scale};
  }
  if (thread % 16 == 0) shared[(upper ? kMaxWarps : 0) + thread / 32] = sum;
  team_barrier(team, team_threads);
  g = sum_eight(shared);
  gx = sum_eight(shared + kMaxWarps);
  if (team_threads > 8 * 32) {
    g += sum_eight(shared + 8);
    gx += sum_eight(shared + kMaxWarps + 8);
  }
  return {g * scale, gx * scale};
}

/// Threads of the largest block, which uses a whole multiprocessor: 96 or 128 registers per thread.
template <int kPacks>
constexpr int kBlockThreads = kPacks == 1 ? 640 : 512;
constexpr int kMaxTeams = 15;  // a block has 16 barriers, one of which is that of the whole block

/// Rows of a team in shared memory: the current row and the prefetched ones.
template <int kPacks>
constexpr int kStages = kPacks == 4 ? 2 : 3;

/// Shared memory of a team; kBlockBytes is that of a block in addition to its teams.
template <int kPacks>
int64_t team_bytes(int64_t team_threads, bool add) {
  return team_threads * 16 * kPacks * kStages<kPacks> * (add ? 3 : 2);
}
constexpr int64_t kBlockBytes = 2 * kMaxTeams * sizeof(WarpSums);

/// Adds the teams' sums, [teams, count], in order. `count` is a multiple of four because packs hold at least four
/// columns.
__device__ __forceinline__ void add_teams(const float* shared, float* __restrict__ out, int count) {
  const int teams = blockDim.y, thread = threadIdx.y * blockDim.x + threadIdx.x;
  for (int i = thread * 4; i < count; i += blockDim.x * teams * 4) {
    float total[4] = {};
    for (int team = 0; team < teams; ++team) {
      float part[4];
      load(shared + team * count + i, part);
#pragma unroll
      for (int j = 0; j < 4; ++j) total[j] += part[j];
    }
    store(out + i, total);
  }
}

/// The columns of a row that a thread owns: packs at a distance of `step` columns.
struct Columns {
  int first, step, count;  ///< count: columns of the row
  __device__ __forceinline__ int at(int p) const { return first + p * step; }
  __device__ __forceinline__ bool inside(int p) const { return at(p) < count; }
};

/// Writes one of a team's sums to shared memory, [columns].
template <int N, int kPacks>
__device__ __forceinline__ void stage_sum(const float (&parts)[kPacks][N], float* to, const Columns& columns) {
#pragma unroll
  for (int p = 0; p < kPacks; ++p)
    if (columns.inside(p)) store(to + columns.at(p), parts[p]);
}

/// Ring buffer of a team's prefetched rows in shared memory; each thread reads only what it has copied itself.
template <class T, int N, int kPacks, bool kAdd>
struct RowRing {
  static constexpr int kInputs = kAdd ? 3 : 2, kRows = kStages<kPacks>;
  enum Input { gradient, input, addend };
  const T *dy, *x, *add;
  Columns columns;
  uint32_t pack_bytes, row_bytes;  ///< shared memory bytes between a thread's packs, and between rows
  uint32_t begin, row, next;       ///< the ring's first row, the row to read, the row to prefetch next

  __device__ __forceinline__ RowRing(const T* dy, const T* x, const T* add, const Columns& columns, void* shared)
      : dy(dy), x(x), add(add), columns(columns), pack_bytes(16 * blockDim.x * blockDim.y),
        row_bytes(pack_bytes * kInputs * kPacks),
        begin(shared_address(shared) + 16 * (threadIdx.y * blockDim.x + threadIdx.x)), row(begin), next(begin) {}

  __device__ __forceinline__ uint32_t behind(uint32_t place) const {
    return place + row_bytes == begin + kRows * row_bytes ? begin : place + row_bytes;
  }
  /// Prefetches the thread's packs of a row, the first of which is element `at`; nothing if `there` is false.
  __device__ __forceinline__ void fetch(bool there, int64_t at) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (!there || !columns.inside(p)) continue;
      const int64_t element = at + p * columns.step;
      copy16_async(next + (gradient * kPacks + p) * pack_bytes, dy + element);
      copy16_async(next + (input * kPacks + p) * pack_bytes, x + element);
      if constexpr (kAdd) copy16_async(next + (addend * kPacks + p) * pack_bytes, add + element);
    }
    commit_copies();
    next = behind(next);
  }
  __device__ __forceinline__ void load(Input which, int p, float (&values)[N]) const {
    Pack<T, N> pack;
    load_shared(row + (which * kPacks + p) * pack_bytes, pack);
    unpack(pack, values);
  }
};

/// blockDim = (threads of a team, teams). Team t of block b processes rows b + gridDim.x * (t + k teams), so the
/// blocks' numbers of rows differ by at most one. Row indices fit into 31 bits.
// The kernel has 126 lines because both passes over a row share registers while the next row is prefetched.
template <class T, int N, int kPacks, bool kRms, bool kParameters, bool kOutput, bool kDropped, bool kAdd, bool kBias>
__global__ void __launch_bounds__(kBlockThreads<kPacks>, 1)
norm_backward_kernel(const T* dy, const T* __restrict__ x, const T* __restrict__ gamma, const T* add, T* dx,
                     T* __restrict__ dropped, const __grid_constant__ BackwardArgs args) {
  extern __shared__ __align__(16) unsigned char dynamic[];
  __shared__ __align__(16) WarpSums warp_sums[2][kMaxTeams];  // alternating, so that one barrier per row suffices
  const int thread = threadIdx.x, team_threads = blockDim.x, team = threadIdx.y;
  const int cols = static_cast<int>(args.cols), rows = static_cast<int>(args.rows);
  const int stride = static_cast<int>(gridDim.x * blockDim.y);
  const int64_t step = int64_t{stride} * cols;
  const float scale = 1.0f / static_cast<float>(cols);
  const Columns columns{thread * N, team_threads * N, cols};
  RowRing<T, N, kPacks, kAdd> ring(dy, x, add, columns, dynamic);
  constexpr int kAhead = ring.kRows - 1;
  int row = static_cast<int>(blockIdx.x + gridDim.x * team);
  int64_t at = int64_t{row} * cols + columns.first;  // index of the thread's first pack
#pragma unroll
  for (int s = 0; s < kAhead; ++s) ring.fetch(row + s * stride < rows, at + s * step);
  float next_mean = !kRms && row < rows ? args.mean[row] : 0, next_rstd = row < rows ? args.rstd[row] : 0;
  Pack<T, N> weights[kPacks], shifts[kOutput && !kRms ? kPacks : 1];
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (!columns.inside(p)) continue;
    weights[p] = load_pack<N>(gamma + columns.at(p));
    if constexpr (kOutput && !kRms) shifts[p] = load_pack<N>(static_cast<const T*>(args.beta) + columns.at(p));
  }
  for (int i = team * team_threads + thread; i < 2 * kMaxTeams * 2 * kMaxWarps; i += team_threads * blockDim.y)
    (&warp_sums[0][0][0])[i] = 0;
  __syncthreads();
  constexpr int kParameterSums = parameter_sums(kParameters, kRms);
  float dgamma[kParameters ? kPacks : 1][N] = {}, dbeta[kParameterSums == 2 ? kPacks : 1][N] = {};
  float dbias[kBias ? kPacks : 1][N] = {};
  float gradient[N], normalized[N], weight[N], weighted[N];  // one pack of dy, x^, gamma, g
  const auto read_pack = [&](int p, float rstd, float shift) {
    ring.load(ring.gradient, p, gradient);
    ring.load(ring.input, p, normalized);
    unpack(weights[p], weight);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      normalized[j] = fmaf(normalized[j], rstd, shift);
      if constexpr (kRms) weight[j] += args.rms.offset;
      weighted[j] = gradient[j] * weight[j];
    }
  };
  unsigned maximum = 0;
  for (int phase = 0; row < rows; row += stride, at += step, phase ^= 1, ring.row = ring.behind(ring.row)) {
    ring.fetch(row + kAhead * stride < rows, at + kAhead * step);  // overwrites the preceding row
    const float rstd = next_rstd, shift = -next_mean * rstd;       // x^ = x rstd + shift
    if (row + stride < rows) {
      if constexpr (!kRms) next_mean = args.mean[row + stride];
      next_rstd = args.rstd[row + stride];
    }
    // Loaded early (see padded_row).
    const uint32_t mask_row = kDropped ? padded_row(args.dropout, row) : 0;
    wait_copies<kAhead>();
    float sum_g = 0, sum_gx = 0;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (!columns.inside(p)) continue;
      read_pack(p, rstd, shift);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        if constexpr (kParameters) {
          dgamma[p][j] += gradient[j] * normalized[j];
          if constexpr (!kRms) dbeta[p][j] += gradient[j];
        }
        sum_g += weighted[j];
        sum_gx += weighted[j] * normalized[j];
      }
      if constexpr (kOutput) {
        float y[N] = {};
        if constexpr (!kRms) unpack(shifts[p], y);
#pragma unroll
        for (int j = 0; j < N; ++j)
          y[j] = kRms ? before_gamma<T>(normalized[j], args.rms) * weight[j] : fmaf(normalized[j], weight[j], y[j]);
        store(static_cast<T*>(args.y) + at + p * columns.step, y);
      }
    }
    const RowMeans means = team_means(sum_g, sum_gx, warp_sums[phase][team], team, team_threads, thread, scale);
    // rstd (g - mean(g) - x^ mean(g x^))
    const float slope = -rstd * means.gx, offset = kRms ? 0.0f : -rstd * means.g;
    DropoutRow sample{};
    if constexpr (kDropped) sample = dropout_row(args.dropout, mask_row, cols);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (!columns.inside(p)) continue;
      if constexpr (kPacks > 1) read_pack(p, rstd, shift);  // all packs would need too many registers
      float out[N];
#pragma unroll
      for (int j = 0; j < N; ++j) out[j] = fmaf(weighted[j], rstd, fmaf(normalized[j], slope, offset));
      if constexpr (kAdd) {
        float added[N];
        ring.load(ring.addend, p, added);
#pragma unroll
        for (int j = 0; j < N; ++j) out[j] += added[j];
      }
      Pack<T, N> stored = packed<T>(out);
      *reinterpret_cast<Pack<T, N>*>(dx + at + p * columns.step) = stored;
      if constexpr (kDropped) {
        apply_dropout(out, args.dropout, sample, columns.at(p));
        stored = packed<T>(out);
        *reinterpret_cast<Pack<T, N>*>(dropped + at + p * columns.step) = stored;
      }
      if (args.amax) maximum = larger(maximum, stored);
      if constexpr (kBias) {
#pragma unroll
        for (int j = 0; j < N; ++j) dbias[p][j] += out[j];
      }
    }
  }
  if (args.amax) raise_by_warp(maximum, args.amax);
  constexpr int kSums = kParameterSums + kBias;
  if constexpr (kSums > 0) {
    wait_copies<0>();
    __syncthreads();
    auto* shared = reinterpret_cast<float*>(dynamic);
    float* mine = shared + team * kSums * cols;
    if constexpr (kParameters) {
      stage_sum(dgamma, mine, columns);
      if constexpr (!kRms) stage_sum(dbeta, mine + cols, columns);
    }
    if constexpr (kBias) stage_sum(dbias, mine + kParameterSums * cols, columns);
    __syncthreads();
    add_teams(shared, args.partials + int64_t{blockIdx.x} * (kSums * cols), kSums * cols);
  }
}

constexpr int kGeneralThreads = 256;

/// For any row size and alignment; reads rows from memory in each pass. Parameter gradients are computed by the kernel
/// below. dx may be dy: only the last pass writes, and each thread writes only elements that it has read.
template <class T>
__global__ void __launch_bounds__(kGeneralThreads)
norm_backward_general_kernel(const T* dy, const T* x, const T* gamma, const T* add, T* dx, T* dropped,
    BackwardArgs args) {
  static_assert(kGeneralThreads == 8 * 32, "team_means adds up eight warps' sums, none of which is zero at first here");
  __shared__ __align__(16) WarpSums sums;
  const int64_t row = blockIdx.x, cols = args.cols, first = row * cols;
  const bool rms = !args.mean;
  const float mean = rms ? 0 : args.mean[row], rstd = args.rstd[row];
  float sum_g = 0, sum_gx = 0;
  for (int64_t c = threadIdx.x; c < cols; c += kGeneralThreads) {
    const float g = to_float(dy[first + c]) * (args.rms.offset + to_float(gamma[c]));
    const float normalized = (to_float(x[first + c]) - mean) * rstd;
    sum_g += g;
    sum_gx += g * normalized;
    if (args.y && rms)
      static_cast<T*>(args.y)[first + c] =
          from_float<T>(before_gamma<T>(normalized, args.rms) * (args.rms.offset + to_float(gamma[c])));
    else if (args.y)
      static_cast<T*>(args.y)[first + c] =
          from_float<T>(normalized * to_float(gamma[c]) + to_float(static_cast<const T*>(args.beta)[c]));
  }
  RowMeans means = team_means(sum_g, sum_gx, sums, 0, kGeneralThreads, threadIdx.x, 1.0f / static_cast<float>(cols));
  if (rms) means.g = 0;
  DropoutRow place{};
  if (dropped) place = dropout_row(args.dropout, padded_row(args.dropout, row), cols);
  unsigned maximum = 0;
  for (int64_t c = threadIdx.x; c < cols; c += kGeneralThreads) {
    const float g = to_float(dy[first + c]) * (args.rms.offset + to_float(gamma[c]));
    float out[1] = {rstd * (g - means.g - (to_float(x[first + c]) - mean) * rstd * means.gx)};
    if (add) out[0] += to_float(add[first + c]);
    Pack<T, 1> stored{from_float<T>(out[0])};
    dx[first + c] = stored.v[0];
    if (dropped) {
      apply_dropout(out, args.dropout, place, c);
      stored.v[0] = from_float<T>(out[0]);
      dropped[first + c] = stored.v[0];
    }
    maximum = larger(maximum, stored);
  }
  if (args.amax) raise_by_block(maximum, args.amax);
}

/// Parameter gradients for the general kernel, which may then overwrite dy: one thread per column of a chunk of rows.
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
    dgamma += gradient * (to_float(x[r * args.cols + c]) - (args.mean ? args.mean[r] : 0)) * args.rstd[r];
    dbeta += gradient;
  }
  float* out = args.partials + int64_t{blockIdx.y} * (args.mean ? 2 : 1) * args.cols;
  out[c] = dgamma;
  if (args.mean) out[args.cols + c] = dbeta;
}

/// Returns the number of rows of partial sums.
template <class T, int kPacks, bool kRms, bool kParameters, bool kOutput, bool kDropped, bool kAdd, bool kBias>
int64_t launch_packs(const NormBackward& args, const BackwardArgs& kernel_args, const LaunchContext& context) {
  constexpr int N = kVector<T>;
  const auto kernel = norm_backward_kernel<T, N, kPacks, kRms, kParameters, kOutput, kDropped, kAdd, kBias>;
  const int64_t rows = kernel_args.rows;
  BLIPFT_CHECK(rows < int64_t{1} << 31, "norm_backward of ", rows, " rows, more than 2^31 - 1");
  const int64_t team_threads = round_up(ceil_div(kernel_args.cols, N * kPacks), 32);
  int64_t blocks = std::min<int64_t>(context.sm_count, rows);
  constexpr int64_t kSums = parameter_sums(kParameters, kRms) + kBias;
  if (kSums > 0) blocks = std::min(blocks, context.scratch_bytes / (4 * kSums * kernel_args.cols));
  BLIPFT_CHECK(blocks >= 1, "norm_backward of ", kernel_args.cols, " columns needs a larger workspace");
  const int64_t each = team_bytes<kPacks>(team_threads, kAdd), room = (context.shared_bytes - kBlockBytes) / each;
  const int64_t teams = std::clamp<int64_t>(std::min(kBlockThreads<kPacks> / team_threads, room), 1,
                                            std::min<int64_t>(kMaxTeams, ceil_div(rows, blocks)));
  const int64_t shared = teams * each;
  static_assert(16 * kStages<kPacks> * 2 >= 3 * 4 * N, "the teams' sums take the place of the rows");
  // It is at most 192 KiB (512 threads, 4 packs); above 48 KiB the attribute must be set.
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

/// Calls `body` with the number of packs per thread (an integral constant) for rows of `packs` packs.
template <class T, class Body>
void with_thread_packs(int64_t packs, const Body& body) {
  if (packs <= 512) body(std::integral_constant<int, 1>{});
  else if (packs <= 1024) body(std::integral_constant<int, 2>{});
  else if constexpr (sizeof(T) == 4) body(std::integral_constant<int, 4>{});
}

/// True if the kernel that keeps whole rows in a team supports these arguments. It computes dbias only for LayerNorm,
/// and with y only if dgamma is requested too (no layer with a trained bias comes with a frozen norm). Long rows
/// require enough shared memory for a team.
template <class T>
bool fits_packs(const NormBackward& args, const LaunchContext& context) {
  const int64_t cols = args.dy.cols(), packs = cols / kVector<T>;
  if (cols % kVector<T> != 0 || cols > 8192 || (args.dbias && (!args.mean || (args.y && !args.dgamma)))) return false;
  bool room = false;
  with_thread_packs<T>(packs, [&](auto count) {
    constexpr int kPacks = decltype(count)::value;
    const int64_t team_threads = round_up(ceil_div(packs, kPacks), 32);
    room = team_bytes<kPacks>(team_threads, static_cast<bool>(args.add)) + kBlockBytes <= context.shared_bytes;
  });
  return room && all_aligned16(args.dy, args.x, args.gamma, args.beta, args.y, args.add, args.dx, args.dropped);
}

template <class T>
int64_t launch_norm_backward(const NormBackward& args, const BackwardArgs& kernel_args, const LaunchContext& context) {
  const int64_t packs = kernel_args.cols / kVector<T>;
  int64_t blocks = 0;
  const auto launch_for = [&](auto rms, auto output, auto parameters, auto dropped, auto add, auto bias) {
    constexpr bool kParameters = decltype(parameters)::value, kOutput = decltype(output)::value;
    constexpr bool kDropped = decltype(dropped)::value, kAdd = decltype(add)::value, kBias = decltype(bias)::value;
    const auto run = [&](auto count) {
      blocks = launch_packs<T, decltype(count)::value, decltype(rms)::value, kParameters, kOutput, kDropped, kAdd,
                            kBias>(args, kernel_args, context);
    };
    with_thread_packs<T>(packs, run);
  };
  const auto launch = [&](auto rms, auto parameters, auto dropped, auto add, auto bias) {
    if constexpr (decltype(parameters)::value || !decltype(bias)::value) {
      if (args.y) return launch_for(rms, std::true_type{}, parameters, dropped, add, bias);
    }
    launch_for(rms, std::false_type{}, parameters, dropped, add, bias);
  };
  constexpr std::false_type no;
  dispatch_bool(static_cast<bool>(args.dgamma), [&](auto parameters) {
    dispatch_bool(static_cast<bool>(args.add), [&](auto add) {
      dispatch_bool(static_cast<bool>(args.dropped), [&](auto dropped) {
        if (!args.mean) return launch(std::true_type{}, parameters, dropped, add, no);
        dispatch_bool(static_cast<bool>(args.dbias), [&](auto bias) { launch(no, parameters, dropped, add, bias); });
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
  const BackwardArgs kernel_args{.rows = args.dy.rows(), .cols = args.dy.cols(), .mean = args.mean.as<const float>(),
                                 .rstd = args.rstd.as<const float>(), .beta = args.beta.data, .y = args.y.data,
                                 .dropout = dropout_kernel_args(args.dropout), .partials = launch.scratch,
                                 .rms = args.rms, .amax = args.amax.as<unsigned>()};
  int64_t groups = 0;
  bool packs = false;
  dispatch_float(args.dy.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    packs = fits_packs<T>(args, launch);
    groups = packs ? launch_norm_backward<T>(args, kernel_args, launch) : launch_general<T>(args, kernel_args, launch);
  });
  PartialSums sums{launch.scratch, groups, kernel_args.cols};
  if (args.dgamma) {
    sums.add(args.dgamma, args.accumulate);
    if (args.dbeta) sums.add(args.dbeta, args.accumulate);
  }
  if (args.dbias && packs) sums.add(args.dbias, args.accumulate_dbias);
  if (sums.count > 0) launch_reduce_partials(sums, launch);
  if (args.dbias && !packs)
    launch_column_sums(args.dropped ? args.dropped : args.dx, args.dbias, args.accumulate_dbias, launch);
}

}  // namespace blipft
