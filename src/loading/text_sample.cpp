// Estimates from a few of many texts; see text_sample.h.
#include "loading/text_sample.h"

#include <algorithm>
#include <span>

#include "blipft/error.h"
#include "loading/sample_text.h"
#include "loading/text_shapes.h"

namespace blipft {

namespace {

constexpr size_t kSteps = 16;              // number of steps in the mean

}  // namespace

std::vector<int64_t> sampled_text_lengths(const LoadingSettings& loading, const Dataset& dataset, const Tokenizer& tokenizer,
                                          int64_t vocabulary, int64_t maximum) {
  const int64_t all = dataset.size(), count = std::min(all, maximum);
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < count; ++i) {
    try {
      const Dataset::Prompt prompt = dataset.read_prompt(i * all / count);
      if (prompt.references.empty()) continue;
      Dataset::Sample sample{prompt.name, {{prompt.references.front(), true}}, std::nullopt};
      if (!prompt.text.empty()) sample.segments.insert(sample.segments.begin(), {prompt.text, false});
      lengths.push_back(tokenize(sample, tokenizer, loading.data.max_text_tokens, vocabulary).size());
    } catch (const UserError&) {           // a run tells of it
    }
  }
  return lengths;
}

TextShape mean_text_shape(const LoadingSettings& loading, const std::vector<int64_t>& lengths,
                          const std::vector<TextShape>& shapes) {
  TextShape mean = shapes.back();
  if (lengths.empty()) return mean;
  const bool packed = mean.packed();
  const auto batch = static_cast<size_t>(loading.steps.batch_size);
  const size_t of_step = batch * static_cast<size_t>(std::max<int64_t>(1, loading.steps.accumulate_grad_batches));
  const auto size = [&](const TextShape& shape) { return packed ? shape.packed_rows : shape.tokens; };
  int64_t sum = 0;
  std::vector<int64_t> step(of_step);
  for (size_t first = 0; first < kSteps * of_step; first += of_step) {
    for (size_t i = 0; i < of_step; ++i) step[i] = lengths[(first + i) % lengths.size()];
    if (balances_micro_batches(loading)) {
      const std::vector<size_t> order = balanced_order(step, loading.steps.accumulate_grad_batches);
      std::vector<int64_t> dealt;
      for (const size_t i : order) dealt.push_back(step[i]);
      step = std::move(dealt);
    }
    const int64_t need = needed_size(packed, step, static_cast<int64_t>(batch));
    sum += size(*std::find_if(shapes.begin(), shapes.end() - 1,
                              [&](const TextShape& shape) { return need <= size(shape); }));
  }
  (packed ? mean.packed_rows : mean.tokens) = (sum + static_cast<int64_t>(kSteps) / 2) / static_cast<int64_t>(kSteps);
  return mean;
}

}  // namespace blipft
