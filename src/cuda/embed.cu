// Kernels that move rows: image patches, vision embeddings, tiled rows, blocks of rows, and sums over blocks.
#include "blipft/patch_ops.h"
#include "cuda/cuda_ops.h"
#include "cuda/vector.cuh"
#include "ops/ops_check.h"

namespace blipft {
namespace {

struct PatchifyArgs {
  int size = 0, patch = 0, side = 0;   ///< pixels per side of image and patch; patches per side
  float scale[3], shift[3];            ///< (pixel / 255 - mean) / std = pixel * scale + shift
};

/// One block per row of patches. It copies `patch` rows of pixels, which are contiguous, to shared memory and writes
/// them as `side` contiguous patches; pixels right of the last patch are not written. `kWide`: reads 16 bytes at a
/// time.
template <class T, int N, bool kWide>
__global__ void __launch_bounds__(256)
patchify_kernel(const uint8_t* __restrict__ pixels, T* __restrict__ patches, PatchifyArgs args) {
  extern __shared__ __align__(16) uint8_t strip[];
  const int bytes = args.patch * args.size * 3, area = args.patch * args.patch, count = args.side * 3 * area;
  const int64_t sample = blockIdx.x / args.side, row = blockIdx.x % args.side;
  const uint8_t* from = pixels + sample * args.size * args.size * 3 + row * bytes;
  if constexpr (kWide) {
    for (int i = threadIdx.x * 16; i < bytes; i += blockDim.x * 16)
      *reinterpret_cast<uint4*>(strip + i) = *reinterpret_cast<const uint4*>(from + i);
  } else {
    for (int i = threadIdx.x; i < bytes; i += blockDim.x) strip[i] = from[i];
  }
  __syncthreads();
  T* to = patches + int64_t{blockIdx.x} * count;
  for (int first = threadIdx.x * N; first < count; first += blockDim.x * N) {
    const int place = first % (3 * area);
    int index = first / (3 * area), channel = place / area, y = place % area / args.patch, x = place % args.patch;
    float v[N];
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float pixel = strip[(y * args.size + index * args.patch + x) * 3 + channel];
      v[j] = fmaf(pixel, args.scale[channel], args.shift[channel]);
      if (++x < args.patch) continue;
      x = 0;
      if (++y < args.patch) continue;
      y = 0;
      if (++channel < 3) continue;
      channel = 0;
      ++index;
    }
    store(to + first, v);
  }
}

/// Computes x[b, 0] = class_embedding + positions[0]; x[b, i] = patches[b, i - 1] + positions[i]. One block per row of
/// x.
template <class T, int N>
__global__ void vision_embed_kernel(const T* __restrict__ patches, const T* __restrict__ class_embedding,
                                    const T* __restrict__ positions, T* __restrict__ x, int64_t tokens, int64_t cols) {
  const int64_t row = blockIdx.x, sample = row / tokens, token = row % tokens;
  const T* from = token == 0 ? class_embedding : patches + (sample * (tokens - 1) + token - 1) * cols;
  for (int64_t c = int64_t{threadIdx.x} * N; c < cols; c += int64_t{blockDim.x} * N) {
    float v[N], p[N];
    load(from + c, v);
    load(positions + token * cols + c, p);
#pragma unroll
    for (int j = 0; j < N; ++j) v[j] += p[j];
    store(x + row * cols + c, v);
  }
}

/// Computes rows[r] = table[numbers[r]], zeros for a negative number. One block per row.
template <class T, int N>
__global__ void gather_rows_kernel(const T* __restrict__ table, const int32_t* __restrict__ numbers, T* __restrict__ rows,
                                   int64_t cols) {
  const int64_t number = numbers[blockIdx.x];
  const T* source = table + number * cols;
  T* target = rows + int64_t{blockIdx.x} * cols;
  for (int64_t c = int64_t{threadIdx.x} * N; c < cols; c += int64_t{blockDim.x} * N) {
    Pack<T, N> pack;
    if (number >= 0) {
      pack = load_pack<N>(source + c);
    } else {
#pragma unroll
      for (int j = 0; j < N; ++j) pack.v[j] = from_float<T>(0.0f);
    }
    *reinterpret_cast<Pack<T, N>*>(target + c) = pack;
  }
}

/// Computes x[numbers[r]] += rows[r], nothing for a negative number. One block per row.
template <class T, int N>
__global__ void add_rows_kernel(const T* __restrict__ rows, const int32_t* __restrict__ numbers, T* __restrict__ x, int64_t cols) {
  const int64_t number = numbers[blockIdx.x];
  if (number < 0) return;
  const T* source = rows + int64_t{blockIdx.x} * cols;
  T* target = x + number * cols;
  for (int64_t c = int64_t{threadIdx.x} * N; c < cols; c += int64_t{blockDim.x} * N) {
    float sum[N], v[N];
    load(static_cast<const T*>(target) + c, sum);
    load(source + c, v);
#pragma unroll
    for (int j = 0; j < N; ++j) sum[j] += v[j];
    store(target + c, sum);
  }
}

/// Copies to[b * to_block + to_offset + i] = from[b * from_block + from_offset + i] for i < count; the other rows of
/// `to` are zeroed, or unchanged with `keep`. One thread block per row of `to`.
struct MoveArgs {
  int64_t to_block = 0, to_offset = 0, from_block = 0, from_offset = 0, count = 0, cols = 0;
  bool keep = false;
};

template <class T, int N>
__global__ void move_rows_kernel(const T* __restrict__ from, T* __restrict__ to, MoveArgs args) {
  const int64_t block = blockIdx.x / args.to_block, i = blockIdx.x % args.to_block - args.to_offset;
  const bool inside = i >= 0 && i < args.count;
  if (args.keep && !inside) return;
  const T* source = from + (block * args.from_block + args.from_offset + i) * args.cols;
  T* target = to + int64_t{blockIdx.x} * args.cols;
  for (int64_t c = int64_t{threadIdx.x} * N; c < args.cols; c += int64_t{blockDim.x} * N) {
    Pack<T, N> pack;
    if (inside) {
      pack = load_pack<N>(source + c);
    } else {
#pragma unroll
      for (int j = 0; j < N; ++j) pack.v[j] = from_float<T>(0.0f);
    }
    *reinterpret_cast<Pack<T, N>*>(target + c) = pack;
  }
}

/// RowBlocks of packed samples, with one thread block per row of `blocks`; the row's index in its sample is
/// padded_rows[row] modulo block_rows. `rows` omits each sample's first `offset` and last `left_out` rows; with count >
/// 0 it has only the `count` rows from `offset` on.
struct PackedBlocks {
  const int32_t *starts = nullptr, *padded_rows = nullptr;
  int64_t block_rows = 0, offset = 0, left_out = 0, cols = 0, count = 0;
  bool keep = false;                       ///< rows of `blocks` that are not in `rows` are unchanged
};

/// kSpread: copies from `rows` to `blocks` and zeroes the rows of `blocks` that are not in `rows`; else the reverse
/// copy.
template <class T, int N, bool kSpread>
__global__ void packed_rows_kernel(const T* __restrict__ from, T* __restrict__ to, PackedBlocks args) {
  const int64_t row = blockIdx.x, padded = args.padded_rows[row];
  const int64_t sample = padded / args.block_rows, t = padded - sample * args.block_rows;
  const bool inside = t >= args.offset && (args.count > 0 ? t < args.offset + args.count
                                                          : row < args.starts[sample + 1] - args.left_out);
  if ((!kSpread || args.keep) && !inside) return;
  // The preceding samples each omit offset + left_out rows, and this sample omits its first `offset`.
  const int64_t picked = args.count > 0 ? sample * args.count + t - args.offset
                                        : row - args.offset - sample * (args.offset + args.left_out);
  const T* source = from + (kSpread ? picked : row) * args.cols;
  T* target = to + (kSpread ? row : picked) * args.cols;
  for (int64_t c = int64_t{threadIdx.x} * N; c < args.cols; c += int64_t{blockDim.x} * N) {
    Pack<T, N> pack;
    if (inside) {
      pack = load_pack<N>(source + c);
    } else {
#pragma unroll
      for (int j = 0; j < N; ++j) pack.v[j] = from_float<T>(0.0f);
    }
    *reinterpret_cast<Pack<T, N>*>(target + c) = pack;
  }
}

/// Computes rows[i] (+)= sum over blocks b of tiled[b * stride + i]; a thread owns N elements of `rows`.
template <class T, class Out, int N>
__global__ void __launch_bounds__(128)
sum_blocks_kernel(const T* __restrict__ tiled, Out* __restrict__ rows, int64_t elements, int64_t count, int64_t stride,
                  bool accumulate) {
  const int64_t e = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * N;
  if (e >= elements) return;
  float sums[N] = {};
#pragma unroll 8
  for (int64_t b = 0; b < count; ++b) {
    float v[N];
    load(tiled + b * stride + e, v);
#pragma unroll
    for (int j = 0; j < N; ++j) sums[j] += v[j];
  }
  if (accumulate) {
    float old[N];
    load(static_cast<const Out*>(rows) + e, old);
#pragma unroll
    for (int j = 0; j < N; ++j) sums[j] += old[j];
  }
  store(rows + e, sums);
}

/// Calls `run` with the pack width that the row size and the alignment allow.
template <class T, class Run, class... Tensors>
void with_width(int64_t cols, Run&& run, const Tensors&... tensors) {
  if (cols % kVector<T> == 0 && all_aligned16(tensors...)) run(std::integral_constant<int, kVector<T>>{});
  else run(std::integral_constant<int, 1>{});
}

unsigned row_threads(int64_t cols, int width) {
  return static_cast<unsigned>(std::min<int64_t>(256, round_up(ceil_div(cols, width), 32)));
}

void launch_move(const Tensor& from, const Tensor& to, const MoveArgs& args, cudaStream_t stream) {
  if (to.numel() == 0) return;
  dispatch_float(to.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    with_width<T>(args.cols, [&](auto width) {
      constexpr int N = decltype(width)::value;
      move_rows_kernel<T, N><<<static_cast<unsigned>(to.rows()), row_threads(args.cols, N), 0, stream>>>(
          from.as<const T>(), to.as<T>(), args);
    }, from, to);
  });
  BLIPFT_CUDA_LAUNCHED("move_rows_kernel");
}

