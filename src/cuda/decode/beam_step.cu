// One step of beam search in two kernels: one block per row of logits finds the row's best candidates; then one block
// per text updates the text, with the code that the CPU backend uses (ops/beam_search.h).
#include "blipft/decode_ops.h"
#include "cuda/cuda_ops.h"
#include "cuda/decode/row.cuh"
#include "ops/beam_search.h"
#include "ops/ops_check.h"

namespace blipft {
namespace {

constexpr int kTextThreads = 256;

struct StepArgs {
  BeamArrays beams;
  const int32_t* texts;             ///< of each row, or of each group of B rows
  float* scores;                    ///< [rows, V]
  BeamCandidate* lists;             ///< [rows, candidates] in any order; beam -1 in the first: the row allows no choice
  int64_t count, rows_of_text;

  __device__ __forceinline__ int64_t text_of(int64_t group) const { return texts ? texts[group] : group; }
};

/// The end tokens that a text must not have yet, if they are few.
struct BarredEnds {
  static constexpr int kMax = 4;
  int ids[kMax], count = 0;        ///< if `count` exceeds kMax, `ids` is incomplete

  __device__ __forceinline__ BarredEnds(const RuleArrays& rules, const TextArrays& texts, int64_t slot) {
    if (rules.ends_barred(texts.lengths[slot], texts.prompt_lengths[slot])) count = static_cast<int>(rules.end_count);
#pragma unroll
    for (int i = 0; i < kMax; ++i) ids[i] = i < count ? rules.ends[i] : -1;
  }
  __device__ __forceinline__ bool has(int64_t id) const {
    bool found = false;
#pragma unroll
    for (int i = 0; i < kMax; ++i) found = found || ids[i] == static_cast<int>(id);
    return found;
  }
};

/// Returns how many of `numbers` are larger than `own`.
__device__ __forceinline__ int larger_ones(const uint64_t* numbers, int n, uint64_t own) {
  int place = 0;
#pragma unroll 8
  for (int i = 0; i < n; ++i) place += numbers[i] > own;
  return place;
}

/// Returns, in every thread, a number that at least `wanted` numbers of the row reach: the wanted-th largest of the
/// warps' maxima or, if there are fewer warps, of the threads' maxima `own`; -inf if there are fewer.
__device__ __forceinline__ float reached_by(int wanted, float own, RowShared& shared) {
  const bool of_warps = wanted <= kRowWarps;
  uint64_t number = ranked(own, threadIdx.x);  // distinguishes equal numbers
  if (of_warps) number = warp_max(number);
  const int place = static_cast<int>(threadIdx.x) / (of_warps ? 32 : 1), n = of_warps ? kRowWarps : kRowThreads;
  const bool writes = !of_warps || threadIdx.x % 32 == 0;
  __syncthreads();
  if (writes) shared.bins[place] = number;
  if (threadIdx.x == 0) shared.result[0] = ranked(-INFINITY, 0);
  __syncthreads();
  if (writes && larger_ones(shared.bins, n, number) == wanted - 1) shared.result[0] = number;
  __syncthreads();
  return score_of_ranked(shared.result[0]);
}

/// Passes the `wanted` (at most kRowThreads) best score(x, id) over the x of a row to put(rank, ranked() number), best
/// first. They must be among the x >= `minimum`, of which there should be few. Returns false, without a call, if these
/// exceed the buffer.
template <class T, class Score, class Put>
__device__ __forceinline__ bool put_best(const T* row, int64_t count, int wanted, float minimum, RowShared& shared, Score score,
                                         Put put) {
  constexpr int kRoom = kBins;
  __syncthreads();
  if (threadIdx.x == 0) shared.result[0] = 0;
  __syncthreads();
  for_packs(row, count, in_packs(row, count), [&](auto width, const float* numbers, int64_t first) {
    constexpr int N = decltype(width)::value;
    float largest = numbers[0];
#pragma unroll
    for (int j = 1; j < N; ++j) largest = fmaxf(largest, numbers[j]);
    if (largest < minimum) return;
#pragma unroll 1
    for (int64_t id = first; id < first + N; ++id) {  // rare: unrolling it would cost registers
      const float x = to_float(row[id]);
      if (x < minimum) continue;
      const auto at = atomicAdd(reinterpret_cast<unsigned long long*>(&shared.result[0]), 1ull);
      if (at < kRoom) shared.bins[at] = ranked(score(x, id), id);
    }
  });
  __syncthreads();
  const auto n = static_cast<int64_t>(shared.result[0]);
  if (n > kRoom) return false;
  for (int64_t i = threadIdx.x; i < n; i += kRowThreads) {
    const int place = larger_ones(shared.bins, static_cast<int>(n), shared.bins[i]);
    if (place < wanted) put(place, shared.bins[i]);
  }
  return true;
}

/// A row of logits, the parameters of its scores, and the list for its candidates.
template <class T>
struct CandidateRow {
  const T* logits;
  float* scores;                    ///< buffer for scores, if they are needed in memory
  int64_t count, slot;
  int wanted;
  float before;                     ///< score of the beam before this step
  int32_t beam;
  BeamCandidate* list;

