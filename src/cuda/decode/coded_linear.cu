// Products of a few rows with a matrix that is stored as codes. What bounds them is reading the codes, half or a quarter of
// bf16's bytes, and turning them into numbers.
//
// A warp computes outputs of its own: a lane takes 16 bytes of codes of a row of w at a time, its neighbours the 16 bytes
// beside. x lies in shared memory, its units of 8 numbers sorted by lanes, so that a quarter of a warp reads them from
// different banks: through the L1 they would wait behind the codes that are still on their way.
// nf4: a table in shared memory, a copy a lane, turns a byte into two numbers with one access; the first is the word's low
// half, the second the whole word read as f32, whose upper half is chosen so that the word lies nearest to it. Both lie as
// near to nf4's values as bf16 can. int8: a byte in the mantissa of 2^23.
#include <algorithm>
#include <array>

#include "blipft/decode_ops.h"
#include "cuda/cuda_ops.h"
#include "cuda/vector.cuh"
#include "ops/code_book.h"
#include "ops/ops_check.h"

namespace blipft {
namespace {

constexpr int kMostRows = 4;                  // of x in one launch
constexpr int64_t kFewRows = 8;               // of which this is faster than decoding the matrix first
constexpr int kTableRow = 256, kTableBytes = 256 * kTableRow;  // 128 bytes of each row are the 32 copies
__constant__ const CodeTable<16> kNf4Values = kNf4;

struct CodedArgs {
  const uint8_t* codes;
  const float* scales;
  const bf16 *x, *bias, *residual;
  bf16* y;
  int64_t x_stride, residual_stride, y_stride;
  int rows, n, k;
  int64_t first, row;                         ///< columns [first, first + k) of w's rows of so many
};

template <CodeBook kBook>
struct Layout {
  static constexpr int kValues = 16 * 8 / static_cast<int>(code_bits(kBook));  ///< of a lane's 16 bytes
  static constexpr int kUnits = kValues / 8;  ///< of x, that go with them
  static constexpr int kChunk = 32 * kValues; ///< of a warp
  static constexpr int kTable = kBook == CodeBook::nf4 ? kTableBytes : 0;
};

/// The first of two numbers as the low half of a word that, as f32, lies nearest to the second.
__device__ __forceinline__ uint32_t pair_word(float first, float second) {
  const uint32_t low = __bfloat16_as_ushort(__float2bfloat16_rn(first));
  if (second == 0) return low;                // a denormal: the second counts as 2^-133 at most
  uint32_t best = (__float_as_uint(second) & 0xffff0000u) | low;
  for (const uint32_t step : {0xffff0000u, 0x00010000u}) {
    const uint32_t other = best + step;
    if (fabsf(__uint_as_float(other) - second) < fabsf(__uint_as_float(best) - second)) best = other;
  }
  return best;
}

template <int kThreads>
__device__ __forceinline__ void fill_table(unsigned char* table) {
  for (int byte = threadIdx.x; byte < 256; byte += kThreads) {
    const uint32_t word = pair_word(kNf4Values.values[byte >> 4], kNf4Values.values[byte & 15]);
#pragma unroll
    for (int j = 0; j < 8; ++j)               // in turn, so that neighbours write to different banks
      *reinterpret_cast<uint4*>(table + byte * kTableRow + ((j + threadIdx.x) & 7) * 16) = make_uint4(word, word, word, word);
  }
}

/// Adds the products of 8 numbers of x with those behind `words` (nf4: one word; int8: two).
template <CodeBook kBook>
__device__ __forceinline__ void add_products(const unsigned char* table, uint32_t lane4, const uint32_t* words, const uint4& x,
                                             float& sum) {
  const uint32_t xs[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    float first, second;
    if constexpr (kBook == CodeBook::nf4) {
      uint32_t address;                       // byte j of the codes times 256, and the lane's column
      asm("prmt.b32 %0, %1, %2, %3;" : "=r"(address) : "r"(words[0]), "r"(lane4), "r"(0x5504u | static_cast<uint32_t>(j << 4)));
      const uint32_t word = *reinterpret_cast<const uint32_t*>(table + address);
      first = __uint_as_float(word << 16), second = __uint_as_float(word);
    } else {
      constexpr uint32_t kExponent = 0x4b000000u;  // of 2^23
      const uint32_t word = words[j / 2] ^ 0x80808080u, at = static_cast<uint32_t>(j % 2 * 2);
      first = __uint_as_float(__byte_perm(word, kExponent, 0x7440u | at)) - 8388736.0f;
      second = __uint_as_float(__byte_perm(word, kExponent, 0x7440u | (at + 1))) - 8388736.0f;
    }
    const float2 pair = unpack(xs[j]);
    sum = fmaf(first, pair.x, sum);
    sum = fmaf(second, pair.y, sum);
  }
}

/// What a lane has of R rows of w, on its way.
template <CodeBook kBook, int R>
struct Codes {
  uint4 words[R];
  float scales[R];