template <bool kSpread>
void launch_packed_rows(const RowBlocks& args, cudaStream_t stream) {
  if (args.blocks.numel() == 0) return;
  const Tensor &from = kSpread ? args.rows : args.blocks, &to = kSpread ? args.blocks : args.rows;
  const PackedBlocks kernel_args{.starts = args.packing.starts.as<const int32_t>(),
                                 .padded_rows = args.packing.padded_rows.as<const int32_t>(),
                                 .block_rows = args.block_rows, .offset = args.offset,
                                 .left_out = args.block_rows - args.offset - args.count, .cols = args.blocks.cols(),
                                 .count = args.fixed ? args.count : 0, .keep = args.keep};
  dispatch_float(to.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    with_width<T>(kernel_args.cols, [&](auto width) {
      constexpr int N = decltype(width)::value;
      const unsigned threads = row_threads(kernel_args.cols, N);
      packed_rows_kernel<T, N, kSpread><<<static_cast<unsigned>(args.blocks.rows()), threads, 0, stream>>>(
          from.as<const T>(), to.as<T>(), kernel_args);
    }, from, to);
  });
  BLIPFT_CUDA_LAUNCHED("packed_rows_kernel");
}

/// kBackward: x[r] = means[r / count] / count; else means[r] = mean of rows r * count to r * count + count - 1 of x. One
/// block per row of the result.
template <class T, int N, bool kBackward>
__global__ void mean_rows_kernel(const T* __restrict__ from, T* __restrict__ to, int64_t cols, int count) {
  const int64_t row = blockIdx.x, first = kBackward ? row / count : row * count;
  for (int64_t c = int64_t{threadIdx.x} * N; c < cols; c += int64_t{blockDim.x} * N) {
    float sum[N] = {}, x[N];
    for (int k = 0; k < (kBackward ? 1 : count); ++k) {
      load(from + (first + k) * cols + c, x);
#pragma unroll
      for (int i = 0; i < N; ++i) sum[i] += x[i];
    }
#pragma unroll
    for (int i = 0; i < N; ++i) sum[i] /= static_cast<float>(count);
    store(to + row * cols + c, sum);
  }
}

