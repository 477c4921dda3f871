// Block-wise quantization. Decoding is memory-bound: neighbouring threads write neighbouring 16 bytes of bf16, and each
// thread has several packs of quantized values in flight.
#include "cuda/quantize.cuh"

#include "cuda/cuda_ops.h"
#include "ops/ops_check.h"

namespace blipft {
namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 4;                    // packs of quantized values in flight
constexpr int64_t kBlocksOfProcessor = 8;     // blocks that fit on a multiprocessor

/// Decodes the values of a code book. The nf4 table is replicated so that each lane reads its own bank.
template <CodeBook kBook>
struct Values {
  static constexpr bool kTable = kBook == CodeBook::nf4;
  float (*table)[32];

  __device__ __forceinline__ void fill() const {
    if constexpr (kTable) {
      for (int i = threadIdx.x; i < 16 * 32; i += kThreads) table[i / 32][i % 32] = kDeviceNf4.values[i / 32];
      __syncthreads();
    }
  }
  __device__ __forceinline__ float operator()(uint32_t code) const {
    if constexpr (kBook == CodeBook::nf4) return table[code][threadIdx.x % 32];
    else if constexpr (kBook == CodeBook::int8) return static_cast<float>(static_cast<signed char>(code));
    else if constexpr (kBook == CodeBook::dynamic8) return kDeviceDynamic8.values[code];
    else return kDeviceDynamic8Unsigned.values[code];
  }
};

/// f32 scales, or with kDouble scales that are quantized with `outer`.
template <bool kDouble>
struct Scales {
  const void* scales;
  const float* outer;

  __device__ __forceinline__ float operator[](int64_t block) const {
    if constexpr (kDouble)
      return kDeviceDynamic8Unsigned.values[__ldg(static_cast<const uint8_t*>(scales) + block)] *
             __ldg(outer + block / kScaleBlock);
    else return __ldg(static_cast<const float*>(scales) + block);
  }
};

template <CodeBook kBook, class T, bool kAligned, bool kDouble>
__global__ void __launch_bounds__(kThreads)
dequantize_kernel(const typename CodePack<kBook>::Word* __restrict__ quantized, const Scales<kDouble> scales,
                  T* __restrict__ values, int64_t n) {
  __shared__ float table[Values<kBook>::kTable ? 16 : 1][32];
  const Values<kBook> value_of{table};
  value_of.fill();
  const int64_t packs = (n + kCodePack - 1) / kCodePack, step = int64_t{kThreads} * kUnroll;
  for (int64_t begin = blockIdx.x * step + threadIdx.x; begin < packs; begin += gridDim.x * step) {
    CodePack<kBook> pack[kUnroll];
    float scale[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t i = begin + u * kThreads;
      if (i >= packs) continue;
      pack[u].word = __ldcs(quantized + i);
      scale[u] = scales[i / kCodeThreads<kBook>];
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t i = begin + u * kThreads, first = i * kCodePack;
      if (i >= packs) continue;
      const float factor = kBook == CodeBook::int8 ? scale[u] / kInt8Top : scale[u];
      float x[kCodePack];
#pragma unroll
      for (int j = 0; j < kCodePack; ++j) x[j] = value_of(pack[u].code(j)) * factor;
      if (kAligned && first + kCodePack <= n) {
        store(values + first, x);
      } else {
#pragma unroll
        for (int j = 0; j < kCodePack; ++j)
          if (first + j < n) values[first + j] = from_float<T>(x[j]);
      }
    }
  }
}

/// Returns the code of y, which is in [-1, 1], or [-127, 127] for int8.
template <CodeBook kBook>
__device__ __forceinline__ uint32_t code_of(float y) {
  if constexpr (kBook == CodeBook::nf4) {
    uint32_t below = 0;
#pragma unroll
    for (int i = 0; i < 15; ++i) below += kDeviceNf4.midpoints[i] < y ? 1u : 0u;
    return below;
  } else if constexpr (kBook == CodeBook::int8) {
    return static_cast<uint32_t>(__float2int_rn(y)) & 255u;  // 0 for NaN
  } else if constexpr (kBook == CodeBook::dynamic8) {
    return dynamic8_code(kDeviceDynamic8Index.entries, y);
  } else {
    return dynamic8_unsigned_code(kDeviceDynamic8UnsignedIndex.entries, y);
  }
}

/// Loads 8 numbers from `first` on; numbers at and after n are zeros.
template <bool kAligned, class T>
__device__ __forceinline__ void load_pack(const T* __restrict__ values, int64_t first, int64_t n,
                                          float (&x)[kCodePack]) {
  if (kAligned && first + kCodePack <= n) {
    load(values + first, x);
  } else {
#pragma unroll
    for (int j = 0; j < kCodePack; ++j) x[j] = first + j < n ? to_float(values[first + j]) : 0.0f;
  }
}

/// Encodes 8 numbers of a block with the given scale.
template <CodeBook kBook>
__device__ __forceinline__ typename CodePack<kBook>::Word encoded(const float (&x)[kCodePack], float scale) {
  const float factor = code_factor(scale, kBook == CodeBook::int8 ? kInt8Top : 1.0f);
  uint32_t code[kCodePack];
#pragma unroll
  for (int j = 0; j < kCodePack; ++j) code[j] = code_of<kBook>(x[j] * factor);
  CodePack<kBook> pack;
  pack.set(code);
  return pack.word;
}

/// `packs` counts those of whole blocks. Lanes after them join their warp's reductions with zeros.
template <CodeBook kBook, class T, bool kAligned>
__global__ void __launch_bounds__(kThreads)
quantize_kernel(const T* __restrict__ values, typename CodePack<kBook>::Word* __restrict__ quantized,
                float* __restrict__ scales, int64_t n, int64_t packs) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x, first = i * kCodePack;
  float x[kCodePack];
  load_pack<kAligned>(values, first, n, x);
  const float scale = scale_of<kCodeThreads<kBook>>(x);
  if (i >= packs) return;
  quantized[i] = encoded<kBook>(x, scale);
  if (i % kCodeThreads<kBook> == 0) scales[i / kCodeThreads<kBook>] = scale;
}