  __device__ __forceinline__ void load(const CodedArgs& args, int n, int k) {
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const int64_t at = min(n + r, args.n - 1) * args.row + args.first + k;
      if (k < args.k) {
        words[r] = load_once(args.codes + at * code_bits(kBook) / 8);
        scales[r] = __ldg(args.scales + at / code_block(kBook));
      } else {
        words[r] = make_uint4(0, 0, 0, 0), scales[r] = 0;
      }
    }
  }
};

/// x into shared memory: rows of whole chunks, zeros behind their end and in rows that are not there.
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

/// W warps a block, R rows of w a warp at a time, M rows of x. Blocks stay until all is done: the table is made once.
template <CodeBook kBook, int W, int R, int M>
__global__ void __launch_bounds__(32 * W) coded_linear_kernel(CodedArgs args) {
  using Part = Layout<kBook>;
  extern __shared__ __align__(256) unsigned char shared_bytes[];  // the table, then x
  const int lane = threadIdx.x % 32, step = static_cast<int>(gridDim.x) * W * R;
  int n = (static_cast<int>(blockIdx.x) * W + threadIdx.x / 32) * R;
  Codes<kBook, R> ahead;
  if (n < args.n) ahead.load(args, n, lane * Part::kValues);
  if constexpr (Part::kTable > 0) fill_table<32 * W>(shared_bytes);
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  stage<kBook, M, 32 * W>(args, reinterpret_cast<uint4*>(shared_bytes + Part::kTable));
  __syncthreads();
  const int row_bytes = (args.k + Part::kChunk - 1) / Part::kChunk * Part::kChunk * 2;
  for (; n < args.n; n += step) {
    float sum[M][R] = {};
    for (int k = 0; k < args.k; k += Part::kChunk) {
      const Codes<kBook, R> codes = ahead;
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
            const uint32_t words[4] = {codes.words[r].x, codes.words[r].y, codes.words[r].z, codes.words[r].w};
            add_products<kBook>(shared_bytes, static_cast<uint32_t>(lane) * 4, words + unit * 4 / Part::kUnits, xs, part[m][r]);
          }
        }
#pragma unroll
      for (int m = 0; m < M; ++m)
#pragma unroll
        for (int r = 0; r < R; ++r) sum[m][r] = fmaf(codes.scales[r], part[m][r], sum[m][r]);
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
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(std::min<int64_t>(ceil_div(args.n, W * R), launch.sm_count)));
  config.blockDim = dim3(32 * W);
  config.dynamicSmemBytes = static_cast<size_t>(shared);
  config.stream = launch.stream;
  // The codes and the table do not wait for the op before.
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &overlap;
  config.numAttrs = launch.wgmma ? 1 : 0;
  BLIPFT_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, args));
}

/// As many rows of x at a time as fit the shared memory, and where not even one does, a part of its columns after the other.
template <CodeBook kBook>
void launch_rows(CodedArgs args, int64_t rows, const LaunchContext& launch) {
  constexpr int64_t kChunk = Layout<kBook>::kChunk;
  const int64_t most = (launch.shared_bytes - Layout<kBook>::kTable) / (2 * kChunk) * kChunk;  // numbers of x
  const int64_t whole = args.k;
  const CodedArgs all = args;
  for (int64_t done = 0; done < rows; done += args.rows) {
    args = all;
    args.rows = rows - done > 1 && kMostRows * round_up(whole, kChunk) <= most
                    ? static_cast<int>(std::min<int64_t>(rows - done, kMostRows)) : 1;
    args.x += done * args.x_stride, args.y += done * args.y_stride;
    if (args.residual) args.residual += done * args.residual_stride;
    for (args.first = 0; args.first < whole; args.first += most) {
      args.k = static_cast<int>(std::min(most, whole - args.first));
      if (args.rows == 1) launch_coded<kBook, 32, 1, 1>(args, launch);
      else launch_coded<kBook, 16, 2, kMostRows>(args, launch);
      args.x += args.k, args.bias = nullptr;
      args.residual = args.y, args.residual_stride = args.y_stride;  // the other columns add to it
    }
  }
}

}  // namespace

int64_t CudaOps::coded_rows(DType compute) const { return compute == DType::bf16 ? kFewRows : 0; }

void CudaOps::coded_linear(const CodedLinear& op, Stream stream) {
  check_args(op);
  if (op.y.numel() == 0) return;
  BLIPFT_CHECK(op.x.dtype == DType::bf16, "coded_linear: x has dtype ", dtype_name(op.x.dtype), ", this backend takes bf16");
  BLIPFT_CHECK(all_aligned16(op.x, op.w.codes) && op.x.row_stride % 8 == 0, "coded_linear: x and codes start at multiples of 16 bytes");
  CodedArgs args{};
  args.codes = op.w.codes.as<const uint8_t>(), args.scales = op.w.scales.as<const float>();
  args.x = op.x.as<const bf16>(), args.y = op.y.as<bf16>();
  args.bias = op.bias.as<const bf16>(), args.residual = op.residual.as<const bf16>();
  args.x_stride = op.x.row_stride, args.y_stride = op.y.row_stride, args.residual_stride = op.residual.row_stride;
  args.n = static_cast<int>(op.y.cols()), args.k = static_cast<int>(op.x.cols()), args.row = op.x.cols();
  const LaunchContext launch = context(stream);
  if (op.w.book == CodeBook::nf4) launch_rows<CodeBook::nf4>(args, op.x.rows(), launch);
  else launch_rows<CodeBook::int8>(args, op.x.rows(), launch);
}

}  // namespace blipft
