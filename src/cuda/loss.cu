// Cross-entropy and its gradient in place, one block per row. The first pass computes the row's maximum and sum of
// exponentials (online softmax, Milakov & Gimelshein 2018) and keeps the row in shared memory; the second pass writes
// the gradient. If the alignment allows it, the whole row is loaded by asynchronous copies. A row that does not fit
// into shared memory is read twice.
#include <cfloat>

#include "cuda/cuda_ops.h"
#include "cuda/vector.cuh"
#include "ops/ops_check.h"

namespace blipft {
namespace {

constexpr int kThreads = 512;
constexpr int kLoads = 4;
constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;

/// Running maximum m (in units of log2) and sum of 2^(x - m).
struct Online {
  float max = -FLT_MAX, sum = 0;
};

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

template <int N>
__device__ __forceinline__ void take(Online& online, const float (&x)[N]) {
  float largest = x[0];
#pragma unroll
  for (int j = 1; j < N; ++j) largest = fmaxf(largest, x[j]);
  largest *= kLog2E;
  if (largest > online.max) {
    online.sum *= exp2_fast(online.max - largest);
    online.max = largest;
  }
#pragma unroll
  for (int j = 0; j < N; ++j) online.sum += exp2_fast(fmaf(x[j], kLog2E, -online.max));
}

__device__ __forceinline__ Online merged(Online a, Online b) {
  const float max = fmaxf(a.max, b.max);
  return {max, a.sum * exp2_fast(a.max - max) + b.sum * exp2_fast(b.max - max)};
}

__device__ __forceinline__ Online block_merged(Online online) {
  __shared__ Online shared[kThreads / 32];
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const Online other{__shfl_xor_sync(0xffffffffu, online.max, offset),
                       __shfl_xor_sync(0xffffffffu, online.sum, offset)};
    online = merged(online, other);
  }
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = online;
  __syncthreads();
  online = shared[0];
  for (int w = 1; w < kThreads / 32; ++w) online = merged(online, shared[w]);
  return online;
}

/// With a cap, replaces logits by their capped values, rounded to T like the output of the model's own cap.
template <class T, int N, bool kCap>
__device__ __forceinline__ void cap_logits([[maybe_unused]] float (&x)[N], [[maybe_unused]] float cap) {
  if constexpr (kCap) {
#pragma unroll
    for (int j = 0; j < N; ++j) x[j] = to_float(from_float<T>(cap * tanhf(x[j] / cap)));
  }
}

constexpr int kTurns = 4;  // groups of copies that a thread waits for separately

/// Starts the copies of this thread's packs: kTurns groups of kLoads packs, all remaining packs in the last group.
template <class Pack16>
__device__ __forceinline__ void fetch_row(const Pack16* row, Pack16* copy, int packs) {
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const int end = turn == kTurns - 1 ? packs : min(packs, (turn + 1) * kLoads * kThreads);
    for (int p = threadIdx.x + turn * kLoads * kThreads; p < end; p += kThreads)
      copy16_async(shared_address(copy + p), row + p);
    commit_copies();
  }
}

/// Waits for the packs of one group.
__device__ __forceinline__ void wait_turn(int turn) {
  static_assert(kTurns == 4);
  if (turn == 0) wait_copies<3>();
  else if (turn == 1) wait_copies<2>();
  else if (turn == 2) wait_copies<1>();
  else wait_copies<0>();
}

/// Computes the online softmax of this thread's packs of a row; if `kept`, stores them in `copy`.
template <class T, int N, bool kept, bool kCap>
__device__ __forceinline__ Online take_row(const T* row, T* copy, int packs, float cap) {
  Online online;
  if constexpr (kept && sizeof(Pack<T, N>) == 16) {
    fetch_row(reinterpret_cast<const Pack<T, N>*>(row), reinterpret_cast<Pack<T, N>*>(copy), packs);
    for (int p = threadIdx.x, turn = 0; p < packs; p += kThreads * kLoads, ++turn) {
      wait_turn(turn);
#pragma unroll
      for (int u = 0; u < kLoads; ++u) {
        if (p + u * kThreads >= packs) continue;
        float v[N];
        unpack(reinterpret_cast<const Pack<T, N>*>(copy)[p + u * kThreads], v);
        cap_logits<T, N, kCap>(v, cap);
        take(online, v);
      }
    }
  } else {
    for (int p = threadIdx.x; p < packs; p += kThreads * kLoads) {
      Pack<T, N> loaded[kLoads];
#pragma unroll
      for (int u = 0; u < kLoads; ++u)
        if (p + u * kThreads < packs) loaded[u] = reinterpret_cast<const Pack<T, N>*>(row)[p + u * kThreads];
#pragma unroll
      for (int u = 0; u < kLoads; ++u) {
        if (p + u * kThreads >= packs) continue;
        if constexpr (kept) reinterpret_cast<Pack<T, N>*>(copy)[p + u * kThreads] = loaded[u];
        float v[N];
        unpack(loaded[u], v);
        cap_logits<T, N, kCap>(v, cap);
        take(online, v);
      }
    }
  }
  return online;
}

