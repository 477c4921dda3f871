// Element-wise ops: dropout with residual, add, cast, fill, random fill, loss weights and clip coefficient.
#include "cuda/elementwise.cuh"

#include "cuda/cuda_ops.h"
#include "ops/normal.h"
#include "ops/ops_check.h"

namespace blipft {
namespace {

/// One pack per thread; residual and dropout are optional. `packs` counts the whole tensor, `row_packs` one row.
template <class T, int N>
__global__ void __launch_bounds__(kMapThreads)
dropout_add_kernel(const T* x, const T* residual, T* y, int64_t packs, uint32_t row_packs, DropoutKernelArgs dropout) {
  const int64_t pack = int64_t{blockIdx.x} * kMapThreads + threadIdx.x;
  if (pack >= packs) return;
  const Pack<T, N> own = load_pack<N>(x + pack * N);
  Pack<T, N> added;
  if (residual) added = load_pack<N>(residual + pack * N);
  float v[N];
  unpack(own, v);
  if (dropout.keys) {  // null keys: p is 0
    int64_t index = pack;  // index among the packs of a padded batch
    if (dropout.padded_rows) {
      const int64_t row = divided(pack, row_packs);
      index += (dropout.padded_rows[row] - row) * row_packs;
    }
    const int64_t sample_packs = dropout.rows_per_sample * row_packs;
    const int64_t sample = divided(index, sample_packs);
    apply_dropout(v, dropout, {dropout.keys[sample], 0}, (index - sample * sample_packs) * N);
  } else if (dropout.active) {
    apply_dropout(v, dropout, {0, 0}, 0);
  }
  if (residual) {
    float r[N];
    unpack(added, r);
#pragma unroll
    for (int j = 0; j < N; ++j) v[j] += r[j];
  }
  store(y + pack * N, v);
}

template <class T>
__global__ void fill_kernel(T* __restrict__ x, int64_t n, float value) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += stride) x[i] = from_float<T>(value);
}

__global__ void fill_i32_kernel(int32_t* __restrict__ x, int64_t n, int32_t value) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += stride) x[i] = value;
}

/// One Philox block gives four consecutive normal numbers, which are the elements of one thread.
template <class T>
__global__ void fill_normal_kernel(T* __restrict__ x, int64_t n, uint64_t seed, uint32_t stream_id, int64_t first,
                                   float mean, float std) {
  const int64_t block = first / 4 + int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (block * 4 >= first + n) return;
  const Philox4 words = normal_words(seed, stream_id, block);
  float v[4];
  box_muller(words.x, words.y, v[0], v[1]);
  box_muller(words.z, words.w, v[2], v[3]);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int64_t i = block * 4 + j - first;
    if (i >= 0 && i < n) x[i] = from_float<T>(mean + std * v[j]);
  }
}

template <class T>
__global__ void fill_uniform_kernel(T* __restrict__ x, int64_t n, uint64_t seed, uint32_t stream_id, int64_t first,
                                    float bound) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) x[i] = from_float<T>(bound * uniform_at(seed, stream_id, first + i));
}

template <class T>
__global__ void cap_kernel(T* x, int64_t n, float cap) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) x[i] = from_float<T>(cap * tanhf(to_float(x[i]) / cap));
}

template <class T>
__global__ void scale_kernel(T* x, int64_t n, float factor) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) x[i] = from_float<T>(factor * to_float(x[i]));
}

__global__ void loss_weights_kernel(const float* __restrict__ denominators, float* __restrict__ weights, int64_t n,
                                    float scale) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) weights[i] = denominators[i] == 0 ? 0.0f : 1.0f / (denominators[i] * scale);
}

__global__ void clip_coefficient_kernel(const float* __restrict__ sum_of_squares, float* __restrict__ scalars,
                                        float max_norm) {
  const float norm = sqrtf(sum_of_squares[0]);
  scalars[kGradNorm] = norm;
  scalars[kSkipUpdate] = isfinite(norm) ? 0.0f : 1.0f;
  // The comparison propagates a NaN norm, like torch.clamp.
  const float coefficient = max_norm / (norm + 1e-6f);
  scalars[kClipCoefficient] = max_norm > 0 ? (coefficient > 1 ? 1.0f : coefficient) : 1.0f;
}

struct Add {
  __device__ __forceinline__ float operator()(float x, float y) const { return x + y; }
};
struct Keep {
  __device__ __forceinline__ float operator()(float x) const { return x; }
};

}  // namespace

void CudaOps::dropout_add(const DropoutAdd& args, Stream stream) {
  check_args(args);
  const int64_t cols = args.x.cols();
  if (args.x.numel() == 0) return;
  const LaunchContext launch = context(stream);
  const DropoutKernelArgs dropout = dropout_kernel_args(args.dropout);
  dispatch_float(args.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto run = [&](auto width) {
      constexpr int N = decltype(width)::value;
      const int64_t packs = args.x.numel() / N;
      dropout_add_kernel<T, N><<<static_cast<unsigned>(ceil_div(packs, kMapThreads)), kMapThreads, 0, launch.stream>>>(
          args.x.as<const T>(), args.residual.as<const T>(), args.y.as<T>(), packs, static_cast<uint32_t>(cols / N),
          dropout);
    };
    if (cols % kVector<T> == 0 && all_aligned16(args.x, args.residual, args.y))
      run(std::integral_constant<int, kVector<T>>{});
    else run(std::integral_constant<int, 1>{});
  });
  BLIPFT_CUDA_LAUNCHED("dropout_add_kernel");
}

