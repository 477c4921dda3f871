// What a decode step reads next, and rows that go into the cache of keys and values.
#include "blipft/decode_ops.h"
#include "cuda/cuda_ops.h"
#include "cuda/device/overlap.cuh"
#include "cuda/vector.cuh"
#include "ops/ops_check.h"
#include "ops/token_rules.h"

namespace blipft {
namespace {

constexpr int kThreads = 256;

__global__ void next_rows_kernel(TextArrays texts, int64_t prefix_rows, int32_t* tokens, int32_t* places,
                                 int32_t* cache_lengths) {
  join_chain();
  const int64_t s = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (s >= texts.slots) return;
  const int32_t length = texts.lengths[s];
  const bool grows = texts.grows(s);
  const auto end = static_cast<int32_t>(prefix_rows + length);
  tokens[s] = grows ? texts.ids[s * texts.most + length - 1] : 0;
  places[s] = grows ? end - 1 : -1;
  cache_lengths[s] = grows ? end : 0;
}

struct WriteArgs {
  const int32_t *slots, *places;
  int64_t cache_places, k_stride, v_stride, cols;
};

/// One block a row; N elements at once.
template <class T, int N>
__global__ void cache_write_kernel(const T* __restrict__ k, const T* __restrict__ v, T* __restrict__ keys,
                                   T* __restrict__ values, WriteArgs args) {
  join_chain();
  const int64_t row = blockIdx.x, place = args.places[row];
  if (place < 0) return;
  const int64_t to = ((args.slots ? args.slots[row] : row) * args.cache_places + place) * args.cols;
  k += row * args.k_stride, v += row * args.v_stride;
  for (int64_t c = int64_t{threadIdx.x} * N; c < args.cols; c += int64_t{blockDim.x} * N) {
    const Pack<T, N> key = load_pack<N>(k + c), value = load_pack<N>(v + c);
    *reinterpret_cast<Pack<T, N>*>(keys + to + c) = key;
    *reinterpret_cast<Pack<T, N>*>(values + to + c) = value;
  }
}

}  // namespace

void CudaOps::next_rows(const NextRows& args, Stream stream) {
  check_args(args);
  const int64_t slots = args.state.lengths.numel();
  launch_overlapped(next_rows_kernel, blocks_of(ceil_div(slots, kThreads)), kThreads, 0, context(stream),
                    TextArrays::of(args.state), args.prefix_rows, args.tokens.as<int32_t>(), args.places.as<int32_t>(),
                    args.cache_lengths.as<int32_t>());
}

void CudaOps::cache_write(const CacheWrite& args, Stream stream) {
  check_args(args);
  if (args.k.numel() == 0) return;
  const LaunchContext launch = context(stream);
  if (args.rotary.x) return launch_turn_into_cache(args, launch);
  const WriteArgs write{args.slots.as<const int32_t>(), args.places.as<const int32_t>(), args.cache.places,
                        args.k.row_stride, args.v.row_stride, args.k.cols()};
  dispatch_float(args.k.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto run = [&](auto width) {
      constexpr int N = decltype(width)::value;
      const auto threads = std::min<int64_t>(kThreads, round_up(ceil_div(write.cols, N), 32));
      launch_overlapped(cache_write_kernel<T, N>, blocks_of(args.k.rows()), threads, 0, launch, args.k.as<const T>(),
                        args.v.as<const T>(), args.cache.keys.as<T>(), args.cache.values.as<T>(), write);
    };
    constexpr int64_t kWide = kVector<T>;
    const bool wide = write.cols % kWide == 0 && write.k_stride % kWide == 0 && write.v_stride % kWide == 0;
    if (wide && all_aligned16(args.k, args.v, args.cache.keys, args.cache.values))
      run(std::integral_constant<int, kVector<T>>{});
    else run(std::integral_constant<int, 1>{});
  });
}

}  // namespace blipft
