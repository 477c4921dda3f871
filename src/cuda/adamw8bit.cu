// AdamW with quantized moments in one pass. A thread processes 8 elements, so a warp processes one quantized block and
// a thread block one span of the sums of squares. Each thread block loads the tables of both code books into shared
// memory and therefore processes several spans, but not many, so that concurrent kernels soon get multiprocessors. It
// loads the next span while it computes the current one.
#include "cuda/cuda_ops.h"
#include "cuda/quantize.cuh"
#include "cuda/update.cuh"
#include "ops/ops_check.h"

namespace blipft {
namespace {

constexpr int kWarps = kUpdateThreads / 32;
constexpr int64_t kBlocksOfProcessor = 3;     // each with 34 KiB of tables
constexpr int64_t kMaxSpans = 16;            // per thread block: 320 KiB of bf16 values and quantized moments
using Mean = CodePack<CodeBook::dynamic8>;
using Square = CodePack<CodeBook::dynamic8_unsigned>;
static_assert(32 * kUpdatePack == code_block(CodeBook::dynamic8), "a warp has a block of codes");

/// The value tables in several copies, each used by a few lanes: only lanes of the same copy can have bank conflicts.
struct SharedTables {
  static constexpr int kCopies = 8;
  float mean[256][kCopies], square[256][kCopies];
  uint32_t mean_index[MidpointIndex<6>::kBins], square_index[MidpointIndex<7>::kBins];

  __device__ __forceinline__ void fill() {
    for (int i = threadIdx.x; i < 256 * kCopies; i += kUpdateThreads) {
      mean[i / kCopies][i % kCopies] = kDeviceDynamic8.values[i / kCopies];
      square[i / kCopies][i % kCopies] = kDeviceDynamic8Unsigned.values[i / kCopies];
    }
    for (int i = threadIdx.x; i < MidpointIndex<6>::kBins; i += kUpdateThreads)
      mean_index[i] = kDeviceDynamic8Index.entries[i];
    for (int i = threadIdx.x; i < MidpointIndex<7>::kBins; i += kUpdateThreads)
      square_index[i] = kDeviceDynamic8UnsignedIndex.entries[i];
    __syncthreads();
  }
};

/// The quantized moments in device memory.
struct Moments {
  uint2 *mean, *square;
  float *mean_scales, *square_scales;
  int64_t blocks;
};

/// The data of a span that one thread loads.
template <class Value, class G>
struct Loaded {
  Pack<Value, kUpdatePack> own;
  Pack<G, kUpdatePack> gradients;
  Mean mean;
  Square square;
  float mean_scale, square_scale;

