// Cross-entropy of rows of logits, and the weights that turn its sum into a mean.
#include <cmath>

#include "cpu/cpu_ops.h"
#include "ops/ops_check.h"

namespace blipft::cpu {
namespace {

/// Applies the cap to a row of logits; slope = d(capped) / d(logits).
void cap_logits(const CrossEntropy& args, float* logits, float* slope) {
  const int64_t vocabulary = args.logits.cols();
  for (int64_t c = 0; c < vocabulary; ++c) {
    const float t = std::tanh(logits[c] / args.cap);
    logits[c] = args.cap * t;
    slope[c] = 1 - t * t;
  }
  round_to(args.logits.dtype, logits, vocabulary);
}

}  // namespace

void CpuOps::cross_entropy(const CrossEntropy& args, Stream) {
  check_args(args);
  const int64_t rows = args.logits.rows(), vocabulary = args.logits.cols();
  const int32_t* labels = args.labels.as<const int32_t>();
  const float weight = args.weight.as<const float>()[0];
  for (int64_t r = 0; r < rows; ++r)
    BLIPFT_CHECK(labels[r] < vocabulary, "label ", labels[r], " is outside of the ", vocabulary, " logits");
  for_each(rows, [&](int64_t r) {
    float* logits = thread_buffer(0, vocabulary);
    if (labels[r] < 0) {
      std::fill_n(logits, vocabulary, 0.0f);
      store(logits, args.logits, r * vocabulary, vocabulary);
      args.row_loss.as<float>()[r] = 0;
      return;
    }
    load(args.logits, r * vocabulary, vocabulary, logits);
    float* slope = args.cap > 0 ? thread_buffer(1, vocabulary) : nullptr;
    if (slope) cap_logits(args, logits, slope);
    const float highest = *std::max_element(logits, logits + vocabulary), target = logits[labels[r]];
    float total = 0;
    for (int64_t c = 0; c < vocabulary; ++c) logits[c] = std::exp(logits[c] - highest);
#pragma omp simd reduction(+ : total)
    for (int64_t c = 0; c < vocabulary; ++c) total += logits[c];
    args.row_loss.as<float>()[r] = weight * (highest + std::log(total) - target);
    for (int64_t c = 0; c < vocabulary; ++c) logits[c] *= weight / total;
    logits[labels[r]] -= weight;
    for (int64_t c = 0; slope && c < vocabulary; ++c) logits[c] *= slope[c];
    store(logits, args.logits, r * vocabulary, vocabulary);
  });
}

void CpuOps::loss_weights(const Tensor& denominators, const Tensor& weights, float scale, Stream) {
  check_loss_weights(denominators, weights, scale);
  for (int64_t i = 0; i < weights.numel(); ++i) {
    const float denominator = denominators.as<const float>()[i];
    weights.as<float>()[i] = denominator == 0 ? 0.0f : 1.0f / (denominator * scale);
  }
}

}  // namespace blipft::cpu
