// Casts of fp8 factors: finds the largest magnitude of a matrix, then writes its quantized values in both layouts in
// one pass.
//
// Hopper's tensor cores multiply fp8 only along contiguous memory, so x, dy and the weight are needed in both layouts.
// Memory traffic for n bf16 elements: 2 n bytes for the magnitude, 3 n for one layout, 4 n for both.
#include <cuda_fp8.h>

#include "cuda/cuda_ops.h"
#include "cuda/gemm/largest.cuh"
#include "cuda/vector.cuh"
#include "ops/fp8.h"

namespace blipft {
namespace {

constexpr int kThreads = 256;

/// A matrix with a row stride, read in groups of 8 columns.
template <class T>
struct Rows {
  const T* data;
  int64_t rows, cols, stride;
  bool aligned;                            ///< each group of 8 is 16-byte aligned

  __device__ __forceinline__ void load8(int64_t row, int64_t col, float (&x)[8]) const {
    const T* from = data + row * stride + col;
    if (aligned) {
      load(from, x);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] = to_float(from[i]);
    }
  }
};

template <class T>
Rows<T> rows_of(const MatrixView& view) {
  const int64_t stride = view.contiguous() ? view.cols() : view.row_stride;
  return {view.as<const T>(), view.rows(), view.cols(), stride, aligned16(view.data) && stride % kVector<T> == 0};
}

/// Raises `largest` to the bits of the largest magnitude. Their order is that of the numbers, with infinities and NaNs
/// largest.
template <class T>
__global__ void __launch_bounds__(kThreads) largest_kernel(Rows<T> x, unsigned* largest) {
  const int64_t groups = x.cols / 8, count = x.rows * groups;
  unsigned maximum = 0;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step) {
    const int64_t row = divided(i, groups);
    float v[8];
    x.load8(row, (i - row * groups) * 8, v);
#pragma unroll
    for (int j = 0; j < 8; ++j) maximum = max(maximum, __float_as_uint(v[j]) & 0x7fffffffu);
  }
  raise_by_block(maximum, largest);
}

template <bool kE5m2>
__device__ __forceinline__ uint32_t values_of_four(const float* x) {
  constexpr __nv_fp8_interpretation_t kForm = kE5m2 ? __NV_E5M2 : __NV_E4M3;
  const uint32_t low = __nv_cvt_float2_to_fp8x2({x[0], x[1]}, __NV_SATFINITE, kForm);
  const uint32_t high = __nv_cvt_float2_to_fp8x2({x[2], x[3]}, __NV_SATFINITE, kForm);
  return low | high << 16;
}

/// Transposes 4 x 4 bytes: out[i] contains byte i of each word.
__device__ __forceinline__ void transpose_bytes(const uint32_t (&in)[4], uint32_t (&out)[4]) {
  const uint32_t a = __byte_perm(in[0], in[1], 0x5140), b = __byte_perm(in[2], in[3], 0x5140);
  const uint32_t c = __byte_perm(in[0], in[1], 0x7362), d = __byte_perm(in[2], in[3], 0x7362);
  out[0] = __byte_perm(a, b, 0x5410), out[1] = __byte_perm(a, b, 0x7632);
  out[2] = __byte_perm(c, d, 0x5410), out[3] = __byte_perm(c, d, 0x7632);
}

constexpr int kTileRows = 128, kTileCols = 64;

using Tile = uint32_t[kTileCols][kTileRows / 4 + 1];

/// Writes the block's tile to `transposed` [cols, columns]. `words`: one word per row for each half of this thread's 8
/// columns.
__device__ __forceinline__ void store_transposed(const uint32_t (&words)[2][4], Tile& tile, uint8_t* transposed,
                                                 int64_t row0, int64_t col0, int64_t cols, int64_t columns) {
  const int rows4 = static_cast<int>(threadIdx.x) / 8, group = static_cast<int>(threadIdx.x) % 8;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t out[4];
    transpose_bytes(words[half], out);
#pragma unroll
    for (int j = 0; j < 4; ++j) tile[group * 8 + half * 4 + j][rows4] = out[j];
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kTileCols * kTileRows / 16; i += kThreads) {
    const int c = i / (kTileRows / 16), part = i % (kTileRows / 16);
    const int64_t row = row0 + part * 16;
    if (col0 + c >= cols || row >= columns) continue;
    const uint32_t* from = &tile[c][part * 4];
    *reinterpret_cast<uint4*>(transposed + (col0 + c) * columns + row) = {from[0], from[1], from[2], from[3]};
  }
}

using Count = unsigned long long;          // the 8-byte type of atomicAdd

/// Counts over the elements that a thread has cast.
struct Found {
  unsigned underflows = 0, not_finite = 0;

