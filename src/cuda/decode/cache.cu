// Start of texts, input rows of the next decode step, and writes into the KV cache.
#include "blipft/decode_ops.h"
#include "cuda/cuda_ops.h"
#include "cuda/device/overlap.cuh"
#include "cuda/vector.cuh"
#include "ops/beam_search.h"
#include "ops/ops_check.h"

namespace blipft {
namespace {

constexpr int kThreads = 256;

/// Raw pointers and sizes of a BeginTexts.
struct BeginArgs {
  const int32_t *texts, *ids, *lengths, *limits, *memory_rows, *deltas;
  const int64_t* keys;
  int64_t beams, cols, positions;
  TextArrays slots;
  int32_t *memory_lengths, *slot_deltas, *sources, *finished_lengths, *closed;
  float* finished_scores;
};

/// One block for each slot of each row's text.
__global__ void begin_texts_kernel(BeginArgs args) {
  join_chain();
  const int64_t row = blockIdx.x / args.beams, beam = blockIdx.x % args.beams, text = args.texts[row];
  if (text < 0) return;
  const int64_t first = text * args.beams, slot = first + beam, maximum = args.slots.maximum;
  const int32_t length = args.lengths[row];
  for (int64_t i = threadIdx.x; i < length; i += kThreads)
    args.slots.ids[slot * maximum + i] = args.ids[row * args.cols + i];
  for (int64_t i = threadIdx.x; args.sources && i < args.positions; i += kThreads)
    args.sources[slot * args.positions + i] = static_cast<int32_t>(first);
  if (threadIdx.x > 0) return;
  args.slots.lengths[slot] = args.slots.prompt_lengths[slot] = length;
  args.slots.limits[slot] = args.limits[row];
  args.slots.keys[slot] = args.keys[row];
  args.slots.done[slot] = kRunning;
  if (args.memory_rows) args.memory_lengths[slot] = args.memory_rows[row];
  if (args.deltas) args.slot_deltas[slot] = args.deltas[row];
  if (!args.sources) return;
  args.finished_lengths[slot] = 0;
  args.finished_scores[slot] = kNoBeamScore;
  if (beam == 0) args.closed[text] = 0;
}

__global__ void next_rows_kernel(TextArrays texts, int64_t prefix_rows, int32_t* tokens, int32_t* positions,
                                 int32_t* cache_lengths, const int32_t* slot_deltas, int32_t* rotary_positions) {
  join_chain();
  const int64_t s = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (s >= texts.slots) return;
  const int32_t length = texts.lengths[s];
  const bool grows = texts.grows(s);
  const auto end = static_cast<int32_t>(prefix_rows + length);
  tokens[s] = grows ? texts.ids[s * texts.maximum + length - 1] : 0;
  positions[s] = grows ? end - 1 : -1;
  cache_lengths[s] = grows ? end : 0;
  if (slot_deltas) rotary_positions[s] = grows ? end - 1 + slot_deltas[s] : 0;
}

struct WriteArgs {
  const int32_t *slots, *positions;
  int64_t cache_positions, k_stride, v_stride, cols;
};

/// One block per row; N elements at a time.
template <class T, int N>
__global__ void cache_write_kernel(const T* __restrict__ k, const T* __restrict__ v, T* __restrict__ keys,
                                   T* __restrict__ values, WriteArgs args) {
  join_chain();
  const int64_t row = blockIdx.x, position = args.positions[row];
  if (position < 0) return;
  const int64_t to = ((args.slots ? args.slots[row] : row) * args.cache_positions + position) * args.cols;
  k += row * args.k_stride, v += row * args.v_stride;
  for (int64_t c = int64_t{threadIdx.x} * N; c < args.cols; c += int64_t{blockDim.x} * N) {
    const Pack<T, N> key = load_pack<N>(k + c), value = load_pack<N>(v + c);
    *reinterpret_cast<Pack<T, N>*>(keys + to + c) = key;
    *reinterpret_cast<Pack<T, N>*>(values + to + c) = value;
  }
}

}  // namespace

void CudaOps::begin_texts(const BeginTexts& args, Stream stream) {
  check_args(args);
  BeginArgs begin{};
  begin.texts = args.texts.as<const int32_t>(), begin.ids = args.ids.as<const int32_t>();
  begin.lengths = args.lengths.as<const int32_t>(), begin.limits = args.limits.as<const int32_t>();
  begin.memory_rows = args.memory_rows.as<const int32_t>(), begin.keys = args.keys.as<const int64_t>();
  begin.beams = args.beams, begin.cols = args.ids.cols(), begin.positions = args.sources ? args.sources.cols() : 0;
  begin.slots = TextArrays::of(args.state), begin.memory_lengths = args.memory_lengths.as<int32_t>();
  begin.deltas = args.deltas.as<const int32_t>(), begin.slot_deltas = args.slot_deltas.as<int32_t>();
  begin.sources = args.sources.as<int32_t>(), begin.closed = args.closed.as<int32_t>();
  begin.finished_lengths = args.finished_lengths.as<int32_t>();
  begin.finished_scores = args.finished_scores.as<float>();
  const int64_t blocks = args.texts.numel() * args.beams;
  launch_overlapped(begin_texts_kernel, blocks_of(blocks), kThreads, 0, context(stream), begin);
}

void CudaOps::next_rows(const NextRows& args, Stream stream) {
  check_args(args);
  const int64_t slots = args.state.lengths.numel();
  launch_overlapped(next_rows_kernel, blocks_of(ceil_div(slots, kThreads)), kThreads, 0, context(stream),
                    TextArrays::of(args.state), args.prefix_rows, args.tokens.as<int32_t>(), args.positions.as<int32_t>(),
                    args.cache_lengths.as<int32_t>(), args.slot_deltas.as<const int32_t>(),
                    args.rotary_positions.as<int32_t>());
}

void CudaOps::cache_write(const CacheWrite& args, Stream stream) {
  check_args(args);
  if (args.k.numel() == 0) return;
  const LaunchContext launch = context(stream);
  if (args.rotary.x && args.rotary.axes() == 1) return launch_turn_into_cache(args, launch);
  if (args.rotary.x) rotary(args.rotary, stream);
  const WriteArgs write{.slots = args.slots.as<const int32_t>(), .positions = args.positions.as<const int32_t>(),
                        .cache_positions = args.cache.positions, .k_stride = args.k.row_stride, .v_stride = args.v.row_stride,
                        .cols = args.k.cols()};
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
