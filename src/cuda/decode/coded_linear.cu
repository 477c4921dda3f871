// Products of few rows with a quantized matrix. They are bound by reading quantized values, which have half or a quarter of
// the bytes of bf16, and by decoding them.
//
// A lane reads 16 bytes of quantized values of a row of w at a time, and its neighbours the adjacent 16 bytes.
// One row of x: each warp owns columns, keeps their part of x in registers and iterates over rows of w. The sums of a
// row over its columns are added in shared memory in the order of warps.
// Several rows of x: each warp computes its own outputs. x is in shared memory; its units of 8 numbers are ordered by
// lane, so that the lanes of a quarter warp read them from different banks. Reads through the L1 cache would wait for
// the outstanding loads of quantized values.
// nf4: a table in shared memory, with a copy for each lane, decodes a byte into two numbers with one access. The first
// number is the lower half of a 32-bit word. The second is the whole word read as f32; its upper half is chosen so that
// the word is nearest to the number. Both are as near to nf4's values as bf16 allows. int8: a byte becomes the mantissa
// of a number near 2^23.
#include <algorithm>
#include <array>

#include "blipft/decode_ops.h"
#include "cuda/cuda_ops.h"
#include "cuda/device/overlap.cuh"
#include "cuda/vector.cuh"
#include "ops/code_book.h"
#include "ops/ops_check.h"

namespace blipft {
namespace {

constexpr int kMaxRows = 4;                  // rows of x in one launch
constexpr int64_t kFewRows = 8;               // maximum rows for which this beats decoding the matrix first
constexpr int kTableRow = 256, kTableBytes = 256 * kTableRow;  // 128 bytes of each row are the 32 copies
__constant__ const CodeTable<16> kNf4Values = kNf4;

struct CodedArgs {
  const uint8_t* quantized;
  const float* scales;
  const bf16 *x, *bias, *residual;
  bf16* y;
  int64_t x_stride, residual_stride, y_stride;
  int rows, n, k;
  int64_t first, row;                         ///< columns [first, first + k) of w's rows, which have `row` columns
};

template <CodeBook kBook>
struct Layout {
  static constexpr int kValues = 16 * 8 / static_cast<int>(code_bits(kBook));  ///< in a lane's 16 bytes
  static constexpr int kUnits = kValues / 8;  ///< units of x for these values
  static constexpr int kChunk = 32 * kValues; ///< values of a warp
  static constexpr int kTable = kBook == CodeBook::nf4 ? kTableBytes : 0;
};

/// Returns a word whose lower half is `first` in bf16 and that, read as f32, is nearest to `second`.
__device__ __forceinline__ uint32_t pair_word(float first, float second) {
  const uint32_t low = __bfloat16_as_ushort(__float2bfloat16_rn(first));
  if (second == 0) return low;                // a denormal: the second reads as at most 2^-133
  uint32_t best = (__float_as_uint(second) & 0xffff0000u) | low;
  for (const uint32_t step : {0xffff0000u, 0x00010000u}) {
    const uint32_t other = best + step;
    if (fabsf(__uint_as_float(other) - second) < fabsf(__uint_as_float(best) - second)) best = other;
  }
  return best;
}

__device__ __forceinline__ void fill_table(unsigned char* table) {
  for (int byte = threadIdx.x; byte < 256; byte += static_cast<int>(blockDim.x)) {
    const uint32_t word = pair_word(kNf4Values.values[byte >> 4], kNf4Values.values[byte & 15]);
#pragma unroll
    for (int j = 0; j < 8; ++j)               // rotated, so that neighbouring threads write to different banks
      *reinterpret_cast<uint4*>(table + byte * kTableRow + ((j + threadIdx.x) & 7) * 16) = make_uint4(word, word, word, word);
  }
}

/// Decodes numbers 2 j and 2 j + 1 of 8 numbers in `words` (nf4: one word; int8: two words, the numbers times 127).
template <CodeBook kBook>
__device__ __forceinline__ float2 decoded(const unsigned char* table, uint32_t lane4, const uint32_t* words, int j) {
  if constexpr (kBook == CodeBook::nf4) {
    uint32_t address;                         // byte j of the quantized values times 256, plus the offset of the lane's copy
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(address) : "r"(words[0]), "r"(lane4), "r"(0x5504u | static_cast<uint32_t>(j << 4)));
    const uint32_t word = *reinterpret_cast<const uint32_t*>(table + address);
    return {__uint_as_float(word << 16), __uint_as_float(word)};
  } else {
    constexpr uint32_t kExponent = 0x4b000000u;  // of 2^23
    const uint32_t word = words[j / 2] ^ 0x80808080u, at = static_cast<uint32_t>(j % 2 * 2);
    return {__uint_as_float(__byte_perm(word, kExponent, 0x7440u | at)) - 8388736.0f,
            __uint_as_float(__byte_perm(word, kExponent, 0x7440u | (at + 1))) - 8388736.0f};
  }
}

/// Adds the products of 8 numbers of x and the 8 numbers in `words`.
template <CodeBook kBook>
__device__ __forceinline__ void add_products(const unsigned char* table, uint32_t lane4, const uint32_t* words, const uint4& x,
                                             float& sum) {
  const uint32_t xs[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float2 w = decoded<kBook>(table, lane4, words, j), pair = unpack(xs[j]);
    sum = fmaf(w.x, pair.x, sum);
    sum = fmaf(w.y, pair.y, sum);
  }
}

/// A lane's prefetched quantized values and scales of R rows of w.
template <CodeBook kBook, int R>
struct Codes {
  uint4 words[R];
  float scales[R];

