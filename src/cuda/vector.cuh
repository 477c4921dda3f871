// Device-side building blocks of the kernels: 16-byte packs, conversions, warp and block reductions, dropout.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "blipft/ops.h"
#include "blipft/philox.h"
#include "ops/divisor.h"

namespace blipft {

using bf16 = __nv_bfloat16;

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(bf16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }

template <class T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) { return x; }
template <>
__device__ __forceinline__ bf16 from_float<bf16>(float x) { return __float2bfloat16_rn(x); }
template <>
__device__ __forceinline__ __half from_float<__half>(float x) { return __float2half_rn(x); }

/// N consecutive elements, accessed in up to 16 bytes at a time; the address must be aligned to the access.
template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack {
  T v[N];
};

/// Number of elements in a 16-byte access.
template <class T>
constexpr int kVector = 16 / static_cast<int>(sizeof(T));

/// Converts a pair of bf16 numbers, low half first, with one instruction each; extracting the upper half as a bf16
/// would take two.
__device__ __forceinline__ float2 unpack(uint32_t pair) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
}

template <class T, int N>
__device__ __forceinline__ void unpack(const Pack<T, N>& pack, float (&x)[N]) {
  if constexpr (std::is_same_v<T, bf16> && N % 2 == 0) {
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      const float2 pair = unpack(*reinterpret_cast<const uint32_t*>(&pack.v[i]));
      x[i] = pair.x, x[i + 1] = pair.y;
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = to_float(pack.v[i]);
  }
}

template <class T, int N>
__device__ __forceinline__ Pack<T, N> packed(const float (&x)[N]) {
  Pack<T, N> pack;
  if constexpr (sizeof(T) == 2 && N % 2 == 0) {
    // One instruction converts two numbers into a whole register.
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      if constexpr (std::is_same_v<T, bf16>)
        *reinterpret_cast<__nv_bfloat162*>(&pack.v[i]) = __floats2bfloat162_rn(x[i], x[i + 1]);
      else
        *reinterpret_cast<__half2*>(&pack.v[i]) = __floats2half2_rn(x[i], x[i + 1]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) pack.v[i] = from_float<T>(x[i]);
  }
  return pack;
}

template <int N, class T>
__device__ __forceinline__ Pack<T, N> load_pack(const T* from) {
  return *reinterpret_cast<const Pack<T, N>*>(from);
}

template <class T, int N>
__device__ __forceinline__ void load(const T* from, float (&x)[N]) {
  unpack(load_pack<N>(from), x);
}

template <class T, int N>
__device__ __forceinline__ void store(T* to, const float (&x)[N]) {
  *reinterpret_cast<Pack<T, N>*>(to) = packed<T>(x);
}

/// An evict-first store. Kernels that write tensors larger than the L2 cache then run at full memory bandwidth instead
/// of two thirds of it (backward of SwiGLU with 8192 x 12288 on an H100: 411 instead of 662 us).
template <class T, int N>
__device__ __forceinline__ void store_streaming(T* to, const float (&x)[N]) {
  const Pack<T, N> pack = packed<T>(x);
  if constexpr (sizeof(pack) == 16) __stcs(reinterpret_cast<uint4*>(to), *reinterpret_cast<const uint4*>(&pack));
  else *reinterpret_cast<Pack<T, N>*>(to) = pack;
}

/// Prevents the compiler from reusing values that it computed from `pack`, so that it converts again instead of keeping
/// f32 copies in scarce registers.
template <class T, int N>
__device__ __forceinline__ void forget(Pack<T, N>& pack) {
  auto* words = reinterpret_cast<uint32_t*>(&pack);
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(pack) / 4); ++i) asm volatile("" : "+r"(words[i]));
}

/// Returns the 32-bit shared memory address.
__device__ __forceinline__ uint32_t shared_address(const void* memory) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(memory));
}
/// Loads 16 bytes of shared memory.
template <class T, int N>
__device__ __forceinline__ void load_shared(uint32_t shared, Pack<T, N>& pack) {
  static_assert(sizeof(pack) == 16);
  auto* words = reinterpret_cast<uint32_t*>(&pack);
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(shared)
               : "memory");
}

/// Starts an asynchronous copy of 16 bytes to shared memory that bypasses registers and L1 cache.
__device__ __forceinline__ void copy16_async(uint32_t shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}

/// Closes this thread's current group of copies.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits until at most `kPending` of this thread's groups are still in flight.
template <int kPending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// Loads 16 bytes of device memory that no kernel writes concurrently, without allocating them in the L1 cache.
__device__ __forceinline__ uint4 load_once(const void* from) {
  uint4 pack;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(pack.x), "=r"(pack.y), "=r"(pack.z), "=r"(pack.w)
               : "l"(from));
  return pack;
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}

