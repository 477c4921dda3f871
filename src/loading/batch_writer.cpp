// Fills a step's block from samples; see batch.h.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "blipft/batch.h"
#include "loading/text_shapes.h"

namespace blipft {

namespace {

/// Returns the number of rows of each sample: its text rows plus padding. The padding, `all` minus the sum of the text
/// rows, goes to the first samples, up to `most` rows each.
std::vector<int64_t> filled_up(std::vector<int64_t> rows, int64_t most, int64_t all) {
  int64_t padding = all - std::accumulate(rows.begin(), rows.end(), int64_t{0});
  for (int64_t& own : rows) {
    const int64_t more = std::min(padding, most - own);
    BLIPFT_CHECK(more >= 0, "a text of ", own, " rows, or all of a micro-batch, do not fit into ", most, " and ", all,
                 " rows");
    own += more;
    padding -= more;
  }
  BLIPFT_CHECK(padding == 0, padding, " rows of a micro-batch belong to no sample");
  return rows;
}

std::vector<int64_t> text_rows(const BatchLayout& layout, std::span<const BatchSample> samples) {
  std::vector<int64_t> rows;
  for (const BatchSample& sample : samples) rows.push_back(rows_of_text(sample.text.size()));
  return filled_up(std::move(rows), layout.text().tokens, layout.text().rows(layout.batch_size()));
}

std::vector<int64_t> source_rows(const BatchLayout& layout, std::span<const BatchSample> samples) {
  std::vector<int64_t> rows;
  for (const BatchSample& sample : samples) rows.push_back(rows_of_text(sample.text.source_size()));
  return filled_up(std::move(rows), layout.text().source_tokens, layout.text().source_rows(layout.batch_size()));
}

/// Writes the packing of consecutive samples with `rows` rows each; `most` is the maximum number of rows of a sample.
void write_packing(const Packing& packing, const std::vector<int64_t>& rows, int64_t most) {
  if (!packing) return;
  int32_t* const starts = packing.starts.as<int32_t>();
  int32_t* const padded = packing.padded_rows.as<int32_t>();
  int64_t start = 0;
  for (size_t b = 0; b < rows.size(); ++b) {
    std::iota(padded + start, padded + start + rows[b], static_cast<int32_t>(static_cast<int64_t>(b) * most));
    starts[b] = static_cast<int32_t>(start);
    start += rows[b];
  }
  starts[rows.size()] = static_cast<int32_t>(start);
}

/// Writes the packing and positions of the text rows, if the model reads them.
void write_rows(const BatchLayout& layout, std::vector<int64_t> rows, void* block, int64_t m) {
  const MicroBatch batch = layout.micro_batch(block, m);
  for (int64_t& of_sample : rows) of_sample += layout.inputs().text_prefix();
  write_packing(batch.packing, rows, batch.max_rows);
  int32_t* positions = batch.positions.as<int32_t>();
  for (const int64_t of_sample : rows) {
    if (!positions) break;
    std::iota(positions, positions + of_sample, 0);
    positions += of_sample;
  }
}

/// Writes the sources for an encoder. The ids after the end of a source are `pad_id`.
void write_source(const BatchLayout& layout, std::span<const BatchSample> samples, int32_t pad_id, void* block,
                  int64_t m) {
  const SourceRows source = layout.micro_batch(block, m).source;
  std::vector<int64_t> rows = source_rows(layout, samples);
  for (int64_t& of_sample : rows) of_sample += layout.inputs().prefix_rows;
  write_packing(source.packing, rows, source.max_rows);
  const int64_t tokens = layout.text().source_tokens;
  for (size_t b = 0; b < samples.size(); ++b) {
    const std::vector<int32_t>& from = samples[b].text.source;
    int32_t* const ids = source.ids.as<int32_t>() + static_cast<int64_t>(b) * tokens;
    std::fill(std::copy(from.begin(), from.end(), ids), ids + tokens, pad_id);
    source.lengths.as<int32_t>()[b] = static_cast<int32_t>(from.size());
    source.key_lengths.as<int32_t>()[b] = static_cast<int32_t>(layout.inputs().prefix_rows + samples[b].text.source_size());
  }
}

void write_instructions(const BatchLayout& layout, std::span<const BatchSample> samples, void* block, int64_t m) {
  const InstructionBatch batch = layout.micro_batch(block, m).instruction;
  const InstructionInputs& inputs = layout.inputs().instruction;
  const int64_t tokens = layout.instruction_tokens();
  std::vector<int64_t> rows;
  for (const BatchSample& sample : samples) rows.push_back(rows_of_text(static_cast<int64_t>(sample.text.instruction.size())));
  rows = filled_up(std::move(rows), tokens, layout.instruction_text_rows());
  write_packing(batch.text_packing, rows, tokens);
  for (int64_t& of_sample : rows) of_sample += inputs.prefix_rows;
  write_packing(batch.packing, rows, batch.max_rows);
  for (size_t b = 0; b < samples.size(); ++b) {
    const std::vector<int32_t>& own = samples[b].text.instruction;
    const int64_t length = static_cast<int64_t>(own.size()), before = static_cast<int64_t>(b) * tokens;
    int32_t* const ids = batch.ids.as<int32_t>() + before;
    std::fill(std::copy(own.begin(), own.end(), ids), ids + tokens, 0);
    for (int64_t t = 0; t < tokens; ++t)
      batch.places.as<int32_t>()[before + t] = static_cast<int32_t>(std::min(t, inputs.max_tokens - 1));
    batch.lengths.as<int32_t>()[b] = static_cast<int32_t>(length);
    batch.key_lengths.as<int32_t>()[b] = static_cast<int32_t>(inputs.prefix_rows + length);
  }
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
  const std::vector<int64_t> rows = text_rows(layout, samples);
  write_rows(layout, rows, block, m);
  if (layout.inputs().has_source()) write_source(layout, samples, pad_id_, block, m);
  if (layout.inputs().instruction) write_instructions(layout, samples, block, m);
  int64_t longest = 0;
  for (const BatchSample& sample : samples) longest = std::max(longest, sample.text.size());
  const int64_t tokens = layout.text().tokens, trained_padding = loss_on_padding_ ? longest : 0;
  int32_t* labels = batch.labels.as<int32_t>();
  int32_t* label_rows = batch.label_rows.as<int32_t>();
  int64_t count = 0;
  for (size_t b = 0; b < samples.size(); ++b) {
    const TokenizedText& text = samples[b].text;
    const int64_t length = text.size();
    BLIPFT_CHECK(text.learnt.size() == text.ids.size(), "found ", text.learnt.size(), " label flags for ", length, " ids");
    int32_t* ids = batch.ids.as<int32_t>() + static_cast<int64_t>(b) * tokens;
    std::copy(text.ids.begin(), text.ids.end(), ids);
    std::fill(ids + length, ids + tokens, pad_id_);
    for (int64_t t = 1; t < rows[b]; ++t) {
      const bool learnt = t < length ? text.learnt[static_cast<size_t>(t)] != 0
                                     : t < trained_padding && !samples[b].absent;
      *labels++ = learnt ? ids[t] : -100;
      count += learnt;
      if (label_rows)
        *label_rows++ = static_cast<int32_t>(static_cast<int64_t>(b) * batch.max_rows + layout.inputs().text_prefix() + t - 1);
    }
    batch.lengths.as<int32_t>()[b] = static_cast<int32_t>(length);
    batch.sample_keys.as<int64_t>()[b] = samples[b].key;
    if (batch.key_lengths)
      batch.key_lengths.as<int32_t>()[b] = static_cast<int32_t>(layout.inputs().text_prefix() + length);
  }
  *layout.of(BatchPart::label_counts, block, m).as<float>() = static_cast<float>(count);
}

}  // namespace blipft
