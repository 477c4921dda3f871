// The training samples of a run; see sample_viewer.h.
#include "show/sample_viewer.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/process_info.h"
#include "blipft/error.h"
#include "engine/settings.h"
#include "loading/random_order.h"
#include "loading/sample_text.h"

namespace blipft {

namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max() / 2;

}  // namespace

SampleViewer::SampleViewer(const Config& config)
    : config_(config), inputs_(make_model(config)->inputs()),
      data_(open_run_samples(config, inputs_, machine_cores())) {
  const int64_t limit = config.data.num_train_samples, all = data_.training.dataset->size();
  size_ = limit > 0 ? std::min(limit, all) : all;
}

ShownSample SampleViewer::read(int64_t index) const {
  ShownSample shown{data_.training.dataset->read(index), {}, {}};
  const auto tokenized = [&](int64_t limit, const InstructionReader& instructions) {
    return tokenize_answers(shown.sample, *data_.tokenizer, limit, inputs_.text.vocabulary, instructions, inputs_.decoder_start,
                            data_.training.pictures.get())
        .drawn(static_cast<uint64_t>(config_.steps.seed), 0);
  };
  shown.text = tokenized(config_.data.max_text_tokens, data_.instructions);
  const bool may_be_cut = shown.text.cut || (data_.instructions.tokenizer &&
                                             static_cast<int64_t>(shown.text.instruction.size()) == data_.instructions.max_tokens);
  InstructionReader whole = data_.instructions;
  whole.max_tokens = kNoLimit;
  shown.whole = may_be_cut ? tokenized(kNoLimit, whole) : shown.text;
  return shown;
}

std::vector<int64_t> SampleViewer::choose(int64_t count, bool random) const {
  std::vector<int64_t> order(static_cast<size_t>(random ? size_ : std::min(count, size_)));
  std::iota(order.begin(), order.end(), 0);
  if (random) shuffle(order, static_cast<uint64_t>(config_.steps.seed), RandomOrder::epoch);
  order.resize(static_cast<size_t>(std::min(count, size_)));
  return order;
}

Image SampleViewer::picture(const Dataset::Sample& sample) const {
  BLIPFT_USER_CHECK(sample.picture, sample.name, ": found no picture, the model reads one with each text");
  return decode_image(sample.picture->data(), sample.picture->size(), sample.name,
                      picture_decoding(config_));
}

}  // namespace blipft