/// Returns the sum of eight numbers; the address must be 16-byte aligned.
__device__ __forceinline__ float sum_eight(const float* from) {
  const float4 a = *reinterpret_cast<const float4*>(from), b = *reinterpret_cast<const float4*>(from + 4);
  return ((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w));
}

/// Shared memory of team_sum, for up to 512 threads.
struct alignas(16) TeamSlots {
  float sums[16];
};
/// Returns the sum over all threads of the block (`warps` warps), the same bits in every thread. The slots can be
/// reused after the block's next barrier.
__device__ __forceinline__ float team_sum(float x, TeamSlots& slots, int warp, int lane, int warps) {
  x = warp_sum(x);
  if (lane == 0) slots.sums[warp] = x;
  if (warp == 0 && lane >= warps && lane < 16) slots.sums[lane] = 0;
  __syncthreads();
  const float total = sum_eight(slots.sums);  // same order in every thread, hence same bits
  return warps > 8 ? total + sum_eight(slots.sums + 8) : total;
}

/// The kernel arguments of a Dropout.
struct DropoutKernelArgs {
  bool active = false;
  const int64_t* keys = nullptr;           ///< null: all elements are kept and multiplied by `scale`
  const int32_t* padded_rows = nullptr;  ///< packed samples, or Dropout::row_numbers
  int64_t rows_per_sample = 1;
  Divisor sample_of_row;
  uint64_t seed = 0;
  uint32_t site = 0, threshold = 0;
  float scale = 1;
};

inline DropoutKernelArgs dropout_kernel_args(const Dropout& dropout) {
  if (!dropout) return {};
  const Tensor& numbers = dropout.row_numbers ? dropout.row_numbers : dropout.packing.padded_rows;
  if (dropout.p == 0) return {.active = true, .scale = dropout.scale};
  return {true, dropout.sample_keys.as<int64_t>(), numbers.as<int32_t>(), dropout.rows_per_sample,
          Divisor::of(dropout.rows_per_sample), dropout.seed, dropout.site, dropout_threshold(dropout.p),
          dropout.scale / (1.0f - dropout.p)};
}

/// Returns a / b for non-negative numbers: 64-bit division is slow, and few tensors need it.
__device__ __forceinline__ int64_t divided(int64_t a, int64_t b) {
  return (a | b) >> 32 == 0 ? static_cast<uint32_t>(a) / static_cast<uint32_t>(b) : a / b;
}

/// Returns the index of a row in a padded batch; below 2^31. Kernels load it early because the load of the sample's key
/// depends on it.
__device__ __forceinline__ uint32_t padded_row(const DropoutKernelArgs& args, int64_t row) {
  return static_cast<uint32_t>(args.padded_rows ? args.padded_rows[row] : row);
}

/// The key of a row's sample and the row's first element in this sample.
struct DropoutRow {
  int64_t key, first;
};

/// `row` is the result of padded_row().
__device__ __forceinline__ DropoutRow dropout_row(const DropoutKernelArgs& args, uint32_t row, int64_t cols) {
  if (!args.keys) return {0, 0};
  const uint32_t sample = args.sample_of_row.divide(row);
  return {args.keys[sample], (row - sample * args.rows_per_sample) * cols};
}

/// Applies dropout to elements [column, column + N) of a row. `column` and the row size are multiples of N, so that all
/// N are in one dropout block.
template <int N>
__device__ __forceinline__ void apply_dropout(float (&x)[N], const DropoutKernelArgs& args, const DropoutRow& row,
                                              int64_t column) {
  static_assert(kDropoutBlock % N == 0);
  if (!args.keys) {
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] *= args.scale;
    return;
  }
  const auto element = static_cast<uint64_t>(row.first + column);
  const DropoutBlock block(args.seed, args.site, row.key, element);
  const uint32_t first = static_cast<uint32_t>(element) % kDropoutBlock / N * N;  // 0 for N = 8, known to the compiler
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = block.keeps(first + i, args.threshold) ? x[i] * args.scale : 0.0f;
}

/// True for the last of `count` blocks to call this. This block then sees all earlier writes of the other blocks if its
/// loads bypass the L1 cache. The counter is reset to zero.
__device__ __forceinline__ bool last_block(unsigned* counter, unsigned count) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(counter, 1u) == count - 1;
    if (last) *counter = 0;
  }
  __syncthreads();
  if (last) __threadfence();
  return last;
}

}  // namespace blipft
