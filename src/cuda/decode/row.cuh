// Operations of a block on a row of scores over the vocabulary: the largest score, sums of softmax weights, the score
// at which a count or a weight is reached, and positions in the order of ids. All sums are integer sums, so they do not
// depend on the order and equal those of the CPU (ops/token_math.h). Nothing is sorted.
#pragma once

#include "cuda/vector.cuh"
#include "ops/token_rules.h"

namespace blipft {

constexpr int kRowThreads = 1024, kRowWarps = kRowThreads / 32;
constexpr int kBins = 2048;
constexpr uint64_t kAllTies = ~uint64_t{0};

/// Shared memory of the functions below; each function leaves it free for the next.
struct RowShared {
  uint64_t bins[kBins];
  uint64_t warps[kRowWarps];
  uint64_t result[2];
};

/// True if contiguous rows of `count` numbers consist of whole 16-byte packs.
template <class T>
__device__ __forceinline__ bool in_packs(const T* row, int64_t count) {
  return count % kVector<T> == 0 && reinterpret_cast<uintptr_t>(row) % 16 == 0;
}

/// Calls run(constant N, N numbers, index of the first) for all numbers of a row; N is 1 or, if `wide`, those of a
/// 16-byte pack. Each thread loads several packs ahead; the compiler does not do so because of sums in shared memory.
template <class T, class Run>
__device__ __forceinline__ void for_packs(const T* row, int64_t count, bool wide, Run run) {
  const auto go = [&](auto width) {
    constexpr int N = decltype(width)::value, kAhead = N == 1 ? 8 : 4;
    constexpr int64_t kStep = int64_t{kRowThreads} * N;
    for (int64_t first = int64_t{threadIdx.x} * N; first < count; first += kAhead * kStep) {
      Pack<T, N> packs[kAhead];
#pragma unroll
      for (int u = 0; u < kAhead; ++u)
        if (first + u * kStep < count) packs[u] = load_pack<N>(row + first + u * kStep);
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        float numbers[N];
        unpack(packs[u], numbers);
        if (first + u * kStep < count) run(width, numbers, first + u * kStep);
      }
    }
  };
  if (wide) go(std::integral_constant<int, kVector<T>>{});
  else go(std::integral_constant<int, 1>{});
}

/// Calls f(number, index) for every number of a row.
template <class T, class F>
__device__ __forceinline__ void for_row(const T* row, int64_t count, F f) {
  for_packs(row, count, in_packs(row, count), [&](auto width, const float* numbers, int64_t first) {
#pragma unroll
    for (int j = 0; j < decltype(width)::value; ++j) f(numbers[j], first + j);
  });
}

/// Computes to[index] = f(number, index). `to` may be the row.
template <class T, class F>
__device__ __forceinline__ void map_row(const T* row, float* to, int64_t count, F f) {
  for_packs(row, count, in_packs(row, count) && in_packs(to, count), [&](auto width, float* numbers, int64_t first) {
    constexpr int N = decltype(width)::value;
#pragma unroll
    for (int j = 0; j < N; ++j) numbers[j] = f(numbers[j], first + j);
    constexpr int kStored = N < 4 ? N : 4;
#pragma unroll
    for (int j = 0; j < N; j += kStored)
      store(to + first + j, *reinterpret_cast<const float(*)[kStored]>(numbers + j));
  });
}

/// Returns the block's sum in every thread.
__device__ __forceinline__ uint64_t block_sum(uint64_t x, RowShared& shared) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared.warps[threadIdx.x / 32] = x;
  __syncthreads();
  uint64_t total = 0;
#pragma unroll
  for (int w = 0; w < kRowWarps; ++w) total += shared.warps[w];
  __syncthreads();
  return total;
}

/// Returns the warp's largest number in every lane.
__device__ __forceinline__ uint64_t warp_max(uint64_t x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const uint64_t other = __shfl_xor_sync(0xffffffffu, x, offset);
    x = other > x ? other : x;
  }
  return x;
}

/// Returns the block's largest number in every thread.
__device__ __forceinline__ uint64_t block_max(uint64_t x, RowShared& shared) {
  x = warp_max(x);
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared.warps[threadIdx.x / 32] = x;
  __syncthreads();
  uint64_t largest = 0;
#pragma unroll
  for (int w = 0; w < kRowWarps; ++w) largest = shared.warps[w] > largest ? shared.warps[w] : largest;
  __syncthreads();
  return largest;
}

