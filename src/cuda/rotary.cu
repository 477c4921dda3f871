// Rotary position embedding in place: a block computes a row's angles once for all heads. One kernel combines it with
// the write into the KV cache.
#include "cuda/cuda_ops.h"
#include "cuda/device/overlap.cuh"
#include "cuda/gemm/largest.cuh"
#include "cuda/vector.cuh"
#include "ops/ops_check.h"

namespace blipft {
namespace {

constexpr int kThreads = 256;

/// Positions on one axis.
struct RotaryArgs {
  int64_t row_stride = 0;
  int pairs = 0, heads = 0;                  ///< pairs of a head that are rotated: D / 2, or fewer
  int head_size = 0;
  float magnitude = 1;
  bool inverse = false;
  const int32_t* positions = nullptr;
  unsigned* amax = nullptr;                  ///< optional
  float frequencies[Rotary::kMaxFrequencies] = {};

  /// Returns the position of a row that rotates pair i.
  __device__ __forceinline__ int32_t position(int64_t row, int) const { return positions[row]; }
};

/// Positions on several axes.
struct AxesRotaryArgs : RotaryArgs {
  int64_t rows = 0;
  uint8_t axis[Rotary::kMaxFrequencies] = {};

  __device__ __forceinline__ int32_t position(int64_t row, int i) const { return positions[axis[i] * rows + row]; }
};

RotaryArgs kernel_args_of(const Rotary& args) {
  RotaryArgs result;
  result.row_stride = args.x.row_stride;
  result.pairs = static_cast<int>((args.rotated > 0 ? args.rotated : args.head_size) / 2);
  result.head_size = static_cast<int>(args.head_size);
  result.magnitude = args.magnitude;
  result.heads = static_cast<int>(args.x.cols() / args.head_size);
  result.inverse = args.inverse;
  result.amax = args.amax.as<unsigned>();
  result.positions = args.positions.as<int32_t>();
  std::copy_n(args.frequencies, result.pairs, result.frequencies);
  return result;
}

/// Cosines and sines of the block's row.
struct Angles {
  float cosines[Rotary::kMaxFrequencies], sines[Rotary::kMaxFrequencies];

  template <class Args>
  __device__ __forceinline__ void fill(const Args& args, int64_t row) {
    const int thread = threadIdx.x;
    if (thread >= args.pairs) return;
    float s, c;
    sincosf(static_cast<float>(args.position(row, thread)) * args.frequencies[thread], &s, &c);
    cosines[thread] = c * args.magnitude;
    sines[thread] = (args.inverse ? -s : s) * args.magnitude;
  }
};

/// N adjacent pairs of a head after rotation.
template <int N>
struct Turned {
  float a[N], b[N];

  template <class T>
  __device__ __forceinline__ Turned(const T* at, int pairs, const Angles& angles, int first) {
    float x[N], y[N];
    load(at, x);
    load(at + pairs, y);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float c = angles.cosines[first + j], s = angles.sines[first + j];
      a[j] = x[j] * c - y[j] * s;
      b[j] = y[j] * c + x[j] * s;
    }
  }
  template <class T>
  __device__ __forceinline__ void store_at(T* at, int pairs) const {
    store(at, a);
    store(at + pairs, b);
  }
};

/// One block per row.
template <class T, int N, class Args>
__device__ __forceinline__ void rotate_row(T* x, const Args& args) {
  __shared__ __align__(16) Angles angles;
  join_chain();
  angles.fill(args, blockIdx.x);
  __syncthreads();
  T* const row = x + blockIdx.x * args.row_stride;
  const int of_head = args.pairs / N, count = of_head * args.heads;
  unsigned maximum = 0;
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const int head = i / of_head, first = (i - head * of_head) * N;
    T* const at = row + head * args.head_size + first;
    const Turned<N> turned(at, args.pairs, angles, first);
    turned.store_at(at, args.pairs);
    if (args.amax) maximum = larger(larger(maximum, packed<T>(turned.a)), packed<T>(turned.b));
  }
  if (args.amax) raise_by_block(maximum, args.amax);
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads) rotary_kernel(T* x, const __grid_constant__ RotaryArgs args) {
  rotate_row<T, N>(x, args);
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads) axes_rotary_kernel(T* x, const __grid_constant__ AxesRotaryArgs args) {
  rotate_row<T, N>(x, args);
}

/// Destination of the last `kv_heads` heads of x, which are the keys, and of the values.
template <class T>
struct CacheArgs {
  const T* v;
  T *keys, *values;
  const int32_t *slots, *positions;
  int64_t cache_positions, v_stride;
  int kv_heads;
};