  /// Counts 8 elements `x` and their quantized values.
  __device__ __forceinline__ void add(const float (&x)[8], uint32_t low, uint32_t high) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const uint32_t code = (j < 4 ? low : high) >> (j % 4 * 8) & 0x7fu;
      underflows += x[j] != 0 && code == 0;
      not_finite += (__float_as_uint(x[j]) & 0x7fffffffu) >= 0x7f800000u;
    }
  }
  /// Adds the block's counts to `counts`. All threads of the block must call it.
  __device__ __forceinline__ void add_to(Count* counts) const {
    __shared__ unsigned sums[2];
    if (threadIdx.x < 2) sums[threadIdx.x] = 0;
    __syncthreads();
    const unsigned all[2] = {__reduce_add_sync(0xffffffffu, underflows), __reduce_add_sync(0xffffffffu, not_finite)};
    if (threadIdx.x % 32 == 0)
      for (int i = 0; i < 2; ++i) atomicAdd(&sums[i], all[i]);
    __syncthreads();
    if (threadIdx.x != 0) return;
    if (sums[0] > 0) atomicAdd(counts + kFp8Underflows, Count{sums[0]});
    if (sums[1] > 0) atomicAdd(counts + kFp8NotFinite, Count{sums[1]});
  }
};

/// Outputs of a cast.
struct CastOut {
  float* scale;
  uint8_t *quantized, *transposed;
  int64_t columns;                         ///< of `transposed`: fp8_columns(rows)
  unsigned* largest;                       ///< optional
  Count* counts;                           ///< optional
};

/// A block casts a tile of kTileRows x kTileCols, a thread 4 rows x 8 columns of it.
template <class T, bool kE5m2, bool kValues, bool kTransposed, bool kCounts>
__global__ void __launch_bounds__(kThreads) cast_fp8_kernel(Rows<T> x, const unsigned* amax, CastOut out) {
  constexpr DType kDType = kE5m2 ? DType::f8e5m2 : DType::f8e4m3;
  const unsigned maximum = *amax;
  const float factor = power_of_two(fp8_exponent(maximum, kDType));
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) {
    *out.scale = fp8_scale(maximum, kDType);
    if (out.largest) atomicMax(out.largest, maximum);
    if constexpr (kCounts) atomicAdd(out.counts + kFp8Elements, static_cast<Count>(x.rows * x.cols));
  }
  Found found;
  const int64_t row0 = int64_t{blockIdx.y} * kTileRows, col0 = int64_t{blockIdx.x} * kTileCols;
  const int rows4 = static_cast<int>(threadIdx.x) / 8, group = static_cast<int>(threadIdx.x) % 8;
  const int64_t col = col0 + group * 8;
  uint32_t words[2][4]{};                  // one word per row for each half of the 8 columns
  if (col < x.cols) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int64_t row = row0 + rows4 * 4 + r;
      if (row >= x.rows) break;
      float v[8];
      x.load8(row, col, v);
      float scaled[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) scaled[j] = v[j] * factor;
      words[0][r] = values_of_four<kE5m2>(scaled), words[1][r] = values_of_four<kE5m2>(scaled + 4);
      if constexpr (kCounts) found.add(v, words[0][r], words[1][r]);
      if constexpr (kValues)
        *reinterpret_cast<uint2*>(out.quantized + row * x.cols + col) = {words[0][r], words[1][r]};
    }
  }
  if constexpr (kCounts) found.add_to(out.counts);
  if constexpr (kTransposed) {
    __shared__ Tile tile;
    store_transposed(words, tile, out.transposed, row0, col0, x.cols, out.columns);
  }
}

template <class T, bool kE5m2>
void run_cast(const Fp8Cast& args, const LaunchContext& context) {
  const Rows<T> x = rows_of<T>(args.x);
  const CastOut out{.scale = args.scale.as<float>(), .quantized = args.quantized.as<uint8_t>(),
                    .transposed = args.transposed.as<uint8_t>(), .columns = fp8_columns(x.rows),
                    .largest = args.largest.as<unsigned>(), .counts = args.counts.as<Count>()};
  const dim3 grid(static_cast<unsigned>(ceil_div(x.cols, kTileCols)),
                  static_cast<unsigned>(ceil_div(out.columns, kTileRows)));
  dispatch_bool(static_cast<bool>(args.quantized), [&](auto with_values) {
    dispatch_bool(static_cast<bool>(args.transposed), [&](auto with_transposed) {
      constexpr bool kValues = decltype(with_values)::value, kTransposed = decltype(with_transposed)::value;
      if constexpr (kValues || kTransposed)
        dispatch_bool(static_cast<bool>(args.counts), [&](auto with_counts) {
          constexpr bool kCounts = decltype(with_counts)::value;
          cast_fp8_kernel<T, kE5m2, kValues, kTransposed, kCounts><<<grid, kThreads, 0, context.stream>>>(
              x, args.amax.as<const unsigned>(), out);
        });
    });
  });
  BLIPFT_CUDA_LAUNCHED("cast_fp8_kernel");
}