/// Returns an integer that orders by score and, on ties, the lowest id first.
__device__ __forceinline__ uint64_t ranked(float score, int64_t id) {
  return static_cast<uint64_t>(score_key(score)) << 32 | (0xffffffffu - static_cast<uint32_t>(id));
}
__device__ __forceinline__ float score_of_ranked(uint64_t number) {
  return score_of(static_cast<uint32_t>(number >> 32));
}
__device__ __forceinline__ int64_t id_of_ranked(uint64_t number) {
  return 0xffffffffu - static_cast<uint32_t>(number);
}

/// Returns the largest ranked(score, id) in every thread.
template <class T>
__device__ __forceinline__ uint64_t best_of_row(const T* scores, int64_t count, RowShared& shared) {
  uint64_t best = 0;
  for_row(scores, count, [&](float score, int64_t id) {
    const uint64_t own = ranked(score, id);
    best = own > best ? own : best;
  });
  return block_max(best, shared);
}

/// Returns the largest number of a thread's part of the row; NaN if it contains one, -inf if it is empty.
template <class T>
__device__ __forceinline__ float own_largest(const T* row, int64_t count) {
  float largest = -INFINITY;
  for_row(row, count, [&](float x, int64_t) { asm("max.NaN.f32 %0, %0, %1;" : "+f"(largest) : "f"(x)); });
  return largest;
}

/// The point at which a sum over the row, best scores first, reaches a target.
struct Cut {
  uint32_t key;                     ///< key of the score that reaches it
  uint64_t above;                   ///< sum over better scores
};

/// Finds the bin at which the cumulative sum reaches `target` (the sum over all bins is at least `target`).
/// shared.result gets the index of this bin and the sum before it. Zeroes the bins.
__device__ __forceinline__ void find_bin(uint64_t target, RowShared& shared) {
  constexpr int kEach = kBins / kRowThreads;
  static_assert(kEach == 2);
  __syncthreads();
  const uint64_t first = shared.bins[kEach * threadIdx.x], second = shared.bins[kEach * threadIdx.x + 1];
  uint64_t through = first + second;  // sum over this warp's threads up to this one
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const uint64_t other = __shfl_up_sync(0xffffffffu, through, offset);
    if (lane >= offset) through += other;
  }
  if (lane == 31) shared.warps[warp] = through;
  __syncthreads();
  for (int w = 0; w < warp; ++w) through += shared.warps[w];
  const uint64_t before = through - first - second;
  if (before < target && through >= target) {
    const bool in_first = before + first >= target;
    shared.result[0] = static_cast<uint64_t>(kEach * threadIdx.x + (in_first ? 0 : 1));
    shared.result[1] = in_first ? before : before + first;
  }
  shared.bins[kEach * threadIdx.x] = shared.bins[kEach * threadIdx.x + 1] = 0;
  __syncthreads();
}

/// Returns the bin of a score, best first: 2048 steps of 1/64 below the largest score, down to where weights vanish.
/// Scores spread over many bins, so that few threads add to one bin at a time.
__device__ __forceinline__ uint32_t step_of(float score, float largest) {
  const float below = largest - score;
  return below < 31.98f ? static_cast<uint32_t>(below * 64) : kBins - 1;  // NaN, from two infinities: the last bin
}

/// Finds where the sum of measure(score) reaches `target` (> 0, and at most the sum over the row). No score is NaN.
template <class Measure>
__device__ __forceinline__ Cut find_cut(const float* scores, int64_t count, float largest, uint64_t target,
                                        RowShared& shared, Measure measure) {
  const auto add = [&](uint32_t bin, float score) {
    const uint64_t m = measure(score);
    if (m > 0) atomicAdd(reinterpret_cast<unsigned long long*>(&shared.bins[bin]), static_cast<unsigned long long>(m));
  };
  for (int b = threadIdx.x; b < kBins; b += kRowThreads) shared.bins[b] = 0;
  __syncthreads();
  for_row(scores, count, [&](float score, int64_t) { add(step_of(score, largest), score); });
  find_bin(target, shared);
  const auto step = static_cast<uint32_t>(shared.result[0]);
  Cut cut{0, shared.result[1]};
  // Within the step, a radix search finds the key with digits of 11, 11 and 10 bits, the largest digit first.
  for (int known = 32; known > 0; known = known == 32 ? 21 : known == 21 ? 10 : 0) {
    const int shift = known == 32 ? 21 : known == 21 ? 10 : 0;
    const uint32_t digits = shift == 0 ? 0x3ffu : 0x7ffu;
    for_row(scores, count, [&](float score, int64_t) {
      const uint32_t key = score_key(score);
      if (step_of(score, largest) != step || (known < 32 && (key ^ cut.key) >> known != 0)) return;
      add(digits - (key >> shift & digits), score);
    });
    find_bin(target - cut.above, shared);
    cut.key |= (digits - static_cast<uint32_t>(shared.result[0])) << shift;
    cut.above += shared.result[1];
    __syncthreads();                // all threads have read the result
  }
  return cut;
}

