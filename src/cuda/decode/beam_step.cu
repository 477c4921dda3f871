// One step of beam search: a kernel that finds the best candidates of each row of logits, one block a row, and a kernel
// that decides over each text, one block a text, with the book-keeping that the CPU backend has (ops/beam_search.h).
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
  const int32_t* texts;             ///< of each row, or of each B rows
  float* scores;                    ///< [rows, V]
  BeamCandidate* lists;             ///< [rows, candidates] in any order; a first beam of -1: the row leaves no choice
  int64_t count, rows_of_text;

  __device__ __forceinline__ int64_t text_of(int64_t group) const { return texts ? texts[group] : group; }
};

/// The `wanted` best of a row (at most kRowThreads) through put(place, number of ranked()), best first. Whatever is among them is
/// no worse than the wanted-th best of the threads' own best: few are. False, and nothing is put, where more are than there is
/// room for, as of many equal scores.
template <class Put>
__device__ __forceinline__ bool put_best(const float* scores, int64_t count, int wanted, RowShared& shared, Put put) {
  constexpr int kRoom = kBins - kRowThreads;
  uint64_t* const best = shared.bins;
  uint64_t* const good = shared.bins + kRowThreads;
  const auto before = [](const uint64_t* numbers, int n, uint64_t own) {
    int place = 0;
#pragma unroll 8
    for (int i = 0; i < n; ++i) place += numbers[i] > own;
    return place;
  };
  uint64_t own = 0;
  for_row(scores, count, [&](float score, int64_t id) {
    const uint64_t number = ranked(score, id);
    own = number > own ? number : own;
  });
  __syncthreads();
  best[threadIdx.x] = own;
  if (threadIdx.x < 2) shared.result[threadIdx.x] = 0;
  __syncthreads();
  if (before(best, kRowThreads, own) == wanted - 1) shared.result[0] = own;
  __syncthreads();
  const uint64_t least = shared.result[0];
  for_row(scores, count, [&](float score, int64_t id) {
    const uint64_t number = ranked(score, id);
    if (number < least) return;
    const auto at = atomicAdd(reinterpret_cast<unsigned long long*>(&shared.result[1]), 1ull);
    if (at < kRoom) good[at] = number;
  });
  __syncthreads();
  const auto n = static_cast<int64_t>(shared.result[1]);
  if (n > kRoom) return false;
  if (threadIdx.x < n) {
    const int place = before(good, static_cast<int>(n), good[threadIdx.x]);
    if (place < wanted) put(place, good[threadIdx.x]);
  }
  return true;
}

/// One block a row of logits: its best candidates.
template <class T>
__global__ void __launch_bounds__(kRowThreads) row_candidates_kernel(const T* __restrict__ all_logits, StepArgs args) {
  __shared__ RowShared shared;
  __shared__ int found;
  const BeamArrays& a = args.beams;
  const int64_t row = blockIdx.x, text = args.text_of(row / args.rows_of_text), beam = row % args.rows_of_text;
  if (!a.steps(text)) return;
  const int64_t slot = a.slot_of(text) + beam, count = args.count;
  if (a.texts.lengths[slot] >= a.texts.limit(slot)) return;
  const T* const logits = all_logits + row * count;
  float* const scores = args.scores + row * count;
  BeamCandidate* const list = args.lists + row * a.candidates;
  const RowSoftmax log_softmax(logits, count, shared);
  if (!is_finite(log_softmax.largest)) {
    if (threadIdx.x == 0) list[0].beam = -1;
    return;
  }
  const float before = a.first ? 0 : a.scores[slot];
  const auto score_of_logit = [&](float logit, bool penalised) {
    const float score = log_softmax(logit);
    return (penalised ? a.rules.penalised(score) : score) + before;
  };
  map_row(logits, scores, count, [&](float logit, int64_t) { return score_of_logit(logit, false); });
  apply_rules(a.rules, a.texts, slot, logits, scores, count, score_of_logit);

  const auto put = [&](int place, uint64_t number) {
    list[place] = {score_of_ranked(number), static_cast<int32_t>(beam), static_cast<int32_t>(id_of_ranked(number))};
  };
  if (put_best(scores, count, static_cast<int>(a.candidates), shared, put)) return;
  const float largest = score_of_ranked(best_of_row(scores, count, shared));
  const auto wanted = static_cast<uint64_t>(a.candidates);
  const Cut cut = find_cut(scores, count, largest, wanted, shared, [](float) { return uint64_t{1}; });
  const int64_t last_id = last_tie(scores, count, cut.key, wanted - cut.above, shared);
  if (threadIdx.x == 0) found = 0;
  __syncthreads();
  for_row(scores, count, [&](float score, int64_t i) {
    const uint32_t key = score_key(score);
    if (key > cut.key || (key == cut.key && i <= last_id))
      list[atomicAdd(&found, 1)] = {score, static_cast<int32_t>(beam), static_cast<int32_t>(i)};
  });
}

/// One block a text.
__global__ void __launch_bounds__(kTextThreads) beam_text_kernel(StepArgs args) {
  __shared__ BeamCandidate best[BeamStep::kMostCandidates];
  __shared__ BeamPlan plan;
  const BeamArrays& a = args.beams;
  const int64_t text = args.text_of(blockIdx.x), first_row = blockIdx.x * args.rows_of_text;
  if (!a.steps(text)) return;
  const int64_t length = a.texts.lengths[a.slot_of(text)];
  const BeamCandidate* const all = args.lists + first_row * a.candidates;
  const bool full = length >= a.texts.limit(a.slot_of(text));
  bool choice = true;
  for (int64_t b = 0; b < args.rows_of_text && !full; ++b) choice = choice && all[b * a.candidates].beam >= 0;
  __syncthreads();                  // all have read the text's state before one changes it
  if (full || !choice) {
    if (threadIdx.x == 0) end_beams(a, text, full ? kLengthReached : kNoChoice);
    return;
  }
  // A candidate's place is the number of those before it: their order is one of all, so that each place has one.
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
  const int64_t columns = a.texts.most > a.places ? a.texts.most : a.places;
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
  StepArgs step{BeamArrays::of(args), args.texts.as<const int32_t>(), args.candidates.as<float>(),
                reinterpret_cast<BeamCandidate*>(launch.scratch), args.logits.cols(), args.first ? 1 : args.beams};
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
