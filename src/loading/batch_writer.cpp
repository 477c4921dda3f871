// Fills a step's block from samples; see batch.h.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "blipft/batch.h"
#include "loading/text_shapes.h"
#include "pictures/patch_positions.h"

namespace blipft {

namespace {

/// Returns the number of rows of each sample: its text rows plus padding. The padding, `all` minus the sum of the text
/// rows, goes to the first samples, up to `maximum` rows each.
std::vector<int64_t> filled_up(std::vector<int64_t> rows, int64_t maximum, int64_t all) {
  int64_t padding = all - std::accumulate(rows.begin(), rows.end(), int64_t{0});
  for (int64_t& own : rows) {
    const int64_t more = std::min(padding, maximum - own);
    BLIPFT_CHECK(more >= 0, "a text of ", own, " rows, or all of a micro-batch, do not fit into ", maximum, " and ", all,
                 " rows");
    own += more;
    padding -= more;
  }
  BLIPFT_CHECK(padding == 0, padding, " rows of a micro-batch belong to no sample");
  return rows;
}

/// Writes the packing of consecutive samples with `rows` rows each; `maximum` is the maximum number of rows of a sample.
void write_packing(const Packing& packing, const std::vector<int64_t>& rows, int64_t maximum) {
  if (!packing) return;
  int32_t* const starts = packing.starts.as<int32_t>();
  int32_t* const padded = packing.padded_rows.as<int32_t>();
  int64_t start = 0;
  for (size_t b = 0; b < rows.size(); ++b) {
    std::iota(padded + start, padded + start + rows[b], static_cast<int32_t>(static_cast<int64_t>(b) * maximum));
    starts[b] = static_cast<int32_t>(start);
    start += rows[b];
  }
  starts[rows.size()] = static_cast<int32_t>(start);
}

/// Writes the positions of the rows of samples: on one axis 0, 1, ..., `last` at most; on three axes text_positions().
/// `before`: rows before the tokens of a sample.
void write_positions(const Tensor& positions, const std::vector<int64_t>& rows, std::span<const BatchSample> samples,
                     int64_t before, int64_t last) {
  if (!positions) return;
  int32_t* out = positions.as<int32_t>();
  for (size_t b = 0; b < rows.size(); out += rows[b++]) {
    if (positions.shape[0] == 1) {
      for (int64_t t = 0; t < rows[b]; ++t) out[t] = static_cast<int32_t>(std::min(t, last));
      continue;
    }
    std::vector<PositionRun> runs;
    int64_t done = -before;                // tokens
    for (const PictureSegment& picture : samples[b].text.pictures) {
      runs.push_back({picture.first - done, {}});
      runs.push_back({0, {picture.height, picture.width}});
      done = picture.first + picture.cells();
    }
    runs.push_back({rows[b] - before - done, {}});
    const StreamPositions all = text_positions(runs, 1);
    for (size_t axis = 0; axis < all.axes.size(); ++axis)
      std::copy(all.axes[axis].begin(), all.axes[axis].end(), out + static_cast<int64_t>(axis) * positions.shape[1]);
  }
}

/// The pictures of a micro-batch, in the order of their rows.
struct OrderedPictures {
  std::vector<const PictureSegment*> pictures;
  std::vector<int64_t> keys;               ///< for dropout: of the sample and the number of the picture in it
  std::vector<PatchGrid> grids;
  std::vector<int32_t> rows;               ///< [cells]: row of the text in which each cell stands, by pictures
  WindowOrder order;                       ///< one window for each picture if the tower has no windows
};

constexpr int64_t kMaxPictures = int64_t{1} << 16;  // of a sample, so that no two have one key

/// `starts`: the row of each sample's first token.
OrderedPictures ordered_pictures(std::span<const BatchSample> samples, const std::vector<int64_t>& starts, const PatchInputs& in) {
  OrderedPictures all;
  int64_t longest = 1;
  for (size_t b = 0; b < samples.size(); ++b) {
    const std::vector<PictureSegment>& own = samples[b].text.pictures;
    for (size_t i = 0; i < own.size(); ++i) {
      const PictureSegment& picture = own[i];
      BLIPFT_CHECK(picture.first >= 0 && picture.first + picture.cells() <= samples[b].text.size(), "a picture of ",
                   picture.cells(), " rows at token ", picture.first, " does not fit into ", samples[b].text.size(), " tokens");
      BLIPFT_CHECK(in.picture_side == 0 || (picture.height == in.picture_side && picture.width == in.picture_side), "a picture of ",
                   picture.height, " x ", picture.width, " cells, where all have ", in.picture_side, " x ", in.picture_side);
      all.pictures.push_back(&picture);
      all.keys.push_back(samples[b].key * kMaxPictures + static_cast<int64_t>(i));
      all.grids.push_back({picture.height * in.merge, picture.width * in.merge});
      longest = std::max({longest, picture.height, picture.width});
      for (int64_t cell = 0; cell < picture.cells(); ++cell)
        all.rows.push_back(static_cast<int32_t>(starts[b] + picture.first + cell));
    }
  }
  all.order = window_order(all.grids, in.merge, in.window > 0 ? in.window : longest);
  return all;
}

/// Writes which picture row stands in which row. The picture rows follow each other in the order of the patches.
void write_pictures(const StreamRows& stream, const OrderedPictures& pictures) {
  int32_t *const picture_of_row = stream.picture_of_row.as<int32_t>(), *row_of_picture = stream.row_of_picture.as<int32_t>();
  std::fill_n(picture_of_row, stream.rows, -1);
  std::fill_n(row_of_picture, stream.row_of_picture.numel(), -1);
  BLIPFT_CHECK(static_cast<int64_t>(pictures.rows.size()) <= stream.row_of_picture.numel(), "pictures of ",
               pictures.rows.size(), " rows do not fit into ", stream.row_of_picture.numel(), " rows");
  for (size_t i = 0; i < pictures.rows.size(); ++i) {
    const int32_t row = pictures.rows[static_cast<size_t>(pictures.order.cells[i])];
    BLIPFT_CHECK(picture_of_row[row] < 0, "two pictures stand in row ", row);
    row_of_picture[i] = row;
    picture_of_row[row] = static_cast<int32_t>(i);
  }
}

/// Writes the last row of its sample that each row sees, given the rows of each sample: its own, or the last one of
/// the rows of pictures that it is among.
void write_last_keys(const StreamRows& stream, const std::vector<int64_t>& rows) {
  if (!stream.last_keys) return;
  const int32_t* picture_of_row = stream.picture_of_row.as<int32_t>();
  int32_t* out = stream.last_keys.as<int32_t>();
  for (const int64_t of_sample : rows) {
    for (int64_t t = of_sample - 1; t >= 0; --t) {
      const bool sees_next = t + 1 < of_sample && picture_of_row[t] >= 0 && picture_of_row[t + 1] >= 0;
      out[t] = sees_next ? out[t + 1] : static_cast<int32_t>(t);
    }
    picture_of_row += of_sample, out += of_sample;
  }
}

/// Returns `groups` numbers of rows: those of `used`, and behind them what is missing to `all`, at most `maximum` in each.
std::vector<int64_t> with_padding_groups(std::vector<int64_t> used, int64_t groups, int64_t maximum, int64_t all) {
  int64_t left = all;
  for (const int64_t rows : used) {
    BLIPFT_CHECK(rows <= maximum, "a picture of ", rows, " patches does not fit into ", maximum);
    left -= rows;
  }
  for (; static_cast<int64_t>(used.size()) < groups; left -= used.back()) used.push_back(std::min(left, maximum));
  BLIPFT_CHECK(left == 0 && static_cast<int64_t>(used.size()) == groups, used.size(), " pictures or windows of ", all,
               " patches do not fit into ", groups, " of ", maximum);
  return used;
}

/// Writes the patches of all pictures.
void write_patches(const BatchLayout& layout, const OrderedPictures& of, void* block, int64_t m) {
  const PatchInputs& in = layout.inputs().patches;
  const StreamRows out = layout.micro_batch(block, m).patches;
  const std::vector<PatchPlace> places = patch_places(of.grids, in.merge);
  const int64_t bytes = out.pixels.cols() * in.of_cell();  // of a cell
  std::vector<int64_t> pictures, windows;
  struct Cell {
    const uint8_t* patches;
    PatchGrid grid;                        // of its picture
  };
  std::vector<Cell> cells;
  for (size_t i = 0; i < of.pictures.size(); ++i) {
    pictures.push_back(of.grids[i].patches());
    for (int64_t cell = 0; cell < of.pictures[i]->cells(); ++cell) cells.push_back({of.pictures[i]->patches + cell * bytes, of.grids[i]});
  }
  std::fill_n(out.positions.as<int32_t>(), out.positions.numel(), 0);
  std::fill_n(out.pixels.as<uint8_t>(), out.pixels.numel(), uint8_t{0});
  for (int64_t i = 0; i < static_cast<int64_t>(cells.size()); ++i) {
    const int64_t cell = of.order.cells[static_cast<size_t>(i)];
    const auto& [patches, grid] = cells[static_cast<size_t>(cell)];
    std::copy_n(patches, bytes, out.pixels.as<uint8_t>() + i * bytes);
    for (int64_t patch = 0; patch < in.of_cell(); ++patch) {
      const PatchPlace& place = places[static_cast<size_t>(cell * in.of_cell() + patch)];
      int32_t* const position = out.positions.as<int32_t>() + i * in.of_cell() + patch;
      position[0] = place.row, position[out.rows] = place.column;
      position[2 * out.rows] = static_cast<int32_t>(grid.height), position[3 * out.rows] = static_cast<int32_t>(grid.width);
    }
  }
  write_packing(out.packing, with_padding_groups(std::move(pictures), out.samples, out.max_rows, out.rows), out.max_rows);
  std::fill_n(std::copy(of.keys.begin(), of.keys.end(), out.sample_keys.as<int64_t>()), out.samples - std::ssize(of.keys), int64_t{0});
  for (int64_t i = 0; i < out.cell_numbers.numel(); ++i)
    out.cell_numbers.as<int32_t>()[i] = out.packing.padded_rows.as<int32_t>()[i * in.of_cell()] / static_cast<int32_t>(in.of_cell());
  if (in.window == 0) return;
  for (size_t w = 1; w < of.order.starts.size(); ++w) windows.push_back(of.order.starts[w] - of.order.starts[w - 1]);
  write_packing(out.window_packing, with_padding_groups(std::move(windows), out.windows, out.max_window_rows, out.rows),
                out.max_window_rows);
}

}  // namespace

uint8_t* BatchWriter::pixels(const BatchLayout& layout, void* block, int64_t i) {
  const int64_t size = layout.inputs().picture_size;
  return layout.whole(BatchField::pixels, block).as<uint8_t>() + i * size * size * 3;
}

void BatchWriter::reorder_pixels(const BatchLayout& layout, void* block, std::span<const size_t> order) {
  const Tensor pixels = layout.whole(BatchField::pixels, block);
  if (!pixels) return;
  const size_t bytes = static_cast<size_t>(pixels.bytes() / layout.samples());
  const std::vector<uint8_t> old(pixels.as<uint8_t>(), pixels.as<uint8_t>() + pixels.bytes());
  for (size_t i = 0; i < order.size(); ++i)
    std::memcpy(pixels.as<uint8_t>() + i * bytes, old.data() + order[i] * bytes, bytes);
}

void BatchWriter::write(const BatchLayout& layout, std::span<const BatchSample> samples, void* block) const {
  BLIPFT_CHECK(static_cast<int64_t>(samples.size()) == layout.samples(), samples.size(), " samples for a step of ",
               layout.samples());
  const size_t count = static_cast<size_t>(layout.batch_size());
  for (int64_t m = 0; m < layout.micro_batches(); ++m) {
    const std::span<const BatchSample> own = samples.subspan(static_cast<size_t>(m) * count, count);
    const Tensor keys = layout.of(BatchField::sample_keys, block, m);
    for (size_t b = 0; b < count; ++b) keys.as<int64_t>()[b] = own[b].key;
    write_labels(layout, own, write_stream(layout, BatchStream::text, own, block, m), block, m);
    for (const BatchStream stream : {BatchStream::source, BatchStream::instruction})
      if (layout.inputs().of(stream)) write_stream(layout, stream, own, block, m);
  }
}

/// Writes all fields of a stream except labels. Returns the rows of each sample's text, with padding.
std::vector<int64_t> BatchWriter::write_stream(const BatchLayout& layout, BatchStream stream,
                                               std::span<const BatchSample> samples, void* block, int64_t m) const {
  const StreamRows out = layout.stream(stream, block, m);
  const StreamInputs& inputs = layout.inputs().of(stream);
  const int64_t tokens = layout.shape(stream).tokens;
  const int32_t pad_id = inputs.tokenizer.empty() ? pad_id_ : 0;
  std::vector<int64_t> rows;
  for (const BatchSample& sample : samples)
    rows.push_back(rows_of_text(static_cast<int64_t>(sample.text.of(stream).size())));
  const std::vector<int64_t> text_rows = rows = filled_up(std::move(rows), tokens, layout.text_rows(stream));
  write_packing(out.text_packing, text_rows, tokens);
  for (int64_t& of_sample : rows) of_sample += inputs.first_rows;
  write_packing(out.packing, rows, out.max_rows);
  if (inputs.pictures) {
    std::vector<int64_t> starts;
    int64_t start = inputs.first_rows;
    for (const int64_t of_sample : rows) starts.push_back(start), start += of_sample;
    const OrderedPictures pictures = ordered_pictures(samples, starts, layout.inputs().patches);
    write_pictures(out, pictures);
    write_last_keys(out, rows);
    if (layout.inputs().patches) write_patches(layout, pictures, block, m);
  }
  const int64_t before = inputs.splits_text ? 0 : inputs.first_rows;
  write_positions(out.positions, inputs.splits_text ? text_rows : rows, samples, before, before + inputs.max_tokens - 1);
  int32_t* ids = out.ids.as<int32_t>();
  for (size_t b = 0; b < samples.size(); ++b, ids += tokens) {
    const std::vector<int32_t>& own = samples[b].text.of(stream);
    std::fill(std::copy(own.begin(), own.end(), ids), ids + tokens, pad_id);
    const auto length = static_cast<int32_t>(own.size());
    out.lengths.as<int32_t>()[b] = length;
    if (out.key_lengths) out.key_lengths.as<int32_t>()[b] = static_cast<int32_t>(inputs.first_rows) + length;
  }
  return text_rows;
}

/// `rows`: of each sample's text, with padding.
void BatchWriter::write_labels(const BatchLayout& layout, std::span<const BatchSample> samples,
                               const std::vector<int64_t>& rows, void* block, int64_t m) const {
  const StreamRows out = layout.stream(BatchStream::text, block, m);
  int64_t longest = 0;
  for (const BatchSample& sample : samples) longest = std::max(longest, sample.text.size());
  const int64_t trained_padding = loss_on_padding_ ? longest : 0;
  int32_t *labels = out.labels.as<int32_t>(), *label_rows = out.label_rows.as<int32_t>();
  int64_t count = 0;
  for (size_t b = 0; b < samples.size(); ++b) {
    const TokenizedText& text = samples[b].text;
    const int64_t length = text.size();
    BLIPFT_CHECK(text.is_label.size() == text.ids.size(), "found ", text.is_label.size(), " label flags for ", length, " ids");
    const int32_t* ids = out.ids.as<int32_t>() + static_cast<int64_t>(b) * out.ids.cols();
    for (int64_t t = 1; t < rows[b]; ++t) {
      const bool is_label = t < length ? text.is_label[static_cast<size_t>(t)] != 0
                                     : t < trained_padding && !samples[b].absent;
      *labels++ = is_label ? ids[t] : -100;
      count += is_label;
      if (label_rows)
        *label_rows++ = static_cast<int32_t>(static_cast<int64_t>(b) * out.max_rows + out.first_rows + t - 1);
    }
  }
  *layout.of(BatchField::label_counts, block, m).as<float>() = static_cast<float>(count);
}

}  // namespace blipft