  __device__ __forceinline__ void load(const CodedArgs& args, int n, int k) {
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const int64_t at = min(n + r, args.n - 1) * args.row + args.first + k;
      if (k < args.k) {
        words[r] = load_once(args.quantized + at * code_bits(kBook) / 8);
        scales[r] = __ldg(args.scales + at / code_block(kBook));
      } else {
        words[r] = make_uint4(0, 0, 0, 0), scales[r] = 0;
      }
    }
  }
};

/// Prefetches the quantized values that a lane loads first of R rows of w into the L2 cache, while a preceding kernel computes x.
template <CodeBook kBook, int R>
__device__ __forceinline__ void prefetch_values(const CodedArgs& args, int n, int k) {
#pragma unroll
  for (int r = 0; r < R; ++r) {
    if (n + r >= args.n || k >= args.k) continue;
    const int64_t at = (n + r) * args.row + args.first + k;
    prefetch(args.quantized + at * code_bits(kBook) / 8);
    prefetch(args.scales + at / code_block(kBook));
  }
}

/// Copies x into shared memory as rows of whole chunks; missing columns and rows become zeros.
template <CodeBook kBook, int M, int kThreads>
__device__ __forceinline__ void stage(const CodedArgs& args, uint4* staged) {
  constexpr int kUnits = Layout<kBook>::kUnits, kOfChunk = 32 * kUnits;
  const int units = (args.k + Layout<kBook>::kChunk - 1) / Layout<kBook>::kChunk * kOfChunk;
  for (int m = 0; m < M; ++m)
    for (int u = threadIdx.x; u < units; u += kThreads)
      staged[m * units + u / kOfChunk * kOfChunk + u % kUnits * 32 + u % kOfChunk / kUnits] =
          m < args.rows && u * 8 < args.k ? *reinterpret_cast<const uint4*>(args.x + m * args.x_stride + u * 8)
                                          : make_uint4(0, 0, 0, 0);
}

