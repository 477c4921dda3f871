// Input rows of the language model and their gradients. Scatter-adds into the tables use no atomics: one block owns one
// table row (identified by its first occurrence) and adds its gradients in the order of the batch. For packed samples
// only tokens with a row in x count, but grids cover all tokens because the samples' lengths are in device memory.
#include "cuda/cuda_ops.h"
#include "cuda/device/overlap.cuh"
#include "cuda/vector.cuh"
#include "ops/bf16.h"
#include "ops/ops_check.h"

namespace blipft {
namespace {

struct TextArgs {
  const int32_t *ids = nullptr, *lengths = nullptr;
  int64_t samples = 0, text = 0, prefix = 0, cols = 0, padding_id = -1;
  const int32_t *starts = nullptr, *padded_rows = nullptr;   ///< packed samples only
  const int32_t* row_positions = nullptr;                    ///< forward only: positions of rows in their texts
  float token_scale = 1;                                     ///< rounded to the compute dtype
  const int32_t *prefix_of_row = nullptr, *row_of_prefix = nullptr;  ///< prefix rows anywhere only

  /// Returns the first row of a sample in x.
  template <bool kPacked>
  __device__ __forceinline__ int64_t first_row(int64_t sample) const {
    return kPacked ? starts[sample] : sample * (prefix + text);
  }
};

/// Returns the position row of row t of a sample: OPT starts at 2; padding uses row 1.
__device__ __forceinline__ int64_t position_of(const TextArgs& args, int64_t sample, int64_t t) {
  if (args.row_positions) return args.row_positions[sample] >= 0 ? args.row_positions[sample] + 2 : 1;
  return t < args.prefix + args.lengths[sample] ? t + 2 : 1;
}

/// One block per row of x.
template <class T, int N>
__global__ void text_embed_kernel(const T* __restrict__ prefix, const T* __restrict__ tokens,
                                  const T* __restrict__ positions, T* __restrict__ x, TextArgs args) {
  join_chain();
  const int64_t row = args.padded_rows ? args.padded_rows[blockIdx.x] : blockIdx.x, rows = args.prefix + args.text;
  const int64_t sample = row / rows, t = row % rows;
  const int64_t picture = args.prefix_of_row ? args.prefix_of_row[blockIdx.x] : t < args.prefix ? sample * args.prefix + t : -1;
  const T* from = picture >= 0 ? prefix + picture * args.cols
                               : tokens + args.ids[sample * args.text + t - args.prefix] * args.cols;
  const T* position = positions ? positions + position_of(args, sample, t) * args.cols : nullptr;
  for (int64_t c = int64_t{threadIdx.x} * N; c < args.cols; c += int64_t{blockDim.x} * N) {
    float v[N];
    load(from + c, v);
    if (args.token_scale != 1 && picture < 0) {
#pragma unroll
      for (int j = 0; j < N; ++j) v[j] = to_float(from_float<T>(v[j] * args.token_scale));
    }
    if (position) {
      float p[N];
      load(position + c, p);
#pragma unroll
      for (int j = 0; j < N; ++j) v[j] += p[j];
    }
    store(x + blockIdx.x * args.cols + c, v);
  }
}

constexpr int kThreads = 256;

template <class Out, int N>
__device__ __forceinline__ void add_to_table(Out* row, float (&sums)[N]) {
  float old[N];
  load(static_cast<const Out*>(row), old);
#pragma unroll
  for (int j = 0; j < N; ++j) sums[j] += old[j];
  store(row, sums);
}

/// True if text token `i` of the batch has a row in x; kScattered: one in which no row of a picture stands.
template <bool kPacked, bool kScattered = false>
__device__ __forceinline__ bool has_row(const TextArgs& args, int64_t i) {
  if constexpr (!kPacked && !kScattered) return true;
  const int64_t sample = divided(i, args.text);
  const int64_t row = args.first_row<kPacked>(sample) + args.prefix + i - sample * args.text;
  if constexpr (!kScattered) return row < args.starts[sample + 1];
  else return (!kPacked || row < args.starts[sample + 1]) && args.prefix_of_row[row] < 0;
}

/// blockIdx.x is a text token of the batch, blockIdx.y a tile of columns. The block of an id's first occurrence with a
/// row in x adds all rows of that id in order; the other blocks exit.
template <class T, class Out, int N, bool kPacked, bool kScattered>
__device__ __forceinline__ void add_token_gradients(const T* __restrict__ x, Out* __restrict__ tokens, const TextArgs& args) {
  __shared__ uint32_t matches[kThreads / 32];
  const int64_t own = blockIdx.x, count = args.samples * args.text;
  const int32_t id = args.ids[own];
  if (id == args.padding_id || !has_row<kPacked, kScattered>(args, own)) return;
  constexpr int64_t kScanned = 16 * kThreads;  // ids between two checks for an earlier occurrence, which is often near
  for (int64_t base = 0; base < own; base += kScanned) {
    const int64_t end = base + kScanned < own ? base + kScanned : own;
    bool earlier = false;
#pragma unroll 4
    for (int64_t i = base + threadIdx.x; i < end; i += kThreads)
      earlier |= (args.ids[i] == id) & has_row<kPacked, kScattered>(args, i);  // no branch: the loads of four rounds overlap
    if (__syncthreads_or(earlier)) return;
  }

  const int64_t column = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * N;
  float sums[N] = {};
  for (int64_t base = own; base < count; base += kThreads) {
    const int64_t i = base + threadIdx.x;
    const uint32_t found = __ballot_sync(0xffffffffu, i < count && args.ids[i] == id && has_row<kPacked, kScattered>(args, i));
    __syncthreads();  // all threads have read the matches of the preceding iteration
    if (threadIdx.x % 32 == 0) matches[threadIdx.x / 32] = found;
    __syncthreads();
    if (column >= args.cols) continue;
    for (int w = 0; w < kThreads / 32; ++w) {
      for (uint32_t bits = matches[w]; bits != 0; bits &= bits - 1) {
        const int64_t token = base + w * 32 + __ffs(static_cast<int>(bits)) - 1;
        const int64_t sample = token / args.text, t = token % args.text;
        float v[N];
        load(x + (args.first_row<kPacked>(sample) + args.prefix + t) * args.cols + column, v);
#pragma unroll
        for (int j = 0; j < N; ++j) sums[j] += v[j];
      }
    }
  }
  if (column >= args.cols) return;
  if (args.token_scale != 1) {
#pragma unroll
    for (int j = 0; j < N; ++j) sums[j] *= args.token_scale;
  }
  add_to_table(tokens + id * args.cols + column, sums);
}

template <class T, class Out, int N, bool kPacked>
__global__ void __launch_bounds__(kThreads)
token_gradient_kernel(const T* __restrict__ x, Out* __restrict__ tokens, TextArgs args) {
  add_token_gradients<T, Out, N, kPacked, false>(x, tokens, args);
}

template <class T, class Out, int N, bool kPacked>
__global__ void __launch_bounds__(kThreads)
scattered_token_gradient_kernel(const T* __restrict__ x, Out* __restrict__ tokens, TextArgs args) {
  add_token_gradients<T, Out, N, kPacked, true>(x, tokens, args);
}

constexpr int kPositionWarps = 16;
constexpr int kPadLoads = 8;  // rows that a thread loads before it adds them

/// blockIdx.x is position row 1 + blockIdx.x, blockIdx.y a tile of 32 packs of columns. The warps process the rows with
/// this position in turn, and their sums are added in order. Row 1 belongs to all padding and has many more rows than
/// the others: there a warp tests 32 tokens at once for padding and loads the rows that it finds together.
template <class T, class Out, int N, bool kPacked>
__global__ void __launch_bounds__(32 * kPositionWarps, 3)
position_gradient_kernel(const T* __restrict__ x, Out* __restrict__ positions, TextArgs args) {
  __shared__ float shared[kPositionWarps][32 * N];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t position = 1 + int64_t{blockIdx.x};
  const int64_t column = (int64_t{blockIdx.y} * 32 + lane) * N;
  float sums[N] = {};
  if (position >= 2) {
    const int64_t t = position - 2;
#pragma unroll 4
    for (int64_t sample = warp; sample < args.samples; sample += kPositionWarps) {
      if (t >= args.prefix + args.lengths[sample] || column >= args.cols) continue;
      float v[N];
      load(x + (args.first_row<kPacked>(sample) + t) * args.cols + column, v);
#pragma unroll
      for (int j = 0; j < N; ++j) sums[j] += v[j];
    }
  } else {
    const int64_t count = args.samples * args.text;
    for (int64_t base = warp * 32; base < count; base += 32 * kPositionWarps) {
      const int64_t token = base + lane;
      const bool padded = token < count && token % args.text >= args.lengths[token / args.text] &&
                          has_row<kPacked>(args, token);
      uint32_t padding = __ballot_sync(0xffffffffu, padded);
      while (padding != 0) {
        Pack<T, N> loaded[kPadLoads];
        const int found = min(__popc(padding), kPadLoads);
#pragma unroll
        for (int u = 0; u < kPadLoads; ++u, padding &= padding - 1) {
          if (u >= found || column >= args.cols) continue;
          const int64_t own = base + __ffs(static_cast<int>(padding)) - 1, sample = own / args.text;
          // This sample and all samples before it have a prefix.
          const int64_t row = kPacked ? args.starts[sample] + args.prefix + own - sample * args.text
                                      : own + (sample + 1) * args.prefix;
          loaded[u] = load_pack<N>(x + row * args.cols + column);
        }
#pragma unroll
        for (int u = 0; u < kPadLoads; ++u) {
          if (u >= found || column >= args.cols) continue;
          float v[N];
          unpack(loaded[u], v);
#pragma unroll
          for (int j = 0; j < N; ++j) sums[j] += v[j];
        }
      }
    }
  }
#pragma unroll
  for (int j = 0; j < N; ++j) shared[warp][lane * N + j] = sums[j];
  __syncthreads();
  if (warp != 0 || column >= args.cols) return;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    sums[j] = 0;
#pragma unroll
    for (int w = 0; w < kPositionWarps; ++w) sums[j] += shared[w][lane * N + j];
  }
  add_to_table(positions + position * args.cols + column, sums);
}

/// Copies the prefix rows out of x; those that stand nowhere become 0. One block per row.
template <class T, int N>
__global__ void prefix_gradient_kernel(const T* __restrict__ x, T* __restrict__ prefix, TextArgs args) {
  int64_t row;
  if (args.row_of_prefix) {
    row = args.row_of_prefix[blockIdx.x];
  } else {
    const int64_t sample = blockIdx.x / args.prefix, t = blockIdx.x % args.prefix;
    row = (args.starts ? args.starts[sample] : sample * (args.prefix + args.text)) + t;
  }
  const T* from = x + row * args.cols;
  for (int64_t c = int64_t{threadIdx.x} * N; c < args.cols; c += int64_t{blockDim.x} * N)
    *reinterpret_cast<Pack<T, N>*>(prefix + blockIdx.x * args.cols + c) = row >= 0 ? load_pack<N>(from + c) : Pack<T, N>{};
}

TextArgs kernel_args(const TextEmbed& args) {
  return {.ids = args.ids.as<const int32_t>(), .lengths = args.lengths.as<const int32_t>(), .samples = args.ids.rows(),
          .text = args.ids.cols(), .prefix = args.prefix_rows, .cols = args.x.cols(), .padding_id = args.padding_id,
          .starts = args.packing.starts.as<const int32_t>(),
          .padded_rows = args.packing.padded_rows.as<const int32_t>(),
          .row_positions = args.row_positions.as<const int32_t>(),
          .token_scale = args.x.dtype == DType::bf16 ? bf16_to_float(float_to_bf16(args.token_scale)) : args.token_scale,
          .prefix_of_row = args.prefix_of_row.as<const int32_t>(), .row_of_prefix = args.row_of_prefix.as<const int32_t>()};
}

unsigned row_threads(int64_t cols, int width) {
  return static_cast<unsigned>(std::min<int64_t>(256, round_up(ceil_div(cols, width), 32)));
}

void launch_prefix_gradient(const TextEmbed& args, const LaunchContext& launch) {
  if (args.prefix.numel() == 0) return;
  const TextArgs text = kernel_args(args);
  dispatch_float(args.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto run = [&](auto width) {
      constexpr int N = decltype(width)::value;
      prefix_gradient_kernel<T, N><<<static_cast<unsigned>(args.prefix.rows()), row_threads(text.cols, N), 0,
          launch.stream>>>(
          args.x.as<const T>(), args.prefix.as<T>(), text);
    };
    if (text.cols % kVector<T> == 0 && all_aligned16(args.x, args.prefix))
      run(std::integral_constant<int, kVector<T>>{});
    else run(std::integral_constant<int, 1>{});
  });
  BLIPFT_CUDA_LAUNCHED("prefix_gradient_kernel");
}