void launch_add(const Tensor& from, const Tensor& to, const LaunchContext& context) {
  dispatch_float(from.dtype, [&](auto from_tag) {
    dispatch_float(to.dtype, [&](auto to_tag) {
      launch_update<typename decltype(from_tag)::type, typename decltype(to_tag)::type>(from, to, Add(), context);
    });
  });
}

void launch_cast(const Tensor& from, const Tensor& to, const LaunchContext& context) {
  dispatch_cast(from.dtype, [&](auto from_tag) {
    dispatch_cast(to.dtype, [&](auto to_tag) {
      launch_map<typename decltype(from_tag)::type, typename decltype(to_tag)::type>(from, to, Keep(), context);
    });
  });
}

void launch_fill_normal(const Tensor& x, uint64_t seed, uint32_t stream_id, int64_t first, float mean, float std,
                        const LaunchContext& context) {
  const int64_t n = x.numel();
  if (n == 0) return;
  const int64_t words = ceil_div(first + n, 4) - first / 4;
  dispatch_float(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    fill_normal_kernel<T><<<static_cast<unsigned>(ceil_div(words, 256)), 256, 0, context.stream>>>(
        x.as<T>(), n, seed, stream_id, first, mean, std);
  });
  BLIPFT_CUDA_LAUNCHED("fill_normal_kernel");
}

void CudaOps::add(const Tensor& from, const Tensor& to, Stream stream) {
  check_add(from, to);
  launch_add(from, to, context(stream));
}

void CudaOps::cap(const Tensor& x, float cap, Stream stream) {
  check_cap(x, cap);
  const int64_t n = x.numel();
  if (n == 0) return;
  dispatch_float(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    cap_kernel<<<static_cast<unsigned>(ceil_div(n, 256)), 256, 0, context(stream).stream>>>(x.as<T>(), n, cap);
  });
  BLIPFT_CUDA_LAUNCHED("cap_kernel");
}

void CudaOps::scale(const Tensor& x, float factor, Stream stream) {
  check_scale(x);
  const int64_t n = x.numel();
  if (n == 0) return;
  dispatch_float(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    scale_kernel<<<static_cast<unsigned>(ceil_div(n, 256)), 256, 0, context(stream).stream>>>(x.as<T>(), n, factor);
  });
  BLIPFT_CUDA_LAUNCHED("scale_kernel");
}

void CudaOps::cast(const Tensor& from, const Tensor& to, Stream stream) {
  check_cast(from, to);
  launch_cast(from, to, context(stream));
}

void CudaOps::fill(const Tensor& x, float value, Stream stream) {
  check_fill(x);
  if (x.numel() == 0) return;
  const LaunchContext launch = context(stream);
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(ceil_div(x.numel(), 256), int64_t{launch.sm_count} * 16));
  dispatch_float(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    fill_kernel<T><<<blocks, 256, 0, launch.stream>>>(x.as<T>(), x.numel(), value);
  });
  BLIPFT_CUDA_LAUNCHED("fill_kernel");
}

void CudaOps::fill_i32(const Tensor& x, int32_t value, Stream stream) {
  check_fill_i32(x);
  if (x.numel() == 0) return;
  const LaunchContext launch = context(stream);
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(ceil_div(x.numel(), 256), int64_t{launch.sm_count} * 16));
  fill_i32_kernel<<<blocks, 256, 0, launch.stream>>>(x.as<int32_t>(), x.numel(), value);
  BLIPFT_CUDA_LAUNCHED("fill_i32_kernel");
}

void CudaOps::fill_normal(const Tensor& x, uint64_t seed, uint32_t stream_id, int64_t first, float mean, float std,
                          Stream stream) {
  check_fill_normal(x, first);
  launch_fill_normal(x, seed, stream_id, first, mean, std, context(stream));
}

void CudaOps::fill_uniform(const Tensor& x, uint64_t seed, uint32_t stream_id, int64_t first, float bound,
                           Stream stream) {
  check_fill_normal(x, first);
  if (x.numel() == 0) return;
  const cudaStream_t queue = context(stream).stream;
  dispatch_float(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    fill_uniform_kernel<T><<<static_cast<unsigned>(ceil_div(x.numel(), 256)), 256, 0, queue>>>(
        x.as<T>(), x.numel(), seed, stream_id, first, bound);
  });
  BLIPFT_CUDA_LAUNCHED("fill_uniform_kernel");
}

void CudaOps::loss_weights(const Tensor& denominators, const Tensor& weights, float scale, Stream stream) {
  check_loss_weights(denominators, weights, scale);
  const int64_t n = denominators.numel();
  if (n == 0) return;
  loss_weights_kernel<<<static_cast<unsigned>(ceil_div(n, 128)), 128, 0, context(stream).stream>>>(
      denominators.as<float>(), weights.as<float>(), n, scale);
  BLIPFT_CUDA_LAUNCHED("loss_weights_kernel");
}

void CudaOps::clip_coefficient(const Tensor& sum_of_squares, const Tensor& scalars, float max_norm, Stream stream) {
  check_clip_coefficient(sum_of_squares, scalars);
  clip_coefficient_kernel<<<1, 1, 0, context(stream).stream>>>(sum_of_squares.as<float>(), scalars.as<float>(),
      max_norm);
  BLIPFT_CUDA_LAUNCHED("clip_coefficient_kernel");
}

}  // namespace blipft