/// W warps per block, R rows of w per warp at a time, M rows of x. Blocks are persistent, so the table is made only
/// once.
template <CodeBook kBook, int W, int R, int M>
__global__ void __launch_bounds__(32 * W) coded_linear_kernel(CodedArgs args) {
  using Part = Layout<kBook>;
  extern __shared__ __align__(256) unsigned char shared_bytes[];  // the table, then x
  const int lane = threadIdx.x % 32, step = static_cast<int>(gridDim.x) * W * R;
  int n = (static_cast<int>(blockIdx.x) * W + threadIdx.x / 32) * R;
  let_next_start();
  prefetch_values<kBook, R>(args, n, lane * Part::kValues);
  if constexpr (Part::kTable > 0) fill_table(shared_bytes);
  wait_for_earlier();
  Codes<kBook, R> ahead;
  if (n < args.n) ahead.load(args, n, lane * Part::kValues);
  stage<kBook, M, 32 * W>(args, reinterpret_cast<uint4*>(shared_bytes + Part::kTable));
  __syncthreads();
  const int row_bytes = (args.k + Part::kChunk - 1) / Part::kChunk * Part::kChunk * 2;
  for (; n < args.n; n += step) {
    float sum[M][R] = {};
    for (int k = 0; k < args.k; k += Part::kChunk) {
      const Codes<kBook, R> quantized = ahead;
      if (k + Part::kChunk < args.k) ahead.load(args, n, k + Part::kChunk + lane * Part::kValues);
      else if (n + step < args.n) ahead.load(args, n + step, lane * Part::kValues);
      const unsigned char* const x = shared_bytes + Part::kTable + k * 2 + lane * 16;
      float part[M][R] = {};
#pragma unroll
      for (int unit = 0; unit < Part::kUnits; ++unit)
#pragma unroll
        for (int m = 0; m < M; ++m) {
          const uint4 xs = *reinterpret_cast<const uint4*>(x + m * row_bytes + unit * 512);
#pragma unroll
          for (int r = 0; r < R; ++r) {
            const uint32_t words[4] = {quantized.words[r].x, quantized.words[r].y, quantized.words[r].z, quantized.words[r].w};
            add_products<kBook>(shared_bytes, static_cast<uint32_t>(lane) * 4, words + unit * 4 / Part::kUnits, xs, part[m][r]);
          }
        }
#pragma unroll
      for (int m = 0; m < M; ++m)
#pragma unroll
        for (int r = 0; r < R; ++r) sum[m][r] = fmaf(quantized.scales[r], part[m][r], sum[m][r]);
    }
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
      for (int r = 0; r < R; ++r) {
        float total = warp_sum(sum[m][r]);
        if (lane != 0 || n + r >= args.n || m >= args.rows) continue;
        if constexpr (kBook == CodeBook::int8) total *= 1.0f / 127;
        if (args.bias) total += to_float(args.bias[n + r]);
        if (args.residual) total += to_float(args.residual[m * args.residual_stride + n + r]);
        args.y[m * args.y_stride + n + r] = from_float<bf16>(total);
      }
  }
}

template <CodeBook kBook, int W, int R, int M>
void launch_coded(const CodedArgs& args, const LaunchContext& launch) {
  const int shared = Layout<kBook>::kTable + M * static_cast<int>(round_up(args.k, Layout<kBook>::kChunk)) * 2;
  BLIPFT_CHECK(shared <= launch.shared_bytes, "coded_linear: rows of ", args.k, " do not fit the shared memory");
  const auto kernel = coded_linear_kernel<kBook, W, R, M>;
  BLIPFT_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
  launch_overlapped(kernel, blocks_of(std::min<int64_t>(ceil_div(args.n, W * R), launch.sm_count)), 32 * W,
                    static_cast<size_t>(shared), launch, args);
}

constexpr int kMaxWarps = 24;                // of the kernel below: more warps would exceed the registers

/// Partition of a block's rows of w: groups of `chunks` warps, each of which owns a part of the columns; a group
/// processes `each` rows.
struct RowShares {
  int rows, chunks, each;
};

