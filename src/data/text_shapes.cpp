// Text shapes; see text_shapes.h.
#include "data/text_shapes.h"

#include <bit>
#include <numeric>

#include "blipft/data.h"

namespace blipft {

namespace {

constexpr int64_t kLengthMultiple = 8;

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

/// A step needs one token to see and one to predict.
int64_t longest_text(const DataSection& data) { return std::max<int64_t>(data.max_text_tokens, 2); }

/// Whether texts are packed: asked for, or left to us and the loss is a sum over real tokens, whoever shares a
/// micro-batch.
bool packs_text(const Config& config) {
  if (config.data.text_padding == "packed") return true;
  return config.data.text_padding == "auto" && config.train.loss_normalization == "tokens" &&
         !config.train.loss_on_padding;
}

bool holds(const TextShape& shape, std::span<const BatchSample> samples, int64_t batch_size) {
  if (!shape.packed())
    return std::all_of(samples.begin(), samples.end(),
                       [&](const BatchSample& sample) { return sample.text.size() <= shape.tokens; });
  for (; !samples.empty(); samples = samples.subspan(static_cast<size_t>(batch_size))) {
    int64_t rows = 0;
    for (const BatchSample& sample : samples.first(static_cast<size_t>(batch_size)))
      rows += rows_of_text(sample.text.size());
    if (rows > shape.packed_rows) return false;
  }
  return true;
}

}  // namespace

std::vector<TextShape> possible_text_shapes(const Config& config) {
  const int64_t longest = longest_text(config.data), batch = config.train.batch_size;
  std::vector<TextShape> shapes;
  if (packs_text(config)) {
    // Each shape is a program of its own: at most 32 of them.
    const int64_t most = batch * longest;
    const auto part = std::bit_ceil(static_cast<uint64_t>((most + 31) / 32));
    const int64_t multiple = std::max<int64_t>(8, static_cast<int64_t>(part));
    for (int64_t rows = round_up(batch + 1, multiple); rows < most; rows += multiple) shapes.push_back({longest, rows});
    shapes.push_back({longest, most});
    return shapes;
  }
  if (config.data.text_padding != "max")
    for (int64_t length = kLengthMultiple; length < longest; length += kLengthMultiple) shapes.push_back({length, 0});
  shapes.push_back({longest, 0});
  return shapes;
}

TextShape smallest_shape(std::span<const TextShape> shapes, std::span<const BatchSample> samples, int64_t batch_size) {
  return *std::find_if(shapes.begin(), shapes.end() - 1,
                       [&](const TextShape& shape) { return holds(shape, samples, batch_size); });
}

std::vector<size_t> balanced_order(std::span<const int64_t> lengths, int64_t groups) {
  const size_t count = lengths.size(), many = static_cast<size_t>(groups);
  std::vector<size_t> longest_first(count), order(count);
  std::iota(longest_first.begin(), longest_first.end(), size_t{0});
  std::stable_sort(longest_first.begin(), longest_first.end(),
                   [&](size_t a, size_t b) { return lengths[a] > lengths[b]; });
  for (size_t i = 0; i < count; ++i) {
    const size_t round = i / many, group = round % 2 == 0 ? i % many : many - 1 - i % many;
    order[group * (count / many) + round] = longest_first[i];
  }
  return order;
}

}  // namespace blipft