template <bool kBackward>
void launch_mean_rows(const Tensor& from, const Tensor& to, int64_t count, cudaStream_t stream) {
  const int64_t cols = to.cols();
  dispatch_float(to.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    with_width<T>(cols, [&](auto width) {
      constexpr int N = decltype(width)::value;
      mean_rows_kernel<T, N, kBackward><<<static_cast<unsigned>(to.rows()), row_threads(cols, N), 0, stream>>>(
          from.as<const T>(), to.as<T>(), cols, static_cast<int>(count));
    }, from, to);
  });
  BLIPFT_CUDA_LAUNCHED("mean_rows_kernel");
}

}  // namespace

void launch_sum_blocks(const void* tiled, DType dtype, int64_t count, int64_t stride_rows, const Tensor& rows,
                       bool accumulate, const LaunchContext& context) {
  const int64_t elements = rows.numel(), cols = rows.cols();
  if (elements == 0) return;
  dispatch_float(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    dispatch_float(rows.dtype, [&](auto out_tag) {
      using Out = typename decltype(out_tag)::type;
      const auto run = [&](auto width) {
        constexpr int N = decltype(width)::value;
        sum_blocks_kernel<T, Out, N><<<static_cast<unsigned>(ceil_div(elements, 128 * N)), 128, 0, context.stream>>>(
            static_cast<const T*>(tiled), rows.as<Out>(), elements, count, stride_rows * cols, accumulate);
      };
      // With four elements per thread (16 bytes of f32, 8 bytes of bf16) small tables still have enough threads.
      if (cols % 4 == 0 && aligned16(tiled) && aligned16(rows.data)) run(std::integral_constant<int, 4>{});
      else run(std::integral_constant<int, 1>{});
    });
  });
  BLIPFT_CUDA_LAUNCHED("sum_blocks_kernel");
}

