// Activations: forward, backward fused with the column sums that are a bias gradient, and column sums alone.
#include "cuda/activation.cuh"

#include "cuda/cuda_ops.h"
#include "cuda/elementwise.cuh"
#include "ops_check.h"

namespace blipft {
namespace {

// A block is 8 warps; its 32 lanes cover 32 packs of columns, its warps take turns over the rows of a chunk.
constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kRows = 2;  // rows that a thread loads before it computes

/// Adds the warps' column sums and writes them as this block's row of `partials`.
template <int N>
__device__ __forceinline__ void write_block_sums(const float (&sums)[N], float* __restrict__ partials, int64_t cols) {
  __shared__ float shared[kWarps][32 * N];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int j = 0; j < N; ++j) shared[warp][lane * N + j] = sums[j];
  __syncthreads();
  const int64_t first = int64_t{blockIdx.x} * 32 * N;
  for (int c = threadIdx.x; c < 32 * N; c += kThreads) {
    float total = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) total += shared[w][c];
    if (first + c < cols) partials[int64_t{blockIdx.y} * cols + first + c] = total;
  }
}

/// Mode of the row-chunk kernel below.
enum class Pass { sum_only, relu, gelu, gelu_activated };

/// With an activation: dx *= act'(saved), activated = act(saved). Always (kSums): sums of each column of dx.
template <class T, int N, Pass pass, bool kSums>
__global__ void __launch_bounds__(kThreads, 3)
activation_backward_kernel(T* dx, const T* __restrict__ saved, T* __restrict__ activated, float* __restrict__ partials,
                           int64_t rows, int64_t cols, int64_t chunk_rows) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t column = (int64_t{blockIdx.x} * 32 + lane) * N;
  const int64_t begin = int64_t{blockIdx.y} * chunk_rows;
  const int64_t end = begin + chunk_rows < rows ? begin + chunk_rows : rows;
  float sums[N] = {};
  for (int64_t r = begin + warp; r < end && column < cols; r += kWarps * kRows) {
    Pack<T, N> gradients[kRows], inputs[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int64_t row = r + i * kWarps;
      if (row >= end) continue;
      gradients[i] = load_pack<N>(static_cast<const T*>(dx) + row * cols + column);
      if constexpr (pass != Pass::sum_only) inputs[i] = load_pack<N>(saved + row * cols + column);
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int64_t row = r + i * kWarps;
      if (row >= end) continue;
      float g[N], x[N];
      unpack(gradients[i], g);
      if constexpr (pass != Pass::sum_only) {
        unpack(inputs[i], x);
#pragma unroll
        for (int j = 0; j < N; ++j) {
          if constexpr (pass == Pass::relu) {
            g[j] = x[j] > 0 ? g[j] : 0.0f;
          } else {
            const Gauss normal = gauss<T>(x[j]);
            g[j] *= fmaf(x[j], normal.density, normal.cdf);
            x[j] *= normal.cdf;
          }
        }
        store(dx + row * cols + column, g);
        if constexpr (pass == Pass::gelu_activated) store(activated + row * cols + column, x);
      }
      if constexpr (kSums) {
#pragma unroll
        for (int j = 0; j < N; ++j) sums[j] += g[j];
      }
    }
  }
  if constexpr (kSums) write_block_sums<N>(sums, partials, cols);
}

/// How many chunks of how many rows: enough blocks to fill the GPU, few enough partial sums for the scratch memory.
struct Chunks {
  int64_t rows_each = 0, count = 0;
};

Chunks make_chunks(int64_t rows, int64_t cols, int64_t column_tiles, bool sums, const LaunchContext& context) {
  // Three blocks fit on a multiprocessor: two full waves.
  const int64_t wanted = std::max<int64_t>(1, int64_t{context.sm_count} * 6 / column_tiles);
  int64_t limit = 65535;
  if (sums) limit = std::min(limit, context.scratch_bytes / (cols * 4));
  BLIPFT_CHECK(limit >= 1, "column sums of ", cols, " columns need more than ", context.scratch_bytes,
      " bytes of workspace");
  const int64_t each = round_up(ceil_div(rows, std::min(wanted, limit)), kWarps * kRows);
  return {each, ceil_div(rows, each)};
}

