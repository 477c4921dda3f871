// Activations: forward, backward fused with the column sums of a bias gradient, and column sums alone.
#include "cuda/activation.cuh"

#include "cuda/cuda_ops.h"
#include "cuda/elementwise.cuh"
#include "cuda/gemm/largest.cuh"
#include "ops/ops_check.h"

namespace blipft {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kLanes = 16;                   // threads per row: a stripe is 16 packs wide, 256 bytes of a row
constexpr int kRowLanes = kThreads / kLanes;  // rows that a block processes at a time

/// Output of the column sums. Stripe s, chunk of rows g: partials[(s * gridDim.y + g) * stripe + column].
template <class Out>
struct SumArgs {
  float* partials = nullptr;
  unsigned* counters = nullptr;              ///< one for each stripe
  Out* out = nullptr;
  bool accumulate = false;
};

template <class Out>
__device__ __forceinline__ void put(Out* out, int64_t i, float value, bool accumulate) {
  out[i] = from_float<Out>(accumulate ? to_float(out[i]) + value : value);
}

/// Adds the block's column sums. The last block of a stripe to finish adds the sums of all its blocks in a fixed order,
/// so the result does not depend on which block is last.
template <int N, class Out>
__device__ __forceinline__ void finish_sums(float (&sums)[N], const SumArgs<Out>& args, int64_t cols) {
  constexpr int kStripe = kLanes * N, kQuads = kStripe / 4, kGroups = kThreads / kQuads;
  __shared__ __align__(16) float shared[kGroups > kWarps ? kGroups : kWarps][kStripe];
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
#pragma unroll
  for (int j = 0; j < N; ++j) sums[j] += __shfl_xor_sync(0xffffffffu, sums[j], 16);  // the warp's other row
  if (lane < kLanes) {
#pragma unroll
    for (int j = 0; j < N; ++j) shared[warp][lane * N + j] = sums[j];
  }
  __syncthreads();
  const int64_t column = int64_t{blockIdx.x} * kStripe + thread;
  const bool owner = thread < kStripe && column < cols;
  float total = 0;
  if (thread < kStripe) {
#pragma unroll
    for (int w = 0; w < kWarps; ++w) total += shared[w][thread];
  }
  const int chunks = static_cast<int>(gridDim.y);
  if (chunks == 1) {
    if (owner) put(args.out, column, total, args.accumulate);
    return;
  }
  float* stripe = args.partials + int64_t{blockIdx.x} * chunks * kStripe;
  if (thread < kStripe) stripe[blockIdx.y * kStripe + thread] = total;
  if (!last_block(args.counters + blockIdx.x, gridDim.y)) return;

  const int quad = thread % kQuads, group = thread / kQuads;
  float4 sum{0, 0, 0, 0};
#pragma unroll 8
  for (int g = group; g < chunks; g += kGroups) {  // loads bypass the L1, which is not coherent
    const float4 part = __ldcg(reinterpret_cast<const float4*>(stripe + g * kStripe) + quad);
    sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
  }
  *reinterpret_cast<float4*>(&shared[group][quad * 4]) = sum;
  __syncthreads();
  if (!owner) return;
  total = 0;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) total += shared[g][thread];
  put(args.out, column, total, args.accumulate);
}

/// The element-wise operation of the kernel below before it sums columns.
enum class Pass { sum_only, relu, relu_signs, gelu, gelu_activated, gelu_tanh, gelu_tanh_activated };

/// Blocks that fit into the registers of a multiprocessor.
template <Pass pass>
constexpr int kResident = pass == Pass::sum_only ? 4 : 3;

/// Rows that a thread loads before it computes.
template <Pass pass>
constexpr int kRowsAhead = pass == Pass::sum_only ? 4 : 3;

/// Element type of `saved`: the activation's input or output, or bytes of eight signs.
template <class T, Pass pass>
using Saved = std::conditional_t<pass == Pass::relu_signs, uint8_t, T>;

/// Loads N elements of `saved` from element `at` (a multiple of N) on; signs are returned in the low bits.
template <int N, class T>
__device__ __forceinline__ Pack<T, N> load_saved(const T* saved, int64_t at) {
  return load_pack<N>(saved + at);
}
template <int N>
__device__ __forceinline__ unsigned load_saved(const uint8_t* signs, int64_t at) {
  return unsigned{signs[at / 8]} >> at % 8;
}