void CudaOps::patchify(const Patchify& args, Stream stream) {
  check_args(args);
  if (args.patches.numel() == 0) return;
  const LaunchContext launch = context(stream);
  PatchifyArgs kernel_args;
  kernel_args.size = static_cast<int>(args.pixels.shape[1]);
  kernel_args.patch = static_cast<int>(args.patch);
  kernel_args.side = kernel_args.size / kernel_args.patch;
  BLIPFT_CHECK(kernel_args.patch * args.pixels.shape[1] * 3 <= launch.shared_bytes, "patchify: a row of patches of ",
               kernel_args.patch, " x ", kernel_args.size, " pixels does not fit into ", launch.shared_bytes,
               " bytes of shared memory");
  for (int c = 0; c < 3; ++c) {
    kernel_args.scale[c] = 1.0f / (255.0f * args.std[c]);
    kernel_args.shift[c] = -args.mean[c] / args.std[c];
  }
  dispatch_float(args.patches.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const int64_t bytes = int64_t{kernel_args.patch} * kernel_args.size * 3;
    const int64_t count = kernel_args.side * int64_t{3} * kernel_args.patch * kernel_args.patch;
    const auto blocks = static_cast<unsigned>(args.pixels.shape[0] * kernel_args.side);
    const auto run = [&](auto width, auto wide) {
      const auto kernel = patchify_kernel<T, decltype(width)::value, decltype(wide)::value>;
      BLIPFT_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             static_cast<int>(bytes)));
      kernel<<<blocks, 256, static_cast<size_t>(bytes), launch.stream>>>(args.pixels.as<const uint8_t>(),
                                                                        args.patches.as<T>(), kernel_args);
    };
    // Then each block's pixels and patches start at multiples of 16 bytes, and no vector access exceeds its block.
    const bool vectors = bytes % 16 == 0 && kernel_args.size * bytes / kernel_args.patch % 16 == 0 && count % 16 == 0;
    if (vectors && all_aligned16(args.pixels, args.patches))
      run(std::integral_constant<int, kVector<T>>{}, std::true_type{});
    else run(std::integral_constant<int, 1>{}, std::false_type{});
  });
  BLIPFT_CUDA_LAUNCHED("patchify_kernel");
}

void CudaOps::vision_embed_forward(const VisionEmbed& args, Stream stream) {
  check_args(args);
  const LaunchContext launch = context(stream);
  const int64_t cols = args.x.cols(), tokens = args.positions.rows();
  if (args.x.numel() == 0) return;
  dispatch_float(args.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    with_width<T>(cols, [&](auto width) {
      constexpr int N = decltype(width)::value;
      vision_embed_kernel<T, N><<<static_cast<unsigned>(args.x.rows()), row_threads(cols, N), 0, launch.stream>>>(
          args.patches.as<const T>(), args.class_embedding.as<const T>(), args.positions.as<const T>(), args.x.as<T>(),
          tokens, cols);
    }, args.patches, args.class_embedding, args.positions, args.x);
  });
  BLIPFT_CUDA_LAUNCHED("vision_embed_kernel");
}