/// Each thread block encodes the blocks that share an outer scale, and their scales. Codes after the last number are
/// those of zeros.
template <CodeBook kBook, class T, bool kAligned>
__global__ void __launch_bounds__(kThreads)
quantize_doubly_kernel(const T* __restrict__ values, typename CodePack<kBook>::Word* __restrict__ quantized,
                       uint8_t* __restrict__ scale_values, float* __restrict__ outer, int64_t n) {
  static_assert(kThreads == kScaleBlock, "a thread for each scale");
  constexpr int kPacks = kScaleBlock * kCodeThreads<kBook>;
  __shared__ float scales[kScaleBlock];
  __shared__ uint32_t warps[kThreads / 32];
  for (int p = threadIdx.x; p < kPacks; p += kThreads) {
    const int64_t i = int64_t{blockIdx.x} * kPacks + p, first = i * kCodePack;
    float x[kCodePack];
    load_pack<kAligned>(values, first, n, x);
    const float scale = scale_of<kCodeThreads<kBook>>(x);
    quantized[i] = encoded<kBook>(x, scale);
    if (p % kCodeThreads<kBook> == 0) scales[p / kCodeThreads<kBook>] = scale;
  }
  __syncthreads();
  const float own = scales[threadIdx.x];
  const uint32_t maximum = __reduce_max_sync(0xffffffffu, __float_as_uint(own) & 0x7fffffffu);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = maximum;
  __syncthreads();
  uint32_t top = 0;
#pragma unroll
  for (int w = 0; w < kThreads / 32; ++w) top = max(top, warps[w]);
  const float scale = block_scale(top);
  scale_values[int64_t{blockIdx.x} * kScaleBlock + threadIdx.x] =
      static_cast<uint8_t>(code_of<CodeBook::dynamic8_unsigned>(own * code_factor(scale, 1.0f)));
  if (threadIdx.x == 0) outer[blockIdx.x] = scale;
}