/// N elements per pack; `kept`: dynamic shared memory holds the row.
template <class T, int N, bool kept, bool kCap>
__global__ void __launch_bounds__(kThreads)
cross_entropy_kernel(T* __restrict__ logits, const int32_t* __restrict__ labels, const float* __restrict__ weight,
                     float* __restrict__ row_loss, int64_t cols, float cap) {
  extern __shared__ __align__(16) unsigned char dynamic[];
  T* copy = reinterpret_cast<T*>(dynamic);
  T* row = logits + int64_t{blockIdx.x} * cols;
  const int label = labels[blockIdx.x];
  const int packs = static_cast<int>(cols / N);
  if (label < 0) {
    Pack<T, N> zeros;
#pragma unroll
    for (int j = 0; j < N; ++j) zeros.v[j] = from_float<T>(0.0f);
    for (int p = threadIdx.x; p < packs; p += kThreads) reinterpret_cast<Pack<T, N>*>(row)[p] = zeros;
    if (threadIdx.x == 0) row_loss[blockIdx.x] = 0;
    return;
  }
  float label_logit[1] = {to_float(row[label])};  // read before any thread writes the row: a barrier follows
  cap_logits<T, 1, kCap>(label_logit, cap);
  const Online online = block_merged(take_row<T, N, kept, kCap>(row, copy, packs, cap));
  const float scale = *weight;
  const float log2_sum = online.max + log2f(online.sum);  // log2 of sum exp(logits)
  for (int p = threadIdx.x; p < packs; p += kThreads) {
    float v[N];
    // Each thread reads only packs that it has stored itself.
    if constexpr (kept) unpack(reinterpret_cast<const Pack<T, N>*>(copy)[p], v);
    else unpack(reinterpret_cast<const Pack<T, N>*>(row)[p], v);
    [[maybe_unused]] float slopes[N];      // d(capped logit) / d(logit)
    if constexpr (kCap) {
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const float t = tanhf(v[j] / cap);
        slopes[j] = 1.0f - t * t;
      }
      cap_logits<T, N, kCap>(v, cap);
    }
#pragma unroll
    for (int j = 0; j < N; ++j) v[j] = scale * exp2_fast(fmaf(v[j], kLog2E, -log2_sum));
    if (label / N == p) {
#pragma unroll
      for (int j = 0; j < N; ++j)
        if (p * N + j == label) v[j] -= scale;
    }
    if constexpr (kCap) {
#pragma unroll
      for (int j = 0; j < N; ++j) v[j] *= slopes[j];
    }
    reinterpret_cast<Pack<T, N>*>(row)[p] = packed<T>(v);
  }
  if (threadIdx.x == 0) row_loss[blockIdx.x] = scale * (log2_sum * kLn2 - label_logit[0]);
}

template <class T, int N, bool kept, bool kCap>
void launch_cross_entropy(const CrossEntropy& args, size_t shared, cudaStream_t stream) {
  const auto kernel = cross_entropy_kernel<T, N, kept, kCap>;
  if (kept)
    BLIPFT_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
        static_cast<int>(shared)));
  kernel<<<static_cast<unsigned>(args.logits.rows()), kThreads, shared, stream>>>(
      args.logits.as<T>(), args.labels.as<const int32_t>(), args.weight.as<const float>(), args.row_loss.as<float>(),
      args.logits.cols(), args.cap);
  BLIPFT_CUDA_LAUNCHED("cross_entropy_kernel");
}

}  // namespace

void CudaOps::cross_entropy(const CrossEntropy& args, Stream stream) {
  check_args(args);
  if (args.logits.numel() == 0) return;
  const int64_t cols = args.logits.cols();
  BLIPFT_CHECK(cols < int64_t{1} << 30, "cross_entropy of ", cols, " classes is too large");
  const LaunchContext launch = context(stream);
  const int64_t row_bytes = cols * dtype_size(args.logits.dtype);
  const bool kept = row_bytes + 1024 <= launch.shared_bytes;
  const auto shared = static_cast<size_t>(kept ? row_bytes : 0);
  dispatch_float(args.logits.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    dispatch_bool(args.cap > 0, [&](auto cap_tag) {
      dispatch_bool(kept, [&](auto kept_tag) {
        constexpr bool kKept = decltype(kept_tag)::value, kCap = decltype(cap_tag)::value;
        if (cols % kVector<T> == 0 && all_aligned16(args.logits))
          launch_cross_entropy<T, kVector<T>, kKept, kCap>(args, shared, launch.stream);
        else launch_cross_entropy<T, 1, kKept, kCap>(args, shared, launch.stream);
      });
    });
  });
}

}  // namespace blipft