/// Reduces two sums over a warp: lane 0 returns that of a, lane 16 that of b.
__device__ __forceinline__ float warp_sums(float a, float b, int lane) {
  float sum = lane < 16 ? a : b;
  sum += __shfl_xor_sync(0xffffffffu, lane < 16 ? b : a, 16);
#pragma unroll
  for (int offset = 8; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  return sum;
}

/// One row of x; R rows of w per warp at a time. Columns beyond the chunks of all warps are processed in further parts.
// The function has 66 lines because the loads around the wait, the loop and the end share registers.
template <CodeBook kBook, int R>
__global__ void __launch_bounds__(32 * kMaxWarps) coded_row_kernel(CodedArgs args, RowShares shares) {
  using Part = Layout<kBook>;
  static_assert(R % 2 == 0);
  extern __shared__ __align__(256) unsigned char shared_bytes[];  // the table, then sums [rows, chunks]
  float* const sums = reinterpret_cast<float*>(shared_bytes + Part::kTable);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, chunk = warp % shares.chunks;
  const int begin = static_cast<int>(blockIdx.x) * shares.rows, end = min(begin + shares.rows, args.n);
  const int first = begin + warp / shares.chunks * shares.each, last = min(first + shares.each, end);
  const int own = chunk * Part::kChunk + lane * Part::kValues;
  let_next_start();
  if (first < last) prefetch_values<kBook, R>(args, first, own);
  if constexpr (Part::kTable > 0) fill_table(shared_bytes);
  wait_for_earlier();
  for (int part = 0; part < args.k; part += shares.chunks * Part::kChunk) {
    const int column = part + own;
    Codes<kBook, R> ahead;
    if (first < last) ahead.load(args, first, column);
    float x[Part::kValues];
#pragma unroll
    for (int i = 0; i < Part::kValues; i += 8) {
      float eight[8] = {};
      if (column + i < args.k) load(args.x + column + i, eight);
#pragma unroll
      for (int j = 0; j < 8; ++j) x[i + j] = eight[j];
    }
    if (part == 0) __syncthreads();           // the table is complete
    for (int row = first; row < last; row += R) {
      const Codes<kBook, R> quantized = ahead;
      if (row + R < last) ahead.load(args, row + R, column);
      float sum[R] = {};
#pragma unroll
      for (int r = 0; r < R; ++r) {
        const uint32_t words[4] = {quantized.words[r].x, quantized.words[r].y, quantized.words[r].z, quantized.words[r].w};
#pragma unroll
        for (int i = 0; i < Part::kValues; i += 2) {
          const uint32_t* const of_eight = words + i / 8 * 4 / Part::kUnits;
          const float2 w = decoded<kBook>(shared_bytes, static_cast<uint32_t>(lane) * 4, of_eight, i / 2 % 4);
          sum[r] = fmaf(w.x, x[i], sum[r]);
          sum[r] = fmaf(w.y, x[i + 1], sum[r]);
        }
        sum[r] *= quantized.scales[r];
      }
#pragma unroll
      for (int r = 0; r < R; r += 2) {
        const float total = warp_sums(sum[r], sum[r + 1], lane);
        const int of = row + r + lane / 16;
        if (lane % 16 != 0 || of >= last) continue;
        float& to = sums[(of - begin) * shares.chunks + chunk];
        to = part == 0 ? total : to + total;
      }
    }
  }
  __syncthreads();
  for (int n = begin + static_cast<int>(threadIdx.x); n < end; n += static_cast<int>(blockDim.x)) {
    float total = 0;
    for (int c = 0; c < shares.chunks; ++c) total += sums[(n - begin) * shares.chunks + c];
    if constexpr (kBook == CodeBook::int8) total *= 1.0f / 127;
    if (args.bias) total += to_float(args.bias[n]);
    if (args.residual) total += to_float(args.residual[n]);
    args.y[n] = from_float<bf16>(total);
  }
}

template <CodeBook kBook>
void launch_row(const CodedArgs& args, const LaunchContext& launch) {
  using Part = Layout<kBook>;
  const int64_t chunks = ceil_div(args.k, Part::kChunk), of_warps = ceil_div(chunks, ceil_div(chunks, kMaxWarps));
  const int64_t room = (launch.shared_bytes - Part::kTable) / (4 * of_warps);
  const int64_t rows = std::min(ceil_div(args.n, launch.sm_count), room);
  const int64_t each = ceil_div(rows, kMaxWarps / of_warps);
  const RowShares shares{static_cast<int>(rows), static_cast<int>(of_warps), static_cast<int>(each)};
  const auto kernel = coded_row_kernel<kBook, kBook == CodeBook::nf4 ? 2 : 4>;
  const int64_t shared = Part::kTable + rows * of_warps * 4;
  BLIPFT_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)));
  launch_overlapped(kernel, blocks_of(ceil_div(args.n, rows)), 32 * of_warps * ceil_div(rows, each), static_cast<size_t>(shared),
                    launch, args, shares);
}