  __device__ __forceinline__ void put(int place, uint64_t number) const {
    list[place] = {score_of_ranked(number), beam, static_cast<int32_t>(id_of_ranked(number))};
  }
};

/// Finds the candidates of a row by writing its scores to memory: for rules that change scores of arbitrary ids, or
/// many ties.
template <class T>
__device__ __noinline__ void find_among_stored(const BeamArrays& a, const CandidateRow<T>& row, const RowSoftmax& log_softmax,
                                               RowShared& shared) {
  __shared__ int found;
  float* const scores = row.scores;
  const int64_t count = row.count;
  const auto score_of_logit = [&](float logit, bool penalised) {
    const float score = log_softmax(logit);
    return (penalised ? a.rules.penalised(score) : score) + row.before;
  };
  map_row(row.logits, scores, count, [&](float logit, int64_t) { return score_of_logit(logit, false); });
  apply_rules(a.rules, a.texts, row.slot, row.logits, scores, count, score_of_logit);
  const auto put = [&](int place, uint64_t number) { row.put(place, number); };
  const float minimum = reached_by(row.wanted, own_largest(scores, count), shared);
  if (put_best(scores, count, row.wanted, minimum, shared, [](float score, int64_t) { return score; }, put)) return;
  const float largest = score_of_ranked(best_of_row(scores, count, shared));
  const auto wanted = static_cast<uint64_t>(row.wanted);
  const Cut cut = find_cut(scores, count, largest, wanted, shared, [](float) { return uint64_t{1}; });
  const int64_t last_id = last_tie(scores, count, cut.key, wanted - cut.above, shared);
  if (threadIdx.x == 0) found = 0;
  __syncthreads();
  for_row(scores, count, [&](float score, int64_t i) {
    const uint32_t key = score_key(score);
    if (key > cut.key || (key == cut.key && i <= last_id)) row.put(atomicAdd(&found, 1), ranked(score, i));
  });
}

/// Finds the best candidates of each row of logits; one block per row.
template <class T>
__global__ void __launch_bounds__(kRowThreads, 1) row_candidates_kernel(const T* __restrict__ all_logits, StepArgs args) {
  __shared__ RowShared shared;
  const BeamArrays& a = args.beams;
  const int64_t number = blockIdx.x, text = args.text_of(number / args.rows_of_text), beam = number % args.rows_of_text;
  if (!a.steps(text)) return;
  const int64_t slot = a.slot_of(text) + beam, count = args.count;
  if (a.texts.lengths[slot] >= a.texts.limit(slot)) return;
  const CandidateRow<T> row{.logits = all_logits + number * count, .scores = args.scores + number * count,
                            .count = count, .slot = slot, .wanted = static_cast<int>(a.candidates),
                            .before = a.first ? 0 : a.scores[slot], .beam = static_cast<int32_t>(beam),
                            .list = args.lists + number * a.candidates};
  const float own = own_largest(row.logits, count);
  const RowSoftmax log_softmax(row.logits, count, score_of_ranked(block_max(ranked(own, 0), shared)), shared);
  if (!is_finite(log_softmax.largest)) {
    if (threadIdx.x == 0) row.list[0].beam = -1;
    return;
  }
  const BarredEnds barred(a.rules, a.texts, slot);
  const auto score = [&](float logit, int64_t id) { return barred.has(id) ? -INFINITY : log_softmax(logit) + row.before; };
  const auto put = [&](int place, uint64_t best) { row.put(place, best); };
  // If scores depend only on logit and id, they are not stored. At least row.wanted logits that are not barred ends
  // reach `minimum`. A smaller logit may have the same score due to the rounding of three sums, each by at most half an
  // ulp of its addends.
  const int wanted = row.wanted + barred.count;
  if (a.rules.repetition_penalty == 1 && barred.count <= BarredEnds::kMax && wanted <= kRowThreads) {
    const float minimum = reached_by(wanted, own, shared);
    const float sums = log_softmax.largest - minimum + fabsf(log_softmax.log_total) + fabsf(row.before);
    if (put_best(row.logits, count, row.wanted, minimum - sums * 0x1p-20f, shared, score, put)) return;
  }
  find_among_stored(a, row, log_softmax, shared);
}

/// One block per text.
__global__ void __launch_bounds__(kTextThreads) beam_text_kernel(StepArgs args) {
  __shared__ BeamCandidate best[BeamStep::kMaxCandidates];
  __shared__ BeamPlan plan;
  const BeamArrays& a = args.beams;
  const int64_t text = args.text_of(blockIdx.x), first_row = blockIdx.x * args.rows_of_text;
  if (!a.steps(text)) return;
  const int64_t length = a.texts.lengths[a.slot_of(text)];
  const BeamCandidate* const all = args.lists + first_row * a.candidates;
  const bool full = length >= a.texts.limit(a.slot_of(text));
  bool choice = true;
  for (int64_t b = 0; b < args.rows_of_text && !full; ++b) choice = choice && all[b * a.candidates].beam >= 0;
  __syncthreads();                  // all threads have read the text's state before it changes
  if (full || !choice) {
    if (threadIdx.x == 0) end_beams(a, text, full ? kLengthReached : kNoChoice);
    return;
  }
  // The rank of a candidate is the number of candidates before it; the order is total, so ranks are unique.
  const int64_t n = args.rows_of_text * a.candidates;
  for (int64_t i = threadIdx.x; i < n; i += kTextThreads) {
    const BeamCandidate own = all[i];
    int64_t place = 0;
    for (int64_t j = 0; j < n && place < a.candidates; ++j) place += all[j].before(own);
    if (place < a.candidates) best[place] = own;
  }
  __syncthreads();
  if (threadIdx.x == 0) plan_beams(a, text, best, length, plan);
  __syncthreads();
  const int64_t columns = a.texts.maximum > a.positions ? a.texts.maximum : a.positions;
  for (int64_t column = threadIdx.x; column < columns; column += kTextThreads)
    move_beams(a, text, best, length, plan, column);
  if (threadIdx.x < a.beams) finish_beam(a, text, threadIdx.x, length, plan);
}

}  // namespace

void CudaOps::beam_step(const BeamStep& args, Stream stream) {
  check_args(args);
  const int64_t rows = args.logits.rows();
  if (rows == 0) return;
  const LaunchContext launch = context(stream);
  StepArgs step{.beams = BeamArrays::of(args), .texts = args.texts.as<const int32_t>(),
                .scores = args.candidates.as<float>(), .lists = reinterpret_cast<BeamCandidate*>(launch.scratch),
                .count = args.logits.cols(), .rows_of_text = args.first ? 1 : args.beams};
  const int64_t bytes = rows * step.beams.candidates * static_cast<int64_t>(sizeof(BeamCandidate));
  BLIPFT_CHECK(bytes <= launch.scratch_bytes, "beam_step of ", rows, " rows needs ", bytes,
               " bytes of the workspace, there are ", launch.scratch_bytes);
  dispatch_float(args.logits.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    row_candidates_kernel<T><<<static_cast<unsigned>(rows), kRowThreads, 0, launch.stream>>>(
        args.logits.as<const T>(), step);
  });
  BLIPFT_CUDA_LAUNCHED("row_candidates_kernel");
  beam_text_kernel<<<static_cast<unsigned>(rows / step.rows_of_text), kTextThreads, 0, launch.stream>>>(step);
  BLIPFT_CUDA_LAUNCHED("beam_text_kernel");
}

}  // namespace blipft