/// Calls `run` with the code book, the type of the values and their alignment as compile-time constants.
template <class Run>
void dispatch_values(const Quantized& q, const Tensor& values, Run&& run) {
  BLIPFT_CHECK(aligned16(q.quantized.data), "codes must be 16-byte aligned");
  dispatch_cast(values.dtype, [&](auto t) {
    dispatch_bool(aligned16(values.data), [&](auto is_aligned) {
      const auto with = [&](auto book) { run(book, t, is_aligned); };
      switch (q.book) {
        case CodeBook::nf4: return with(std::integral_constant<CodeBook, CodeBook::nf4>{});
        case CodeBook::int8: return with(std::integral_constant<CodeBook, CodeBook::int8>{});
        case CodeBook::dynamic8: return with(std::integral_constant<CodeBook, CodeBook::dynamic8>{});
        case CodeBook::dynamic8_unsigned: return with(std::integral_constant<CodeBook, CodeBook::dynamic8_unsigned>{});
      }
    });
  });
}

}  // namespace

void CudaOps::quantize(const Tensor& values, const Quantized& to, Stream stream) {
  check_quantize(values, to);
  const int64_t n = values.numel(), packs = to.scales.numel() * code_block(to.book) / kCodePack;
  if (n == 0) return;
  const cudaStream_t queue = context(stream).stream;
  dispatch_values(to, values, [&](auto book, auto t, auto is_aligned) {
    constexpr CodeBook kBook = decltype(book)::value;
    using T = typename decltype(t)::type;
    using Word = typename CodePack<kBook>::Word;
    if constexpr (code_block(kBook) == 64)
      if (to.outer)
        return quantize_doubly_kernel<kBook, T, decltype(is_aligned)::value>
            <<<static_cast<unsigned>(to.outer.numel()), kThreads, 0, queue>>>(
                values.as<const T>(), to.quantized.as<Word>(), to.scales.as<uint8_t>(), to.outer.as<float>(), n);
    quantize_kernel<kBook, T, decltype(is_aligned)::value>
        <<<static_cast<unsigned>(ceil_div(packs, kThreads)), kThreads, 0, queue>>>(
            values.as<const T>(), to.quantized.as<Word>(), to.scales.as<float>(), n, packs);
  });
  BLIPFT_CUDA_LAUNCHED("quantize_kernel");
}

void CudaOps::dequantize(const Quantized& from, const Tensor& values, Stream stream) {
  check_dequantize(from, values);
  const int64_t n = values.numel();
  if (n == 0) return;
  const LaunchContext launch = context(stream);
  const int64_t blocks = std::min(ceil_div(n, int64_t{kCodePack} * kThreads * kUnroll),
                                  kBlocksOfProcessor * launch.sm_count);
  dispatch_values(from, values, [&](auto book, auto t, auto is_aligned) {
    constexpr CodeBook kBook = decltype(book)::value;
    using T = typename decltype(t)::type;
    dispatch_bool(code_block(kBook) == 64 && from.outer, [&](auto is_double) {
      constexpr bool kDouble = decltype(is_double)::value && code_block(kBook) == 64;
      const Scales<kDouble> scales{from.scales.data, kDouble ? from.outer.as<const float>() : nullptr};
      dequantize_kernel<kBook, T, decltype(is_aligned)::value, kDouble>
          <<<static_cast<unsigned>(blocks), kThreads, 0, launch.stream>>>(
              from.quantized.as<const typename CodePack<kBook>::Word>(), scales, values.as<T>(), n);
    });
  });
  BLIPFT_CUDA_LAUNCHED("dequantize_kernel");
}

}  // namespace blipft