void CudaOps::vision_embed_backward(const VisionEmbed& args, Stream stream) {
  check_backward_args(args);
  const LaunchContext launch = context(stream);
  const int64_t cols = args.x.cols(), samples = args.x.rows() - args.patches.rows();
  const int64_t tokens = args.x.rows() / samples;
  launch_move(args.x, args.patches, {.to_block = tokens - 1, .to_offset = 0, .from_block = tokens, .from_offset = 1,
                                     .count = tokens - 1, .cols = cols}, launch.stream);
  if (!args.parameters) return;
  launch_sum_blocks(args.x.data, args.x.dtype, samples, tokens, args.positions, args.accumulate, launch);
  launch_sum_blocks(args.x.data, args.x.dtype, samples, tokens, args.class_embedding, args.accumulate, launch);
}

void CudaOps::gather_rows(const Tensor& table, const Tensor& numbers, const Tensor& rows, Stream stream) {
  check_gather_rows(table, numbers, rows);
  if (rows.numel() == 0) return;
  const int64_t cols = rows.cols();
  dispatch_float(rows.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    with_width<T>(cols, [&](auto width) {
      constexpr int N = decltype(width)::value;
      gather_rows_kernel<T, N><<<static_cast<unsigned>(rows.rows()), row_threads(cols, N), 0, context(stream).stream>>>(
          table.as<const T>(), numbers.as<const int32_t>(), rows.as<T>(), cols);
    }, table, rows);
  });
  BLIPFT_CUDA_LAUNCHED("gather_rows_kernel");
}

void CudaOps::add_rows(const Tensor& rows, const Tensor& numbers, const Tensor& x, Stream stream) {
  check_add_rows(rows, numbers, x);
  if (rows.numel() == 0) return;
  const int64_t cols = x.cols();
  dispatch_float(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    with_width<T>(cols, [&](auto width) {
      constexpr int N = decltype(width)::value;
      add_rows_kernel<T, N><<<static_cast<unsigned>(rows.rows()), row_threads(cols, N), 0, context(stream).stream>>>(
          rows.as<const T>(), numbers.as<const int32_t>(), x.as<T>(), cols);
    }, rows, x);
  });
  BLIPFT_CUDA_LAUNCHED("add_rows_kernel");
}

void CudaOps::tile_rows(const Tensor& rows, const Tensor& tiled, Stream stream) {
  check_tile_rows(rows, tiled);
  // All blocks of `tiled` have the same source rows: the stride of source blocks is 0.
  launch_move(rows, tiled, {.to_block = rows.rows(), .to_offset = 0, .from_block = 0, .from_offset = 0,
                            .count = rows.rows(), .cols = rows.cols()}, context(stream).stream);
}

void CudaOps::sum_tiles(const Tensor& tiled, const Tensor& rows, bool accumulate, Stream stream) {
  check_sum_tiles(tiled, rows);
  launch_sum_blocks(tiled.data, tiled.dtype, tiled.rows() / rows.rows(), rows.rows(), rows, accumulate,
      context(stream));
}

void CudaOps::mean_rows(const Tensor& x, const Tensor& means, Stream stream) {
  check_mean_rows(x, means);
  launch_mean_rows<false>(x, means, x.rows() / means.rows(), context(stream).stream);
}

void CudaOps::mean_rows_backward(const Tensor& means, const Tensor& x, Stream stream) {
  check_mean_rows(x, means);
  launch_mean_rows<true>(means, x, x.rows() / means.rows(), context(stream).stream);
}

void CudaOps::pick_rows(const RowBlocks& args, Stream stream) {
  check_args(args);
  if (args.packing) return launch_packed_rows<false>(args, context(stream).stream);
  launch_move(args.blocks, args.rows, {.to_block = args.count, .to_offset = 0, .from_block = args.block_rows,
                                       .from_offset = args.offset, .count = args.count, .cols = args.rows.cols()},
              context(stream).stream);
}

void CudaOps::spread_rows(const RowBlocks& args, Stream stream) {
  check_args(args);
  if (args.packing) return launch_packed_rows<true>(args, context(stream).stream);
  launch_move(args.rows, args.blocks,
              {.to_block = args.block_rows, .to_offset = args.offset, .from_block = args.count, .from_offset = 0,
               .count = args.count, .cols = args.rows.cols(), .keep = args.keep},
              context(stream).stream);
}

}  // namespace blipft