/// Transposes existing quantized values with the same tiles.
__global__ void __launch_bounds__(kThreads) transpose_fp8_kernel(const uint8_t* quantized, uint8_t* transposed, int64_t rows,
                                                                 int64_t cols, int64_t columns) {
  const int64_t row0 = int64_t{blockIdx.y} * kTileRows, col0 = int64_t{blockIdx.x} * kTileCols;
  const int rows4 = static_cast<int>(threadIdx.x) / 8, group = static_cast<int>(threadIdx.x) % 8;
  const int64_t col = col0 + group * 8;
  uint32_t words[2][4]{};
  if (col < cols) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int64_t row = row0 + rows4 * 4 + r;
      if (row >= rows) break;
      const uint2 eight = *reinterpret_cast<const uint2*>(quantized + row * cols + col);
      words[0][r] = eight.x, words[1][r] = eight.y;
    }
  }
  __shared__ Tile tile;
  store_transposed(words, tile, transposed, row0, col0, cols, columns);
}

/// splitmix64 of the word's index, with the top exponent bit of each byte cleared: no large, infinite or NaN values.
__global__ void __launch_bounds__(kThreads) fill_fp8_kernel(uint32_t* words, int64_t count, uint32_t seed) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  uint64_t z = seed * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(i + 1) * 0xd1342543de82ef95u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  words[i] = static_cast<uint32_t>(z >> 31) & 0xbfbfbfbfu;
}

}  // namespace

void launch_fill_fp8(const Tensor& quantized, uint32_t seed, const LaunchContext& context) {
  const int64_t words = quantized.numel() / 4;  // rows are multiples of kFp8Alignment
  fill_fp8_kernel<<<static_cast<unsigned>(ceil_div(words, kThreads)), kThreads, 0, context.stream>>>(
      quantized.as<uint32_t>(), words, seed);
  BLIPFT_CUDA_LAUNCHED("fill_fp8_kernel");
}

// Tensor cores support fp8 from Ada on.
bool CudaOps::has_fp8() const { return capability_ >= 89; }

void CudaOps::raise_amax(const MatrixView& x, const Tensor& amax, Stream stream) {
  check_raise_amax(x, amax);
  const LaunchContext to = context(stream);
  const int64_t groups = x.numel() / 8;
  if (groups == 0) return;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(ceil_div(groups, 4 * kThreads), int64_t{to.sm_count} * 8));
  dispatch_float(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    largest_kernel<T><<<blocks, kThreads, 0, to.stream>>>(rows_of<T>(x), amax.as<unsigned>());
  });
  BLIPFT_CUDA_LAUNCHED("largest_kernel");
}

void CudaOps::cast_fp8(const Fp8Cast& args, Stream stream) {
  check_args(args);
  const LaunchContext to = context(stream);
  if (args.magnitude == Fp8Magnitude::found) BLIPFT_CUDA_CHECK(cudaMemsetAsync(args.amax.data, 0, sizeof(float), to.stream));
  if (args.magnitude != Fp8Magnitude::given) raise_amax(args.x, args.amax, stream);
  dispatch_float(args.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const DType dtype = args.quantized ? args.quantized.dtype : args.transposed.dtype;
    if (dtype == DType::f8e5m2) run_cast<T, true>(args, to);
    else run_cast<T, false>(args, to);
  });
}

void CudaOps::transpose_fp8(const Tensor& quantized, const Tensor& transposed, Stream stream) {
  check_transpose_fp8(quantized, transposed);
  if (quantized.numel() == 0) return;
  BLIPFT_CHECK(aligned16(quantized.data) && aligned16(transposed.data), "codes must be 16-byte aligned");
  const int64_t columns = fp8_columns(quantized.rows());
  const dim3 grid(static_cast<unsigned>(ceil_div(quantized.cols(), kTileCols)), static_cast<unsigned>(ceil_div(columns, kTileRows)));
  transpose_fp8_kernel<<<grid, kThreads, 0, context(stream).stream>>>(quantized.as<const uint8_t>(), transposed.as<uint8_t>(),
                                                                      quantized.rows(), quantized.cols(), columns);
  BLIPFT_CUDA_LAUNCHED("transpose_fp8_kernel");
}

}  // namespace blipft
