// Text shapes; see text_shapes.h.
#include "loading/text_shapes.h"

#include <bit>
#include <limits>
#include <numeric>

#include "blipft/loading.h"

namespace blipft {

namespace {

constexpr int64_t kLengthMultiple = 8;

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

int64_t divided_up(int64_t value, int64_t by) { return (value + by - 1) / by; }

/// A step needs one token to see and one to predict.
int64_t longest_text(const LoadingSettings& loading) { return std::max<int64_t>(loading.data.max_text_tokens, 2); }

}  // namespace

bool packs_text(const LoadingSettings& loading) {
  if (loading.data.text_padding == TextPadding::packed) return true;
  return loading.data.text_padding == TextPadding::automatic && !loading.steps.loss_on_padding;
}

bool balances_micro_batches(const LoadingSettings& loading) {
  return packs_text(loading) && loading.steps.accumulate_grad_batches > 1 &&
         loading.steps.loss_normalization == LossNormalization::tokens;
}

int64_t needed_size(bool packed, std::span<const int64_t> lengths, int64_t batch_size) {
  if (!packed) return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
  int64_t maximum = 0;
  for (; !lengths.empty(); lengths = lengths.subspan(static_cast<size_t>(batch_size))) {
    int64_t rows = 0;
    for (const int64_t length : lengths.first(static_cast<size_t>(batch_size))) rows += rows_of_text(length);
    maximum = std::max(maximum, rows);
  }
  return maximum;
}

void TextNeed::include(const TextNeed& other) {
  text = std::max(text, other.text), source = std::max(source, other.source);
  pictures = {std::max(pictures.rows, other.pictures.rows), std::max(pictures.count, other.pictures.count),
              std::max(pictures.largest, other.pictures.largest), std::max(pictures.windows, other.pictures.windows)};
}

PictureShape pictures_of(const std::vector<PictureSegment>& pictures, const PatchInputs& patches) {
  PictureShape all;
  for (const PictureSegment& picture : pictures) {
    all.rows += picture.cells();
    all.largest = std::max(all.largest, picture.cells());
    ++all.count;
    if (patches.window > 0) all.windows += divided_up(picture.height, patches.window) * divided_up(picture.width, patches.window);
  }
  return all;
}

namespace {

/// Returns the pictures and windows, of the largest size, that `rows` rows fill.
PictureShape of_rows(int64_t rows, int64_t largest, const PatchInputs& patches, int64_t (*divided)(int64_t, int64_t)) {
  PictureShape full;
  if (largest > 0) full.count = divided(rows, largest);
  if (patches.window > 0) full.windows = divided(rows, patches.window * patches.window);
  return full;
}

}  // namespace

PictureShape needed_pictures(std::span<const PictureShape> samples, int64_t batch_size, const PatchInputs& patches, int64_t largest) {
  TextNeed maximum;
  for (; !samples.empty(); samples = samples.subspan(static_cast<size_t>(batch_size))) {
    PictureShape all;
    for (const PictureShape& one : samples.first(static_cast<size_t>(batch_size)))
      all = {all.rows + one.rows, all.count + one.count, std::max(all.largest, one.largest), all.windows + one.windows};
    const PictureShape full = of_rows(all.rows, largest, patches, [](int64_t rows, int64_t each) { return rows / each; });
    all.count -= full.count, all.windows -= full.windows;
    maximum.include({0, 0, all});
  }
  return maximum.pictures;
}

PictureShape padded_pictures(PictureShape need, const PatchInputs& patches, int64_t multiple) {
  if (patches.picture_side > 0) multiple = patches.picture_side * patches.picture_side;
  need.rows = round_up(std::max<int64_t>(need.rows, 1), multiple);
  if (need.largest == 0) need.largest = multiple;
  const PictureShape full = of_rows(need.rows, need.largest, patches, divided_up);
  need.count += full.count, need.windows += full.windows;
  return need;
}

PictureShape largest_picture(const PatchInputs& patches, int64_t max_cells) {
  return {max_cells, 1, max_cells, patches.window > 0 ? max_cells : 0};  // a window has at least one row
}

TextShape largest_shape(const LoadingSettings& loading, const PatchInputs& patches, int64_t max_cells) {
  const int64_t count = std::max<int64_t>(loading.data.max_pictures, 1), batch = loading.steps.batch_size;
  TextShape shape{longest_text(loading) + count * max_cells};
  if (packs_text(loading)) shape.packed_rows = batch * shape.tokens;
  const PictureShape one = largest_picture(patches, max_cells);
  shape.pictures = padded_pictures({batch * count * one.rows, batch * count, one.largest, batch * count * one.windows}, patches, 1);
  return shape;
}

TextNeed size_of(const TextShape& shape, const PatchInputs& patches) {
  PictureShape pictures = shape.pictures;
  const PictureShape full = of_rows(pictures.rows, pictures.largest, patches, divided_up);
  pictures.count -= full.count, pictures.windows -= full.windows;
  return shape.packed() ? TextNeed{shape.packed_rows, shape.packed_source_rows, pictures}
                        : TextNeed{shape.tokens, shape.source_tokens, pictures};
}

bool holds(const TextShape& shape, const TextNeed& need, const PatchInputs& patches) {
  const TextNeed size = size_of(shape, patches);
  return need.text <= size.text && (shape.source_tokens == 0 || need.source <= size.source) &&
         need.pictures.rows <= size.pictures.rows && need.pictures.count <= size.pictures.count &&
         need.pictures.largest <= size.pictures.largest && need.pictures.windows <= size.pictures.windows;
}

// best[j]: minimum sum for the first j + 1 sizes if size j is chosen. Each round allows one more chosen size.
std::vector<int64_t> min_padded_sizes(const std::map<int64_t, int64_t>& counts, size_t maximum) {
  std::vector<int64_t> sizes, below{0};    // below[i]: number of needs of the first i sizes
  for (const auto& [size, count] : counts) {
    sizes.push_back(size);
    below.push_back(below.back() + count);
  }
  const size_t n = sizes.size();
  if (n <= maximum) return sizes;
  std::vector<int64_t> best(n);
  for (size_t j = 0; j < n; ++j) best[j] = sizes[j] * below[j + 1];
  std::vector<std::vector<size_t>> before;  // [round][j]: index of the size chosen before j
  for (size_t clusters = 1; clusters < maximum; ++clusters) {
    std::vector<int64_t> better(n, std::numeric_limits<int64_t>::max());
    std::vector<size_t> from(n, 0);
    for (size_t j = clusters; j < n; ++j)
      for (size_t i = clusters - 1; i < j; ++i) {
        const int64_t sum = best[i] + sizes[j] * (below[j + 1] - below[i + 1]);
        if (sum < better[j]) better[j] = sum, from[j] = i;
      }
    best = std::move(better);
    before.push_back(std::move(from));
  }
  std::vector<int64_t> chosen(maximum);
  size_t j = n - 1;
  for (size_t k = maximum; k-- > 0;) {
    chosen[k] = sizes[j];
    if (k > 0) j = before[k - 1][j];
  }
  return chosen;
}

namespace {

std::vector<TextShape> shapes_of_one_text(const LoadingSettings& loading) {
  const int64_t longest = longest_text(loading), batch = loading.steps.batch_size;
  std::vector<TextShape> shapes;
  if (packs_text(loading)) {
    // Each shape is a program of its own: at most 32 of them.
    const int64_t maximum = batch * longest;
    const auto part = std::bit_ceil(static_cast<uint64_t>((maximum + 31) / 32));
    const int64_t multiple = std::max<int64_t>(8, static_cast<int64_t>(part));
    for (int64_t rows = round_up(batch + 1, multiple); rows < maximum; rows += multiple) shapes.push_back({longest, rows});
    shapes.push_back({longest, maximum});
    return shapes;
  }
  if (loading.data.text_padding != TextPadding::max)
    for (int64_t length = kLengthMultiple; length < longest; length += kLengthMultiple) shapes.push_back({length, 0});
  shapes.push_back({longest, 0});
  return shapes;
}

/// Returns at most `maximum` of the shapes, evenly spread; the last shape is always included.
std::vector<TextShape> thinned(const std::vector<TextShape>& shapes, size_t maximum) {
  const size_t step = (shapes.size() + maximum - 1) / maximum;
  std::vector<TextShape> some;
  for (size_t i = (shapes.size() - 1) % step; i < shapes.size(); i += step) some.push_back(shapes[i]);
  return some;
}

}  // namespace

std::vector<TextShape> possible_text_shapes(const LoadingSettings& loading, bool has_source) {
  const std::vector<TextShape> shapes = shapes_of_one_text(loading);
  if (!has_source) return shapes;
  constexpr size_t kTexts = 8, kSources = 4;  // each pair of shapes is a separate program
  std::vector<TextShape> pairs;
  for (const TextShape& text : thinned(shapes, kTexts))
    for (const TextShape& source : thinned(shapes, kSources)) {
      pairs.push_back(text);
      pairs.back().source_tokens = source.tokens, pairs.back().packed_source_rows = source.packed_rows;
    }
  std::stable_sort(pairs.begin(), pairs.end(), [](const TextShape& a, const TextShape& b) {
    return size_of(a).all() < size_of(b).all();
  });
  return pairs;
}

TextShape smallest_shape(std::span<const TextShape> shapes, std::span<const BatchSample> samples, int64_t batch_size,
                         const PatchInputs& patches) {
  std::vector<int64_t> lengths, sources, instructions;
  std::vector<PictureShape> pictures;
  for (const BatchSample& sample : samples) {
    lengths.push_back(sample.text.size());
    sources.push_back(sample.text.source_size());
    instructions.push_back(static_cast<int64_t>(sample.text.instruction.size()));
    pictures.push_back(pictures_of(sample.text.pictures, patches));
  }
  const bool packed = shapes.back().packed();
  TextNeed need{needed_size(packed, lengths, batch_size), needed_size(packed, sources, batch_size),
                needed_pictures(pictures, batch_size, patches, shapes.back().pictures.largest)};
  int64_t& with_instruction = shapes.back().source_tokens > 0 ? need.source : need.text;
  with_instruction = std::max(with_instruction, needed_size(packed, instructions, batch_size));
  return *std::find_if(shapes.begin(), shapes.end() - 1, [&](const TextShape& shape) { return holds(shape, need, patches); });
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
