// Fills a step's block from samples; see batch.h.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "blipft/batch.h"
#include "data/text_shapes.h"

namespace blipft {

namespace {

/// How many text rows each sample has: what its text of so many tokens takes and, of the rest of the shape, as much as
/// comes to it.
std::vector<int64_t> text_rows(const BatchLayout& layout, const std::vector<int64_t>& lengths) {
  const TextShape& shape = layout.text();
  std::vector<int64_t> rows;
  for (const int64_t length : lengths) rows.push_back(rows_of_text(length));
  int64_t padding = shape.rows(layout.batch_size()) - std::accumulate(rows.begin(), rows.end(), int64_t{0});
  for (int64_t& own : rows) {
    const int64_t more = std::min(padding, shape.tokens - own);
    BLIPFT_CHECK(more >= 0, "a text of ", own, " rows, or all of a micro-batch, do not fit into ", shape.tokens,
                 " and ", shape.rows(layout.batch_size()), " rows");
    own += more;
    padding -= more;
  }
  BLIPFT_CHECK(padding == 0, padding, " rows of a micro-batch belong to no sample");
  return rows;
}

/// The places of packed rows: of each sample `prefix` and its own text rows, `most` at most. Numbers in its sample go
/// to `positions`, where that is there.
void write_rows(const Packing& packing, int64_t prefix, const std::vector<int64_t>& text_rows_of, int64_t most,
                int32_t* positions = nullptr) {
  int32_t* starts = packing.starts.as<int32_t>();
  int32_t* padded = packing.padded_rows.as<int32_t>();
  int64_t start = 0;
  for (size_t b = 0; b < text_rows_of.size(); ++b) {
    const int64_t rows = prefix + text_rows_of[b];
    if (starts) std::iota(padded + start, padded + start + rows, static_cast<int32_t>(static_cast<int64_t>(b) * most));
    if (positions) std::iota(positions + start, positions + start + rows, 0);
    if (starts) starts[b] = static_cast<int32_t>(start);
    start += rows;
  }
  if (starts) starts[text_rows_of.size()] = static_cast<int32_t>(start);
}

void write_instructions(const BatchLayout& layout, const InstructionBatch& batch,
                        std::span<const BatchSample> samples) {
  const InstructionInputs& inputs = layout.inputs().instruction;
  const int64_t tokens = layout.text().tokens;
  std::vector<int64_t> lengths;
  for (const BatchSample& sample : samples) lengths.push_back(static_cast<int64_t>(sample.text.instruction.size()));
  const std::vector<int64_t> rows = text_rows(layout, lengths);
  for (size_t b = 0; b < samples.size(); ++b) {
    const std::vector<int32_t>& own = samples[b].text.instruction;
    const int64_t length = lengths[b], before = static_cast<int64_t>(b) * tokens;
    int32_t* ids = batch.ids.as<int32_t>() + before;
    std::copy(own.begin(), own.end(), ids);
    std::fill(ids + length, ids + tokens, 0);
    for (int64_t t = 0; t < tokens; ++t)
      batch.places.as<int32_t>()[before + t] = static_cast<int32_t>(std::min(t, inputs.max_tokens - 1));
    batch.lengths.as<int32_t>()[b] = static_cast<int32_t>(length);
    batch.key_lengths.as<int32_t>()[b] = static_cast<int32_t>(inputs.prefix_rows + length);
  }
  write_rows(batch.packing, inputs.prefix_rows, rows, batch.most_rows);
  write_rows(batch.text_packing, 0, rows, tokens);
}

}  // namespace

uint8_t* BatchWriter::pixels(const BatchLayout& layout, void* block, int64_t i) {
  const int64_t size = layout.inputs().picture_size;
  return layout.whole(BatchPart::pixels, block).as<uint8_t>() + i * size * size * 3;
}

void BatchWriter::reorder_pixels(const BatchLayout& layout, void* block, std::span<const size_t> order) {
  const Tensor pixels = layout.whole(BatchPart::pixels, block);
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
  for (int64_t m = 0; m < layout.micro_batches(); ++m)
    write_micro_batch(layout, samples.subspan(static_cast<size_t>(m) * count, count), block, m);
}

void BatchWriter::write_micro_batch(const BatchLayout& layout, std::span<const BatchSample> samples, void* block,
                                    int64_t m) const {
  const MicroBatch batch = layout.micro_batch(block, m);
  std::vector<int64_t> lengths;
  for (const BatchSample& sample : samples) lengths.push_back(sample.text.size());
  const std::vector<int64_t> rows = text_rows(layout, lengths);
  write_rows(batch.packing, layout.inputs().prefix_rows, rows, batch.most_rows, batch.positions.as<int32_t>());
  if (layout.inputs().instruction) write_instructions(layout, batch.instruction, samples);
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  const int64_t tokens = layout.text().tokens, learnt_padding = loss_on_padding_ ? longest : 0;
  int32_t* labels = batch.labels.as<int32_t>();
  int32_t* label_rows = batch.label_rows.as<int32_t>();
  int64_t count = 0;
  for (size_t b = 0; b < samples.size(); ++b) {
    const TokenizedText& text = samples[b].text;
    const int64_t length = text.size();
    BLIPFT_CHECK(text.learnt.size() == text.ids.size(), length, " ids, learnt or not is said of ", text.learnt.size());
    int32_t* ids = batch.ids.as<int32_t>() + static_cast<int64_t>(b) * tokens;
    std::copy(text.ids.begin(), text.ids.end(), ids);
    std::fill(ids + length, ids + tokens, pad_id_);
    for (int64_t t = 1; t < rows[b]; ++t) {
      const bool learnt = t < length ? text.learnt[static_cast<size_t>(t)] != 0
                                     : t < learnt_padding && !samples[b].absent;
      *labels++ = learnt ? ids[t] : -100;
      count += learnt;
      if (label_rows)
        *label_rows++ = static_cast<int32_t>(static_cast<int64_t>(b) * batch.most_rows + layout.inputs().prefix_rows + t - 1);
    }
    batch.lengths.as<int32_t>()[b] = static_cast<int32_t>(length);
    batch.sample_keys.as<int64_t>()[b] = samples[b].key;
    if (batch.key_lengths)
      batch.key_lengths.as<int32_t>()[b] = static_cast<int32_t>(layout.inputs().prefix_rows + length);
  }
  *layout.of(BatchPart::label_counts, block, m).as<float>() = static_cast<float>(count);
}

}  // namespace blipft