/// Processes as many rows of x at a time as fit into shared memory; if not even one fits, parts of its columns in turn.
template <CodeBook kBook>
void launch_rows(CodedArgs args, int64_t rows, const LaunchContext& launch) {
  if (rows == 1) return launch_row<kBook>(args, launch);
  constexpr int64_t kChunk = Layout<kBook>::kChunk;
  const int64_t maximum = (launch.shared_bytes - Layout<kBook>::kTable) / (2 * kChunk) * kChunk;  // numbers of x
  const int64_t whole = args.k;
  const CodedArgs all = args;
  for (int64_t done = 0; done < rows; done += args.rows) {
    args = all;
    args.rows = rows - done > 1 && kMaxRows * round_up(whole, kChunk) <= maximum
                    ? static_cast<int>(std::min<int64_t>(rows - done, kMaxRows)) : 1;
    args.x += done * args.x_stride, args.y += done * args.y_stride;
    if (args.residual) args.residual += done * args.residual_stride;
    for (args.first = 0; args.first < whole; args.first += maximum) {
      args.k = static_cast<int>(std::min(maximum, whole - args.first));
      if (args.rows == 1) launch_coded<kBook, 32, 1, 1>(args, launch);
      else launch_coded<kBook, 16, 2, kMaxRows>(args, launch);
      args.x += args.k, args.bias = nullptr;
      args.residual = args.y, args.residual_stride = args.y_stride;  // the other columns are added to y
    }
  }
}

}  // namespace

int64_t CudaOps::coded_rows(DType compute) const { return compute == DType::bf16 ? kFewRows : 0; }

void CudaOps::coded_linear(const CodedLinear& op, Stream stream) {
  check_args(op);
  if (op.y.numel() == 0) return;
  BLIPFT_CHECK(op.x.dtype == DType::bf16, "coded_linear: x has dtype ", dtype_name(op.x.dtype), ", this backend takes bf16");
  BLIPFT_CHECK(all_aligned16(op.x, op.w.quantized) && op.x.row_stride % 8 == 0, "coded_linear: x and codes start at multiples of 16 bytes");
  CodedArgs args{};
  args.quantized = op.w.quantized.as<const uint8_t>(), args.scales = op.w.scales.as<const float>();
  args.x = op.x.as<const bf16>(), args.y = op.y.as<bf16>();
  args.bias = op.bias.as<const bf16>(), args.residual = op.residual.as<const bf16>();
  args.x_stride = op.x.row_stride, args.y_stride = op.y.row_stride, args.residual_stride = op.residual.row_stride;
  args.n = static_cast<int>(op.y.cols()), args.k = static_cast<int>(op.x.cols()), args.row = op.x.cols();
  const LaunchContext launch = context(stream);
  if (op.w.book == CodeBook::nf4) launch_rows<CodeBook::nf4>(args, op.x.rows(), launch);
  else launch_rows<CodeBook::int8>(args, op.x.rows(), launch);
}

}  // namespace blipft