/// With an activation: dx *= act'(saved), activated = act(saved), and `amax` (optional) is raised to the largest |dx|.
/// With kSums: computes the sums of each column of dx. Rows of dx, saved and activated start `row_stride` elements
/// apart; signs are contiguous.
template <class T, class Out, int N, Pass pass, bool kSums>
__global__ void __launch_bounds__(kThreads, kResident<pass>)
activation_backward_kernel(T* dx, const Saved<T, pass>* __restrict__ saved, T* __restrict__ activated, int64_t rows,
                           int64_t cols, int64_t row_stride, int64_t chunk_rows, SumArgs<Out> args, unsigned* amax) {
  const int64_t column = (int64_t{blockIdx.x} * kLanes + threadIdx.x % kLanes) * N;
  const int64_t begin = int64_t{blockIdx.y} * chunk_rows + threadIdx.x / kLanes;
  const int64_t end = min(int64_t{blockIdx.y + 1} * chunk_rows, rows);
  constexpr int kRows = kRowsAhead<pass>;
  const int64_t step = kRowLanes * row_stride;  // elements between a thread's rows
  int64_t at = begin * row_stride + column;
  float sums[N] = {};
  unsigned maximum = 0;
  for (int left = column < cols ? static_cast<int>(end - begin) : 0; left > 0; left -= kRowLanes * kRows) {
    Pack<T, N> gradients[kRows];
    decltype(load_saved<N>(saved, at)) inputs[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (i * kRowLanes >= left) continue;
      gradients[i] = load_pack<N>(static_cast<const T*>(dx) + at + i * step);
      if constexpr (pass != Pass::sum_only) inputs[i] = load_saved<N>(saved, at + i * step);
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i, at += step) {
      if (i * kRowLanes >= left) continue;
      float g[N], x[N];
      unpack(gradients[i], g);
      if constexpr (pass != Pass::sum_only) {
        if constexpr (pass != Pass::relu_signs) unpack(inputs[i], x);
#pragma unroll
        for (int j = 0; j < N; ++j) {
          if constexpr (pass == Pass::relu_signs) {
            g[j] = inputs[i] >> j & 1 ? g[j] : 0.0f;
          } else if constexpr (pass == Pass::relu) {
            g[j] = x[j] > 0 ? g[j] : 0.0f;
          } else if constexpr (pass == Pass::gelu_tanh || pass == Pass::gelu_tanh_activated) {
            const SlopedValue gelu = gelu_tanh(x[j]);
            g[j] *= gelu.slope;
            x[j] = gelu.value;
          } else {
            const Gauss normal = gauss<T>(x[j]);
            g[j] *= fmaf(x[j], normal.density, normal.cdf);
            x[j] *= normal.cdf;
          }
        }
        const Pack<T, N> stored = packed<T>(g);
        *reinterpret_cast<Pack<T, N>*>(dx + at) = stored;
        if (amax) maximum = larger(maximum, stored);
        if constexpr (pass == Pass::gelu_activated || pass == Pass::gelu_tanh_activated) store(activated + at, x);
      }
      if constexpr (kSums) {
#pragma unroll
        for (int j = 0; j < N; ++j) sums[j] += g[j];
      }
    }
  }
  if constexpr (pass != Pass::sum_only)
    if (amax) raise_by_block(maximum, amax);
  if constexpr (kSums) finish_sums<N>(sums, args, cols);
}

/// Partition of the rows into chunks.
struct Chunks {
  int64_t rows_each = 0, count = 0;
};

/// Returns enough chunks to fill the GPU once; with sums, limited by the counters and the scratch memory.
Chunks make_chunks(int64_t rows, int64_t stripes, int64_t stripe, int resident, bool sums,
                   const LaunchContext& context) {
  int64_t count = std::clamp<int64_t>(int64_t{context.sm_count} * resident / stripes, 1, 65535);
  if (sums) {
    BLIPFT_CHECK(context.scratch, "set_workspace() comes before column sums");
    if (stripes > kCounters) count = 1;
    count = std::clamp<int64_t>(count, 1, std::max<int64_t>(1, context.scratch_bytes / (stripes * stripe * 4)));
  }
  const int64_t each = std::max<int64_t>(kRowLanes, round_up(ceil_div(rows, count), kRowLanes));
  return {each, std::max<int64_t>(1, ceil_div(rows, each))};
}