/// Calls `run` with the type of x, the type of the table, and a pack width of 4 or 1.
template <class Run>
void with_table(const Tensor& x, const Tensor& table, Run&& run) {
  dispatch_float(x.dtype, [&](auto tag) {
    dispatch_float(table.dtype, [&](auto out_tag) {
      if (x.cols() % 4 == 0 && all_aligned16(x, table)) run(tag, out_tag, std::integral_constant<int, 4>{});
      else run(tag, out_tag, std::integral_constant<int, 1>{});
    });
  });
}

void clear(const Tensor& table, cudaStream_t stream) {
  BLIPFT_CUDA_CHECK(cudaMemsetAsync(table.data, 0, static_cast<size_t>(table.bytes()), stream));
}

}  // namespace

void CudaOps::text_embed_forward(const TextEmbed& args, Stream stream) {
  check_args(args);
  if (args.x.numel() == 0) return;
  const LaunchContext launch = context(stream);
  const TextArgs text = kernel_args(args);
  dispatch_float(args.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto run = [&](auto width) {
      constexpr int N = decltype(width)::value;
      launch_overlapped(text_embed_kernel<T, N>, blocks_of(args.x.rows()), row_threads(text.cols, N), 0, launch,
                        args.prefix.as<const T>(), args.tokens.as<const T>(), args.positions.as<const T>(), args.x.as<T>(), text);
    };
    if (text.cols % kVector<T> == 0 && all_aligned16(args.prefix, args.tokens, args.positions, args.x))
      run(std::integral_constant<int, kVector<T>>{});
    else run(std::integral_constant<int, 1>{});
  });
  BLIPFT_CUDA_LAUNCHED("text_embed_kernel");
}