  template <bool kAligned>
  __device__ __forceinline__ void load(const Value* values, const G* grad, const Moments& moments, int64_t span,
                                       int64_t n) {
    const int64_t i = span * kSquaresSpan + threadIdx.x * kUpdatePack;
    with_whole<kAligned>((span + 1) * kSquaresSpan, n, [&](auto is_whole) {
      own = load_some<decltype(is_whole)::value, kUpdatePack>(values, i, n);
      gradients = load_some<decltype(is_whole)::value, kUpdatePack>(grad, i, n);
    });
    const int64_t block = span * kWarps + threadIdx.x / 32;
    const bool exists = block < moments.blocks;
    mean.word = exists ? __ldcs(moments.mean + i / kUpdatePack) : uint2{0, 0};
    square.word = exists ? __ldcs(moments.square + i / kUpdatePack) : uint2{0, 0};
    mean_scale = exists ? moments.mean_scales[block] : 0.0f;
    square_scale = exists ? moments.square_scales[block] : 0.0f;
  }
};

/// Encodes and stores this warp's block. All threads of the warp must call it.
__device__ __forceinline__ void store_moments(const Moments& moments, const SharedTables& tables, int64_t block,
                                              const float (&m)[kUpdatePack], const float (&v)[kUpdatePack]) {
  const float mean_scale = scale_of<32>(m), square_scale = scale_of<32>(v);
  const float mean_factor = code_factor(mean_scale, 1.0f), square_factor = code_factor(square_scale, 1.0f);
  uint32_t mean_values[kUpdatePack], square_values[kUpdatePack];
#pragma unroll
  for (int j = 0; j < kUpdatePack; ++j) {
    mean_values[j] = dynamic8_code(tables.mean_index, m[j] * mean_factor);
    square_values[j] = dynamic8_unsigned_code(tables.square_index, v[j] * square_factor);
  }
  Mean mean;
  Square square;
  mean.set(mean_values);
  square.set(square_values);
  if (block >= moments.blocks) return;
  const int lane = threadIdx.x % 32;
  __stcs(moments.mean + block * 32 + lane, mean.word);
  __stcs(moments.square + block * 32 + lane, square.word);
  if (lane == 0) moments.mean_scales[block] = mean_scale, moments.square_scales[block] = square_scale;
}

template <class P, class G, bool kMaster, bool kAligned, bool kStochastic>
__global__ void __launch_bounds__(kUpdateThreads, 3)
adamw8bit_kernel(P* __restrict__ param, float* __restrict__ master, const G* __restrict__ grad, Moments moments,
                 const float* __restrict__ scalars, float* __restrict__ squares, int64_t n, int64_t spans_of_block,
                 AdamWNumbers args, Rounding rounding) {
  constexpr int N = kUpdatePack;
  __shared__ SharedTables tables;
  __shared__ float warps[2][kWarps];
  tables.fill();
  auto* const values = values_of<kMaster>(param, master);
  using Value = std::remove_reference_t<decltype(*values)>;
  const AdamWStep<sizeof(P) == 2 && !kMaster> adamw(args, scalars);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, copy = lane % SharedTables::kCopies;
  const int64_t first = blockIdx.x * spans_of_block;
  const int64_t end = min(first + spans_of_block, (n + kSquaresSpan - 1) / kSquaresSpan);
  Loaded<Value, G> next;
  next.template load<kAligned>(values, grad, moments, first, n);
  if (is_skipped(scalars)) return;
  int turn = 0;
  for (int64_t span = first; span < end; ++span, turn ^= 1) {
    const Loaded<Value, G> now = next;
    if (span + 1 < end) next.template load<kAligned>(values, grad, moments, span + 1, n);
    float p[N], g[N], m[N], v[N];
    unpack(now.own, p);
    unpack(now.gradients, g);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      m[j] = tables.mean[now.mean.code(j)][copy] * now.mean_scale;
      v[j] = tables.square[now.square.code(j)][copy] * now.square_scale;
    }
    if (squares) {
      const float sum = warp_sum(squares_of(g));
      if (lane == 0) warps[turn][warp] = sum;
    }
#pragma unroll
    for (int j = 0; j < N; ++j) adamw(p[j], g[j], m[j], v[j]);
    const int64_t i = span * kSquaresSpan + threadIdx.x * N;
    with_whole<kAligned>((span + 1) * kSquaresSpan, n, [&](auto is_whole) {
      store_param<decltype(is_whole)::value, kMaster, kStochastic>(param, master, i, n, p, rounding, scalars);
    });
    store_moments(moments, tables, span * kWarps + warp, m, v);
    if (!squares) continue;
    __syncthreads();                          // once a span: `warps` of the preceding turn has been read
    if (threadIdx.x == 0) {
      float sum = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) sum += warps[turn][w];
      squares[span] = sum;
    }
  }
}

}  // namespace

void CudaOps::adamw8bit_update(const AdamW8bitUpdate& args, Stream stream) {
  check_args(args);
  const int64_t n = args.param.numel();
  if (n == 0) return;
  BLIPFT_CHECK(all_aligned16(args.m.quantized, args.v.quantized), "codes must be 16-byte aligned");
  const LaunchContext launch = context(stream);
  const Moments moments{args.m.quantized.as<uint2>(), args.v.quantized.as<uint2>(), args.m.scales.as<float>(),
                        args.v.scales.as<float>(), args.m.scales.numel()};
  const int64_t spans = squares_count(n);
  const int64_t spans_of_block = std::clamp(spans / (kBlocksOfProcessor * launch.sm_count), int64_t{1}, kMaxSpans);
  const bool aligned = all_aligned16(args.param, args.master, args.grad);
  dispatch_update(args, aligned, [&](auto p, auto g, auto has_master, auto is_aligned, auto is_stochastic) {
    using P = typename decltype(p)::type;
    using G = typename decltype(g)::type;
    adamw8bit_kernel<P, G, decltype(has_master)::value, decltype(is_aligned)::value, decltype(is_stochastic)::value>
        <<<static_cast<unsigned>(ceil_div(spans, spans_of_block)), kUpdateThreads, 0, launch.stream>>>(
            args.param.as<P>(), args.master.as<float>(), args.grad.as<const G>(), moments,
            args.scalars.as<const float>(), args.squares.as<float>(), n, spans_of_block,
            AdamWNumbers{args.beta1, args.beta2, args.eps, args.weight_decay}, args.rounding);
  });
  BLIPFT_CUDA_LAUNCHED("adamw8bit_kernel");
}

}  // namespace blipft