template <class T, class Out, Pass pass, bool kSums>
void launch_pass(const MatrixView& dx, const Tensor& saved, const Tensor& activated, const Tensor& sums,
                 bool accumulate, const Tensor& amax, const LaunchContext& context) {
  const int64_t rows = dx.rows(), cols = dx.cols();
  const auto launch = [&](auto width) {
    constexpr int N = decltype(width)::value;
    const int64_t stripes = ceil_div(cols, kLanes * N);
    const Chunks chunks = make_chunks(rows, stripes, kLanes * N, kResident<pass>, kSums, context);
    const dim3 grid(static_cast<unsigned>(stripes), static_cast<unsigned>(chunks.count));
    activation_backward_kernel<T, Out, N, pass, kSums><<<grid, kThreads, 0, context.stream>>>(
        dx.as<T>(), saved.as<const Saved<T, pass>>(), activated.as<T>(), rows, cols, dx.row_stride, chunks.rows_each,
        SumArgs<Out>{context.scratch, context.counters, sums.as<Out>(), accumulate}, amax.as<unsigned>());
    BLIPFT_CUDA_LAUNCHED("activation_backward_kernel");
  };
  const bool packs =
      cols % kVector<T> == 0 && dx.row_stride % kVector<T> == 0 && all_aligned16(dx, saved, activated);
  if (packs) launch(std::integral_constant<int, kVector<T>>{});
  else launch(std::integral_constant<int, 1>{});
}

template <Pass pass>
void run_pass(const MatrixView& dx, const Tensor& saved, const Tensor& activated, const Tensor& sums, bool accumulate,
              const Tensor& amax, const LaunchContext& context) {
  dispatch_float(dx.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (sums) {
      dispatch_float(sums.dtype, [&](auto out) {
        launch_pass<T, typename decltype(out)::type, pass, true>(dx, saved, activated, sums, accumulate, amax, context);
      });
    } else if constexpr (pass != Pass::sum_only) {
      launch_pass<T, T, pass, false>(dx, saved, activated, sums, accumulate, amax, context);
    }
  });
}

constexpr int kReduceWarps = 16;
constexpr int kReduceLoads = 8;  // partial sums that a thread loads before it adds them

/// Each block reduces 32 columns; its warps process the groups in turn.
__global__ void __launch_bounds__(32 * kReduceWarps) reduce_partials_kernel(const __grid_constant__ PartialSums sums) {
  __shared__ float shared[kReduceWarps][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, groups = static_cast<int>(sums.groups);
  const int64_t width = sums.count * sums.cols, column = int64_t{blockIdx.x} * 32 + lane;
  const bool inside = column < width;
  const int which = column < sums.cols ? 0 : column < 2 * sums.cols ? 1 : 2;
  const PartialSums::Output& output = sums.outputs[which];
  auto* f32 = static_cast<float*>(output.data) + (column - which * sums.cols);
  auto* half = static_cast<bf16*>(output.data) + (column - which * sums.cols);
  float total = 0;
  if (warp == 0 && inside && output.accumulate) total = output.f32 ? *f32 : to_float(*half);
  float sum = 0;
  for (int base = warp; base < groups; base += kReduceWarps * kReduceLoads) {
    float loaded[kReduceLoads];
#pragma unroll
    for (int u = 0; u < kReduceLoads; ++u) {
      const int g = base + u * kReduceWarps;
      loaded[u] = inside && g < groups ? sums.partials[g * width + column] : 0.0f;
    }
#pragma unroll
    for (int u = 0; u < kReduceLoads; ++u) sum += loaded[u];
  }
  shared[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || !inside) return;
  sum = 0;
#pragma unroll
  for (int w = 0; w < kReduceWarps; ++w) sum += shared[w][lane];
  if (output.f32) *f32 = total + sum;
  else *half = from_float<bf16>(total + sum);
}

template <class T>
__global__ void bias_activation_kernel(T* __restrict__ y, const T* __restrict__ bias, int64_t n, int64_t cols,
                                       int64_t row_stride, bool relu) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += stride) {
    const int64_t row = i / cols, column = i - row * cols;
    T* at = y + row * row_stride + column;
    const float v = to_float(*at) + (bias ? to_float(bias[column]) : 0.0f);
    *at = from_float<T>(relu ? Relu()(v) : v);
  }
}

