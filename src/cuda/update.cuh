// Shared code of the update kernels: loads and stores that spare the L2 cache, sums of squares, arithmetic, dispatch.
#pragma once

#include "cuda/kernels.h"
#include "cuda/vector.cuh"
#include "ops/stochastic_rounding.h"

namespace blipft {

constexpr int kUpdateThreads = 256;
constexpr int kUpdatePack = 8;

/// Access to a warp's 32-byte packs, which are contiguous in memory. Each 16-byte access of the warp covers 512
/// contiguous bytes; lanes 16 apart then exchange the halves that belong to each other. Accesses to host memory go over
/// the link as issued, so a strided access would transfer each 32-byte sector twice. All 32 lanes must call it.
class PairedWords {
 public:
  /// `own` is this lane's pack.
  __device__ __forceinline__ explicit PairedWords(const void* own)
      : upper_(threadIdx.x & 16),
        first_(const_cast<uint4*>(static_cast<const uint4*>(own)) - 2 * (threadIdx.x & 31) + 2 * (threadIdx.x & 15) +
               (upper_ ? 1 : 0)) {}
  template <class Pack32>
  __device__ __forceinline__ Pack32 load() const {
    const uint4 near = __ldcs(first_), far = __ldcs(first_ + 32);
    const uint4 other = exchanged(chosen(near, far));
    Pack32 pack;
    reinterpret_cast<uint4*>(&pack)[0] = chosen(other, near);
    reinterpret_cast<uint4*>(&pack)[1] = chosen(far, other);
    return pack;
  }
  template <class Pack32>
  __device__ __forceinline__ void store(const Pack32& pack) const {
    const uint4 low = reinterpret_cast<const uint4*>(&pack)[0], high = reinterpret_cast<const uint4*>(&pack)[1];
    const uint4 other = exchanged(chosen(low, high));
    __stcs(first_, chosen(other, low));
    __stcs(first_ + 32, chosen(high, other));
  }

 private:
  // The selection is written word by word: a selection between uint4 variables would put them into local memory.
  __device__ __forceinline__ uint4 chosen(uint4 of_upper, uint4 of_lower) const {
    return {upper_ ? of_upper.x : of_lower.x, upper_ ? of_upper.y : of_lower.y, upper_ ? of_upper.z : of_lower.z,
            upper_ ? of_upper.w : of_lower.w};
  }
  static __device__ __forceinline__ uint4 exchanged(const uint4& mine) {
    constexpr unsigned kAll = 0xffffffffu;
    return {__shfl_xor_sync(kAll, mine.x, 16), __shfl_xor_sync(kAll, mine.y, 16), __shfl_xor_sync(kAll, mine.z, 16),
            __shfl_xor_sync(kAll, mine.w, 16)};
  }
  const bool upper_;
  uint4* const first_;
};

/// Loads elements [i, i + N); those at and after n are zeros. kWhole: all are below n and 16-byte aligned, and the
/// lanes of a warp load consecutive packs. The data is not read again soon, so whole packs use evict-first loads and
/// leave the L2 cache to concurrent matrix products.
template <bool kWhole, int N, class T>
__device__ __forceinline__ Pack<T, N> load_some(const T* from, int64_t i, int64_t n) {
  Pack<T, N> pack;
  if constexpr (kWhole && sizeof(pack) == 32) {
    const PairedWords words(from + i);
    pack = words.template load<Pack<T, N>>();
  } else if constexpr (kWhole) {
    static_assert(sizeof(pack) == 16);
    *reinterpret_cast<uint4*>(&pack) = __ldcs(reinterpret_cast<const uint4*>(from + i));
  } else {
#pragma unroll
    for (int j = 0; j < N; ++j) pack.v[j] = i + j < n ? from[i + j] : from_float<T>(0.0f);
  }
  return pack;
}

template <bool kWhole, class T, int N>
__device__ __forceinline__ void store_some(T* to, int64_t i, int64_t n, const float (&x)[N]) {
  if constexpr (kWhole) {
    const Pack<T, N> pack = packed<T>(x);
    if constexpr (sizeof(pack) == 32) PairedWords(to + i).store(pack);
    else __stcs(reinterpret_cast<uint4*>(to + i), *reinterpret_cast<const uint4*>(&pack));
  } else {
#pragma unroll
    for (int j = 0; j < N; ++j)
      if (i + j < n) to[i + j] = from_float<T>(x[j]);
  }
}

/// Calls body(whole) for a block whose elements end at `end`: true_type if all elements exist and are aligned.
template <bool kAligned, class Body>
__device__ __forceinline__ void with_whole(int64_t end, int64_t n, Body&& body) {
  if constexpr (kAligned) {
    if (end <= n) return body(std::true_type{});
  }
  body(std::false_type{});
}

/// The result is uniform over the launch: all threads exit, or none.
__device__ __forceinline__ bool is_skipped(const float* __restrict__ scalars) { return scalars[kSkipUpdate] != 0; }

template <int N>
__device__ __forceinline__ float squares_of(const float (&x)[N]) {
  float sum = 0;
#pragma unroll
  for (int j = 0; j < N; ++j) sum = fmaf(x[j], x[j], sum);
  return sum;
}

/// Computes the block's sums of squares over spans of kSquaresSpan elements: a span is one pack of each thread.
template <int kUnroll>
struct BlockSquares {
  float (*warps)[kUpdateThreads / 32];  // [kUnroll], shared