void CudaOps::text_embed_backward(const TextEmbed& args, Stream stream) {
  check_backward_args(args);
  const LaunchContext launch = context(stream);
  const TextArgs text = kernel_args(args);
  if (args.prefix) launch_prefix_gradient(args, launch);
  if (args.tokens) {
    if (!args.accumulate_tokens) clear(args.tokens, launch.stream);
    const int64_t count = text.samples * text.text;
    with_table(args.x, args.tokens, [&](auto tag, auto out_tag, auto width) {
      using T = typename decltype(tag)::type;
      using Out = typename decltype(out_tag)::type;
      constexpr int N = decltype(width)::value;
      const dim3 grid(static_cast<unsigned>(count), static_cast<unsigned>(ceil_div(text.cols, kThreads * N)));
      if (count == 0) return;
      dispatch_bool(static_cast<bool>(args.packing), [&](auto packed) {
        constexpr bool kPacked = decltype(packed)::value;
        const auto kernel = args.prefix_of_row ? scattered_token_gradient_kernel<T, Out, N, kPacked>
                                               : token_gradient_kernel<T, Out, N, kPacked>;
        kernel<<<grid, kThreads, 0, launch.stream>>>(args.x.as<const T>(), args.tokens.as<Out>(), text);
      });
      BLIPFT_CUDA_LAUNCHED("token_gradient_kernel");
    });
  }
  if (args.positions) {
    if (!args.accumulate_positions) clear(args.positions, launch.stream);
    with_table(args.x, args.positions, [&](auto tag, auto out_tag, auto width) {
      using T = typename decltype(tag)::type;
      using Out = typename decltype(out_tag)::type;
      constexpr int N = decltype(width)::value;
      // Row 1 for padding, then one row for each position.
      const dim3 grid(static_cast<unsigned>(1 + text.prefix + text.text),
                      static_cast<unsigned>(ceil_div(text.cols, 32 * N)));
      dispatch_bool(static_cast<bool>(args.packing), [&](auto packed) {
        position_gradient_kernel<T, Out, N, decltype(packed)::value><<<grid, 32 * kPositionWarps, 0, launch.stream>>>(
            args.x.as<const T>(), args.positions.as<Out>(), text);
      });
      BLIPFT_CUDA_LAUNCHED("position_gradient_kernel");
    });
  }
}

}  // namespace blipft