/// blockIdx.x is the row; the blocks of a row (blockIdx.y) share its packs.
template <class T, int N>
__global__ void __launch_bounds__(kThreads) turn_into_cache_kernel(T* x, const __grid_constant__ RotaryArgs args, CacheArgs<T> to) {
  __shared__ __align__(16) Angles angles;
  join_chain();
  const int64_t row = blockIdx.x, position = to.positions[row];
  angles.fill(args, row);
  __syncthreads();
  T* const heads = x + row * args.row_stride;
  const T* const v = to.v + row * to.v_stride;
  const int d = args.head_size, first_key = args.heads - to.kv_heads;
  const int64_t cached = ((to.slots ? to.slots[row] : row) * to.cache_positions + position) * to.kv_heads * d;
  T *const keys = to.keys + cached, *const values = to.values + cached;
  const bool writes = position >= 0;
  // Work items: rotated pairs; packs of keys that are not rotated; packs of values.
  const int of_head = args.pairs / N, still = d / N - 2 * of_head;
  const int pairs = of_head * args.heads, stays = writes ? still * to.kv_heads : 0, copies = writes ? to.kv_heads * d / N : 0;
  for (int i = static_cast<int>(blockIdx.y) * kThreads + threadIdx.x; i < pairs + stays + copies; i += kThreads * gridDim.y) {
    if (i < pairs) {
      const int head = i / of_head, first = (i - head * of_head) * N;
      T* const at = heads + head * d + first;
      const Turned<N> turned(at, args.pairs, angles, first);
      turned.store_at(at, args.pairs);
      if (writes && head >= first_key) turned.store_at(keys + (head - first_key) * d + first, args.pairs);
    } else if (i < pairs + stays) {
      const int head = (i - pairs) / still, at = head * d + 2 * args.pairs + (i - pairs - head * still) * N;
      *reinterpret_cast<Pack<T, N>*>(keys + at) = load_pack<N>(heads + first_key * d + at);
    } else {
      const int at = (i - pairs - stays) * N;
      *reinterpret_cast<Pack<T, N>*>(values + at) = load_pack<N>(v + at);
    }
  }
}

/// Calls `body` with the largest pack width that divides all sizes and strides and to which all addresses are aligned.
template <class T, class Body>
void dispatch_pack(const Rotary& args, int pairs, const MatrixView& beside, std::initializer_list<const void*> addresses, Body&& body) {
  const auto fits = [&](int n) {
    return pairs % n == 0 && args.head_size % n == 0 && args.x.row_stride % n == 0 && beside.row_stride % n == 0 &&
           std::all_of(addresses.begin(), addresses.end(), [&](const void* address) {
             return reinterpret_cast<uintptr_t>(address) % (sizeof(T) * static_cast<size_t>(n)) == 0;
           });
  };
  if (fits(kVector<T>)) body(std::integral_constant<int, kVector<T>>{});
  else if (fits(2)) body(std::integral_constant<int, 2>{});
  else body(std::integral_constant<int, 1>{});
}

}  // namespace

void CudaOps::rotary(const Rotary& args, Stream stream) {
  check_args(args);
  const LaunchContext context = this->context(stream);
  if (args.x.rows() == 0) return;
  AxesRotaryArgs kernel_args{kernel_args_of(args), args.x.rows()};
  std::copy_n(args.axis, kernel_args.pairs, kernel_args.axis);
  dispatch_float(args.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    dispatch_pack<T>(args, kernel_args.pairs, {}, {args.x.data}, [&](auto n) {
      constexpr int N = decltype(n)::value;
      const auto run = [&](auto kernel, const auto& of_kernel) {
        launch_overlapped(kernel, blocks_of(args.x.rows()), kThreads, 0, context, args.x.as<T>(), of_kernel);
      };
      if (args.axes() == 1) run(rotary_kernel<T, N>, static_cast<const RotaryArgs&>(kernel_args));
      else run(axes_rotary_kernel<T, N>, kernel_args);
    });
  });
}

void launch_turn_into_cache(const CacheWrite& args, const LaunchContext& context) {
  const RotaryArgs turns = kernel_args_of(args.rotary);
  const int64_t rows = args.k.rows();
  dispatch_float(args.k.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const CacheArgs<T> to{.v = args.v.as<const T>(), .keys = args.cache.keys.as<T>(),
                          .values = args.cache.values.as<T>(), .slots = args.slots.as<const int32_t>(),
                          .positions = args.positions.as<const int32_t>(), .cache_positions = args.cache.positions,
                          .v_stride = args.v.row_stride,
                          .kv_heads = static_cast<int>(args.k.cols() / args.rotary.head_size)};
    dispatch_pack<T>(args.rotary, turns.pairs, args.v, {args.rotary.x.data, to.v, to.keys, to.values}, [&](auto n) {
      constexpr int N = decltype(n)::value;
      // The number of packs is about the columns of k and v plus half of those of q, divided by N.
      const int64_t packs = (args.rotary.x.cols() / 2 + args.k.cols()) / N;
      const int64_t parts = std::clamp<int64_t>(context.sm_count / rows, 1, ceil_div(packs, kThreads));
      const dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>(parts));
      launch_overlapped(turn_into_cache_kernel<T, N>, grid, kThreads, 0, context, args.rotary.x.as<T>(), turns, to);
    });
  });
}

}  // namespace blipft