  /// Adds this thread's part of span u. All threads of the block must call it, as late as possible: other memory
  /// accesses are not moved across it.
  __device__ __forceinline__ void add(int u, float sum) const {
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) warps[u][threadIdx.x / 32] = sum;
  }
  /// Writes the sums of the block's turn `turn`. All threads of the block must call it and reach a barrier before the
  /// next add().
  __device__ __forceinline__ void write(float* __restrict__ squares, int64_t turn, int64_t n) const {
    __syncthreads();
    const int64_t span = turn * kUnroll + threadIdx.x;
    if (threadIdx.x >= kUnroll || span * kSquaresSpan >= n) return;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kUpdateThreads / 32; ++w) sum += warps[threadIdx.x][w];
    squares[span] = sum;
  }
};

/// Returns the exact values: the master copy, if there is one.
template <bool kMaster, class P>
__device__ __forceinline__ auto* values_of(P* param, float* master) {
  if constexpr (kMaster) return master;
  else return param;
}


/// Square root and quotient. With `kFast`, for results that are rounded to bf16: within 2 ulp of f32; subnormal numbers
/// become zero.
template <bool kFast>
__device__ __forceinline__ float square_root(float x) {
  if constexpr (!kFast) return sqrtf(x);
  float y;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
template <bool kFast>
__device__ __forceinline__ float quotient(float a, float b) {
  if constexpr (!kFast) return a / b;
  float y;
  asm("div.approx.ftz.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

/// AdamW for one element. `kFast`: for parameters that are rounded to bf16; the moments do not depend on it.
struct AdamWNumbers {
  float beta1, beta2, eps, weight_decay;
};
template <bool kFast>
struct AdamWStep {
  AdamWNumbers args;
  float clip, step_size, rsqrt_correction2, decay;

  __device__ __forceinline__ AdamWStep(const AdamWNumbers& numbers, const float* __restrict__ scalars)
      : args(numbers), clip(scalars[kClipCoefficient]) {
    const float lr = scalars[kLearningRate];
    step_size = lr / scalars[kBiasCorrection1];
    rsqrt_correction2 = 1.0f / sqrtf(scalars[kBiasCorrection2]);
    decay = 1.0f - lr * args.weight_decay;
  }
  __device__ __forceinline__ void operator()(float& p, float g, float& m, float& v) const {
    const float gradient = g * clip;
    m = m + (1.0f - args.beta1) * (gradient - m);
    v = args.beta2 * v + (1.0f - args.beta2) * gradient * gradient;
    const float denominator = square_root<kFast>(v) * rsqrt_correction2 + args.eps;
    p = p * decay - step_size * quotient<kFast>(m, denominator);
  }
};

/// Rounds elements [i, i + 8) stochastically to bf16 numbers.
__device__ __forceinline__ void round_at_random(float (&p)[8], const Rounding& rounding, uint32_t step, int64_t i) {
  const int64_t first = rounding.first + i;
  const auto shift = static_cast<uint32_t>(first) % kRoundingBlock;
  const Philox4 words = rounding_words(rounding.seed, rounding.unit, step, first);
  const Philox4 after = shift == 0 ? words : rounding_words(rounding.seed, rounding.unit, step, first + kRoundingBlock);
#pragma unroll
  for (uint32_t j = 0; j < 8; ++j) {
    const uint32_t e = shift + j;
    const uint32_t bits =
        shift == 0 ? rounding_bits(words, j) : e < 8 ? rounding_bits(words, e) : rounding_bits(after, e);
    p[j] = __uint_as_float(static_cast<uint32_t>(round_stochastically(p[j], bits)) << 16);
  }
}

/// Stores elements [i, i + 8) of the parameters and of the masters, if there are any.
template <bool kWhole, bool kMaster, bool kStochastic, class P>
__device__ __forceinline__ void store_param(P* param, float* master, int64_t i, int64_t n, float (&p)[8],
                                            const Rounding& rounding, const float* __restrict__ scalars) {
  if constexpr (kMaster) store_some<kWhole>(master, i, n, p);
  if constexpr (kStochastic) round_at_random(p, rounding, static_cast<uint32_t>(scalars[kStepNumber]), i);
  store_some<kWhole>(param, i, n, p);
}

/// Calls `run` with the types of param and gradient, and compile-time flags: a master copy exists, every pack is
/// aligned, rounding is stochastic.
template <class Update, class Run>
void dispatch_update(const Update& args, bool aligned, Run&& run) {
  dispatch_float(args.param.dtype, [&](auto p) {
    dispatch_float(args.grad.dtype, [&](auto g) {
      dispatch_bool(aligned, [&](auto is_aligned) {
        if (args.master) return run(p, g, std::true_type{}, is_aligned, std::false_type{});
        if constexpr (std::is_same_v<typename decltype(p)::type, bf16>) {
          if (args.rounding.stochastic) return run(p, g, std::false_type{}, is_aligned, std::true_type{});
        }
        run(p, g, std::false_type{}, is_aligned, std::false_type{});
      });
    });
  });
}

/// An update that reads host memory uses kLinkBlocks blocks if each thread has at least kMinLinkBytes bytes in
/// flight. These saturate the link (measured on H200 with 64 and 96 bytes; 8 blocks with 96 bytes do not), and
/// concurrent products get the other multiprocessors. With one block per turn, blocks that wait for the link would fill
/// the GPU and delay concurrent kernels until the last of them ends.
inline constexpr int64_t kLinkBlocks = 16, kMinLinkBytes = 64;

/// True if an update of `link_bytes` per element with `unroll` packs per thread and turn uses few blocks.
constexpr bool few_blocks_do(int64_t link_bytes, int unroll = 1) {
  return link_bytes * kUpdatePack * unroll >= kMinLinkBytes;
}

/// Returns one block for each turn, or a few blocks with several turns each.
inline unsigned update_blocks(int64_t turns, bool several) {
  return static_cast<unsigned>(several ? std::min(turns, kLinkBlocks) : turns);
}

/// Calls run(takes_turns) with true if few blocks process all turns. This requires aligned packs; otherwise single
/// elements are transferred, which is slow in any case.
template <class Aligned, class Run>
void dispatch_turns(bool few, Aligned, Run&& run) {
  if constexpr (Aligned::value) dispatch_bool(few, run);
  else run(std::false_type{});
}

constexpr int64_t update_turns(int64_t n, int unroll = 1) {
  return ceil_div(n, int64_t{kUpdateThreads} * kUpdatePack * unroll);
}

}  // namespace blipft