/// A warp's part of the row. The parts are consecutive, so the order of warps is that of ids.
struct WarpPart {
  int64_t begin, end;

  __device__ __forceinline__ explicit WarpPart(int64_t count) {
    const int64_t each = (count + kRowThreads - 1) / kRowThreads * 32;
    begin = static_cast<int64_t>(threadIdx.x / 32) * each;
    end = begin + each < count ? begin + each : count;
  }
};

/// Returns, in every thread, the first id at which the cumulative sum of measure(i) exceeds `target`; the sum over the
/// row must exceed it.
template <class Measure>
__device__ __forceinline__ int64_t find_id(int64_t count, uint64_t target, RowShared& shared, Measure measure) {
  const WarpPart part(count);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint64_t sum = 0;
#pragma unroll 4
  for (int64_t i = part.begin + lane; i < part.end; i += 32) sum += measure(i);
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  __syncthreads();
  if (lane == 0) shared.warps[warp] = sum;
  __syncthreads();
  uint64_t before = 0;
  for (int w = 0; w < warp; ++w) before += shared.warps[w];
  if (before <= target && before + sum > target) {  // this warp's part contains the id
    for (int64_t base = part.begin; base < part.end; base += 32) {
      uint64_t through = base + lane < part.end ? measure(base + lane) : 0;
#pragma unroll
      for (int offset = 1; offset < 32; offset *= 2) {
        const uint64_t other = __shfl_up_sync(0xffffffffu, through, offset);
        if (lane >= offset) through += other;
      }
      const uint32_t beyond = __ballot_sync(0xffffffffu, before + through > target);
      if (beyond != 0) {
        if (lane == 0) shared.result[0] = static_cast<uint64_t>(base + __ffs(static_cast<int>(beyond)) - 1);
        break;
      }
      before += __shfl_sync(0xffffffffu, through, 31);
    }
  }
  __syncthreads();
  const auto id = static_cast<int64_t>(shared.result[0]);
  __syncthreads();
  return id;
}

/// Returns the `ties`-th (from 1) id whose score has this key.
__device__ __forceinline__ int64_t last_tie(const float* scores, int64_t count, uint32_t key, uint64_t ties,
                                            RowShared& shared) {
  return find_id(count, ties - 1, shared, [&](int64_t i) { return uint64_t{score_key(scores[i]) == key}; });
}

/// Log softmax of a row of logits with the same bits as on the CPU.
struct RowSoftmax {
  float largest, log_total = 0;

  template <class T>
  __device__ __forceinline__ RowSoftmax(const T* logits, int64_t count, float largest_logit, RowShared& shared)
      : largest(largest_logit) {
    if (!is_finite(largest)) return;
    uint64_t weight = 0;
    for_row(logits, count, [&](float logit, int64_t) { weight += softmax_weight(logit, largest); });
    log_total = log_of_weights(block_sum(weight, shared));
  }
  __device__ __forceinline__ float operator()(float logit) const { return (logit - largest) - log_total; }
};

/// Applies the repetition penalty and bars end tokens for the text in `slot`; score(logit, penalised) computes the
/// score of a logit. An id that occurs several times is written several times with the same value.
template <class T, class Score>
__device__ __forceinline__ void apply_rules(const RuleArrays& rules, const TextArrays& texts, int64_t slot,
                                            const T* logits, float* scores, int64_t count, Score score) {
  const int32_t* ids = texts.ids + slot * texts.maximum;
  const int32_t length = texts.lengths[slot];
  __syncthreads();
  if (rules.repetition_penalty != 1)
    for (int i = threadIdx.x; i < length; i += kRowThreads)
      if (ids[i] >= 0 && ids[i] < count) scores[ids[i]] = score(to_float(logits[ids[i]]), true);
  __syncthreads();
  if (rules.ends_barred(length, texts.prompt_lengths[slot]))
    for (int64_t i = threadIdx.x; i < rules.end_count; i += kRowThreads)
      if (rules.ends[i] >= 0 && rules.ends[i] < count) scores[rules.ends[i]] = -INFINITY;
  __syncthreads();
}

}  // namespace blipft