/// Each thread packs the signs of eight elements into one byte, kUnroll times.
template <class T, bool kPacks>
__global__ void __launch_bounds__(256)
pack_signs_kernel(const T* __restrict__ x, uint8_t* __restrict__ signs, int64_t n, int64_t bytes) {
  constexpr int kUnroll = 4;  // independent loads in flight per thread
  const int64_t first = int64_t{blockIdx.x} * kUnroll * blockDim.x + threadIdx.x;
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t byte = first + int64_t{u} * blockDim.x;
    if (byte >= bytes) continue;
    float values[8] = {};
    if (kPacks && 8 * byte + 8 <= n) {
      constexpr int N = kVector<T>;
#pragma unroll
      for (int part = 0; part < 8; part += N) {
        float loaded[N];
        load(x + 8 * byte + part, loaded);
#pragma unroll
        for (int j = 0; j < N; ++j) values[part + j] = loaded[j];
      }
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j) values[j] = 8 * byte + j < n ? to_float(x[8 * byte + j]) : 0.0f;
    }
    unsigned bits = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) bits |= (values[j] > 0 ? 1u : 0u) << j;
    signs[byte] = static_cast<uint8_t>(bits);
  }
}

struct Identity {
  __device__ __forceinline__ float operator()(float x) const { return x; }
};

}  // namespace

void launch_reduce_partials(const PartialSums& sums, const LaunchContext& context) {
  const int64_t blocks = ceil_div(sums.count * sums.cols, 32);
  reduce_partials_kernel<<<static_cast<unsigned>(blocks), 32 * kReduceWarps, 0, context.stream>>>(sums);
  BLIPFT_CUDA_LAUNCHED("reduce_partials_kernel");
}

void launch_column_sums(const MatrixView& x, const Tensor& out, bool accumulate, const LaunchContext& context) {
  run_pass<Pass::sum_only>(x, {}, {}, out, accumulate, {}, context);
}

void launch_activation_backward(const Tensor& dx, const Tensor& saved, const Tensor& activated, Activation activation,
                                const Tensor& dbias, bool accumulate, const Tensor& amax, const LaunchContext& context) {
  if (activation == Activation::relu && saved.dtype == DType::u8)
    run_pass<Pass::relu_signs>(dx, saved, activated, dbias, accumulate, amax, context);
  else if (activation == Activation::relu) run_pass<Pass::relu>(dx, saved, activated, dbias, accumulate, amax, context);
  else if (activation == Activation::gelu_tanh && activated)
    run_pass<Pass::gelu_tanh_activated>(dx, saved, activated, dbias, accumulate, amax, context);
  else if (activation == Activation::gelu_tanh)
    run_pass<Pass::gelu_tanh>(dx, saved, activated, dbias, accumulate, amax, context);
  else if (activated) run_pass<Pass::gelu_activated>(dx, saved, activated, dbias, accumulate, amax, context);
  else run_pass<Pass::gelu>(dx, saved, activated, dbias, accumulate, amax, context);
}

void launch_bias_activation(const MatrixView& y, const Tensor& bias, Activation activation,
                            const LaunchContext& context) {
  const int64_t n = y.numel();
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(ceil_div(n, 256), int64_t{context.sm_count} * 8));
  dispatch_float(y.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    bias_activation_kernel<T><<<blocks, 256, 0, context.stream>>>(y.as<T>(), bias.as<const T>(), n, y.cols(),
                                                                  y.row_stride, activation == Activation::relu);
  });
  BLIPFT_CUDA_LAUNCHED("bias_activation_kernel");
}

void launch_activate(const Tensor& x, const Tensor& y, Activation activation, const LaunchContext& context) {
  dispatch_float(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (activation == Activation::gelu) launch_map<T, T>(x, y, Gelu<T>(), context);
    else if (activation == Activation::gelu_tanh) launch_map<T, T>(x, y, GeluTanh(), context);
    else if (activation == Activation::relu) launch_map<T, T>(x, y, Relu(), context);
    else launch_map<T, T>(x, y, Identity(), context);
  });
}

void CudaOps::pack_signs(const Tensor& x, const Tensor& signs, Stream stream) {
  check_pack_signs(x, signs);
  const int64_t bytes = signs.numel();
  if (bytes == 0) return;
  const auto blocks = static_cast<unsigned>(ceil_div(bytes, 4 * 256));
  const cudaStream_t in = context(stream).stream;
  dispatch_float(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto run = all_aligned16(x) ? &pack_signs_kernel<T, true> : &pack_signs_kernel<T, false>;
    run<<<blocks, 256, 0, in>>>(x.as<const T>(), signs.as<uint8_t>(), x.numel(), bytes);
  });
  BLIPFT_CUDA_LAUNCHED("pack_signs_kernel");
}

void CudaOps::activate(const Tensor& x, const Tensor& y, Activation activation, Stream stream) {
  check_activate(x, y, activation);
  launch_activate(x, y, activation, context(stream));
}

}  // namespace blipft