template <Pass pass>
void run_pass(const Tensor& dx, const Tensor& saved, const Tensor& activated, const Tensor& sums, bool accumulate,
              const LaunchContext& context) {
  const int64_t rows = dx.rows(), cols = dx.cols();
  dispatch_float(dx.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    dispatch_bool(static_cast<bool>(sums), [&](auto with_sums) {
      const auto launch = [&](auto width) {
        constexpr int N = decltype(width)::value;
        const int64_t tiles = ceil_div(cols, 32 * N);
        const Chunks chunks = make_chunks(rows, cols, tiles, static_cast<bool>(sums), context);
        const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(chunks.count));
        activation_backward_kernel<T, N, pass, decltype(with_sums)::value><<<grid, kThreads, 0, context.stream>>>(
            dx.as<T>(), saved.as<const T>(), activated.as<T>(), context.scratch, rows, cols, chunks.rows_each);
        BLIPFT_CUDA_LAUNCHED("activation_backward_kernel");
        if (sums) launch_reduce_partials(context.scratch, chunks.count, cols, sums, {}, accumulate, context);
      };
      if (cols % kVector<T> == 0 && all_aligned16(dx, saved, activated))
        launch(std::integral_constant<int, kVector<T>>{});
      else launch(std::integral_constant<int, 1>{});
    });
  });
}

template <class Out>
__device__ __forceinline__ void put(Out* out, int64_t i, float value, bool accumulate) {
  out[i] = from_float<Out>(accumulate ? to_float(out[i]) + value : value);
}

/// 32 columns a block; the warps take turns over the groups.
template <class Out>
__global__ void __launch_bounds__(kThreads)
reduce_partials_kernel(const float* __restrict__ partials, int64_t groups, int64_t cols, Out* __restrict__ out,
                       Out* __restrict__ second, int64_t split, bool accumulate) {
  __shared__ float shared[kWarps][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t column = int64_t{blockIdx.x} * 32 + lane;
  float sum = 0;
  if (column < cols) {
#pragma unroll 8
    for (int64_t g = warp; g < groups; g += kWarps) sum += partials[g * cols + column];
  }
  shared[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= cols) return;
  float total = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) total += shared[w][lane];
  if (column < split) put(out, column, total, accumulate);
  else put(second, column - split, total, accumulate);
}

template <class T>
__global__ void bias_activation_kernel(T* __restrict__ y, const T* __restrict__ bias, int64_t n, int64_t cols,
    bool relu) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += stride) {
    const float v = to_float(y[i]) + (bias ? to_float(bias[i % cols]) : 0.0f);
    y[i] = from_float<T>(relu ? Relu()(v) : v);
  }
}

struct Identity {
  __device__ __forceinline__ float operator()(float x) const { return x; }
};

}  // namespace

void launch_reduce_partials(const float* partials, int64_t groups, int64_t cols, const Tensor& out,
                            const Tensor& second, bool accumulate, const LaunchContext& context) {
  const int64_t split = second ? cols / 2 : cols;
  BLIPFT_CHECK(!second || second.dtype == out.dtype, "both sums must have one dtype, got ", dtype_name(out.dtype),
      " and ",
               dtype_name(second.dtype));
  dispatch_float(out.dtype, [&](auto tag) {
    using Out = typename decltype(tag)::type;
    reduce_partials_kernel<Out><<<static_cast<unsigned>(ceil_div(cols, 32)), kThreads, 0, context.stream>>>(
        partials, groups, cols, out.as<Out>(), second.as<Out>(), split, accumulate);
  });
  BLIPFT_CUDA_LAUNCHED("reduce_partials_kernel");
}

void launch_column_sums(const Tensor& x, const Tensor& out, bool accumulate, const LaunchContext& context) {
  run_pass<Pass::sum_only>(x, {}, {}, out, accumulate, context);
}

void launch_activation_backward(const Tensor& dx, const Tensor& saved, const Tensor& activated, Activation activation,
                                const Tensor& dbias, bool accumulate, const LaunchContext& context) {
  if (activation == Activation::relu) run_pass<Pass::relu>(dx, saved, activated, dbias, accumulate, context);
  else if (activated) run_pass<Pass::gelu_activated>(dx, saved, activated, dbias, accumulate, context);
  else run_pass<Pass::gelu>(dx, saved, activated, dbias, accumulate, context);
}

void launch_bias_activation(const Tensor& y, const Tensor& bias, Activation activation, const LaunchContext& context) {
  const int64_t n = y.numel();
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(ceil_div(n, 256), int64_t{context.sm_count} * 8));
  dispatch_float(y.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    bias_activation_kernel<T><<<blocks, 256, 0, context.stream>>>(y.as<T>(), bias.as<const T>(), n, y.cols(),
                                                                  activation == Activation::relu);
  });
  BLIPFT_CUDA_LAUNCHED("bias_activation_kernel");
}

void launch_activate(const Tensor& x, const Tensor& y, Activation activation, const LaunchContext& context) {
  dispatch_float(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (activation == Activation::gelu) launch_map<T, T>(x, y, Gelu<T>(), context);
    else if (activation == Activation::relu) launch_map<T, T>(x, y, Relu(), context);
    else launch_map<T, T>(x, y, Identity(), context);
  });
}

void CudaOps::activate(const Tensor& x, const Tensor& y, Activation activation, Stream stream) {
  check_activate(x, y, activation);
  launch_activate(x, y, activation, context(stream));
}

}  // namespace blipft
