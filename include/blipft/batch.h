// Batch: what a model reads of a step's samples, and the one description of the memory that holds it.
//
// A model declares ModelInputs. BatchLayout says where each part lies inside of one block, on the host and on the
// device alike; BatchWriter fills the block from samples. The loader, the step program and the tests share all three.
//
// Rows are packed: a micro-batch's samples lie one after the other, each with rows of its own number, and nothing is
// seen across. Padding is the special case in which every sample has the same number of rows.
//
// A model with an encoder of texts reads two of each sample: the encoder's, its source, and the decoder's. Each side has
// rows of its own number, and its own packing; what says nothing of a source is of the decoder's.
//
// Dimension legend: M micro-batches, B samples of one, T most text tokens of a sample, Q rows of a sample before its
// text, S = Q + T most rows of a sample, R rows of a micro-batch in all, P picture side. Of a source: U most tokens, Q rows
// before them (the decoder's Q is then 0), N rows of a micro-batch in all.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "blipft/ops.h"
#include "blipft/tensor.h"

namespace blipft {

/// A second text of each sample, by a tokenizer of its own: the instruction that a Q-Former reads. Its rows, behind
/// rows of the model's own, are packed as the texts are: as the sources, where there are any, which are the same text.
struct InstructionInputs {
  int64_t vocabulary = 0;                  ///< ids are below; 0: there is no such text
  std::string_view tokenizer;              ///< the folder of its tokenizer, in the model's
  int64_t prefix_rows = 0;                 ///< rows that the model puts before it
  int64_t max_tokens = 0;                  ///< the longest that it has positions for
  explicit operator bool() const { return vocabulary > 0; }
  bool operator==(const InstructionInputs&) const = default;
};

/// Text rows of a sample, on the average.
struct TextRows {
  double text = 0, source = 0;
  TextRows(double text_rows, double source_rows = 0) : text(text_rows), source(source_rows) {}  // NOLINT: text alone
  double all() const { return text + source; }
};

/// What a model reads. A part that it does not declare takes no memory, and nothing is read or decoded for it. Ids,
/// labels and text lengths are always there.
struct ModelInputs {
  int64_t picture_size = 0;                ///< P: side in pixels of the picture of each sample; 0: no pictures
  int64_t prefix_rows = 0;                 ///< Q: rows that the model puts before the text of a sample, or before its source
  int64_t max_text_tokens = 0;             ///< the longest text that it has positions for
  int64_t vocabulary = 0;                  ///< ids are below
  bool positions = false;                  ///< of each row in its sample
  bool key_lengths = false;                ///< how many rows of a sample are not padding
  bool label_rows = false;                 ///< which row predicts each label
  InstructionInputs instruction;
  int32_t decoder_start = -1;              ///< not negative: an encoder reads the prompt of each sample, and a decoder, whose
                                           ///< text begins with this id, the answer
  bool has_source() const { return decoder_start >= 0; }
  int64_t text_prefix() const { return has_source() ? 0 : prefix_rows; }  ///< rows before the text that is predicted
  bool has_picture() const { return picture_size > 0; }
  /// Of an instruction, without the rows before it.
  double instruction_rows(const TextRows& rows) const { return !instruction ? 0 : has_source() ? rows.source : rows.text; }
  bool operator==(const ModelInputs&) const = default;
};

/// The text of a step's micro-batches, as far as shapes depend on it. An instruction beside it has the shape of the source, or,
/// where there is none, of the text.
struct TextShape {
  int64_t tokens = 50;                       ///< T
  int64_t packed_rows = 0;                   ///< text rows of a micro-batch whose samples have rows of their own
                                             ///< number; 0: every sample has T
  int64_t source_tokens = 0;                 ///< U; 0: there are no sources
  int64_t packed_source_rows = 0;            ///< as packed_rows, of sources
  bool packed() const { return packed_rows > 0; }
  /// Of a micro-batch of `batch_size` samples; and of a sample, where they differ the mean.
  int64_t rows(int64_t batch_size) const { return packed() ? packed_rows : batch_size * tokens; }
  int64_t source_rows(int64_t batch_size) const { return packed() ? packed_source_rows : batch_size * source_tokens; }
  TextRows mean_rows(int64_t batch_size) const {
    const auto samples = static_cast<double>(batch_size);
    return {static_cast<double>(rows(batch_size)) / samples, static_cast<double>(source_rows(batch_size)) / samples};
  }
  bool operator==(const TextShape&) const = default;
};

/// pixel -> (pixel / 255 - mean) / std, per colour.
struct PixelStatistics {
  float mean[3] = {0, 0, 0}, std[3] = {1, 1, 1};
};

/// Device tensors of a micro-batch's instructions.
struct InstructionBatch {
  int64_t most_rows = 0, rows = 0;         ///< of a sample, of all, with those before the text
  Tensor ids;                              ///< i32 [B, I], behind an instruction 0; I: U or T
  Tensor places;                           ///< i32 [B, I]: 0, 1, ..., as far as there are positions
  Tensor lengths;                          ///< i32 [B]
  Tensor key_lengths;                      ///< i32 [B], with the rows before the text
  Packing packing, text_packing;           ///< of all rows, of the text rows alone; absent when every sample has I
};

/// What an encoder reads of one micro-batch.
struct SourceRows {
  int64_t most_rows = 0, rows = 0;         ///< Q + U, N
  Tensor ids;                              ///< i32 [B, U]
  Tensor lengths;                          ///< i32 [B], source tokens
  Tensor key_lengths;                      ///< i32 [B], Q + lengths
  Packing packing;                         ///< of the N rows; absent when every sample has Q + U
};

/// Device tensors of one micro-batch. What the model did not declare is absent.
struct MicroBatch {
  int64_t samples = 0;                     ///< B
  int64_t most_rows = 0, rows = 0;         ///< S, R
  Tensor pixels;                           ///< u8 [B, P, P, 3]
  PixelStatistics pixel_statistics;
  Tensor ids;                              ///< i32 [B, T], behind a text the padding id
  Tensor labels;                           ///< i32 [R - B * (Q + 1)]: what each text row but the last of its sample
                                           ///< predicts: the next id, -100 where nothing is to be learnt
  Tensor lengths;                          ///< i32 [B], text tokens
  Tensor sample_keys;                      ///< i64 [B], of dropout
  Tensor positions;                        ///< i32 [R]
  Tensor key_lengths;                      ///< i32 [B], Q + lengths
  Tensor label_rows;                       ///< i32 [labels]: sample * S + row of the sample that predicts it
  Packing packing;                         ///< of the R rows; absent when every sample has S
  InstructionBatch instruction;
  SourceRows source;
  Tensor loss_weight;                      ///< f32 [1], of each label that is not -100
  Tensor loss;                             ///< f32 [1], the weighted loss is added to it
  Tensor row_loss;                         ///< f32 [labels], optional: the weighted loss of each label goes here
};

/// A part of a step's block: an array [M, ...], so that micro-batch m has its m-th element.
enum class BatchPart {
  pixels,                                  ///< first: its place depends on no text
  ids, labels, lengths, sample_keys,       ///< as in MicroBatch
  label_counts,                            ///< f32 [M], labels that are not -100
  positions, key_lengths, label_rows,
  starts, padded_rows,                     ///< of the packing; absent where every sample has S rows
  instruction_ids, instruction_places, instruction_lengths, instruction_key_lengths,  ///< as in InstructionBatch
  instruction_starts, instruction_padded_rows, instruction_text_starts, instruction_text_padded_rows,
  source_ids, source_lengths, source_key_lengths, source_starts, source_padded_rows  ///< as in SourceRows
};
constexpr size_t kBatchParts = 24;

/// Where the parts of one step of one rank lie inside of one block.
class BatchLayout {
 public:
  BatchLayout() = default;
  BatchLayout(const ModelInputs& inputs, int64_t micro_batches, int64_t batch_size, const TextShape& text);

  const ModelInputs& inputs() const { return inputs_; }
  int64_t micro_batches() const { return micro_batches_; }
  int64_t batch_size() const { return batch_size_; }
  int64_t samples() const { return micro_batches_ * batch_size_; }
  const TextShape& text() const { return text_; }
  /// Of a micro-batch: R and R - B * (Q + 1); N.
  int64_t rows() const { return batch_size_ * inputs_.text_prefix() + text_.rows(batch_size_); }
  int64_t source_rows() const { return batch_size_ * inputs_.prefix_rows + text_.source_rows(batch_size_); }
  int64_t labels() const { return text_.rows(batch_size_) - batch_size_; }
  /// Of a micro-batch's instructions, with the rows before them.
  int64_t instruction_rows() const { return batch_size_ * inputs_.instruction.prefix_rows + instruction_text_rows(); }
  /// The most tokens of one, and text rows of a micro-batch's.
  int64_t instruction_tokens() const { return inputs_.has_source() ? text_.source_tokens : text_.tokens; }
  int64_t instruction_text_rows() const {
    return inputs_.has_source() ? text_.source_rows(batch_size_) : text_.rows(batch_size_);
  }

  int64_t bytes() const { return bytes_; }
  /// A part of all micro-batches, one-dimensional, and of micro-batch m; absent if the block has none.
  Tensor whole(BatchPart part, void* block) const;
  Tensor of(BatchPart part, void* block, int64_t m) const;
  /// All that the block tells of micro-batch m.
  MicroBatch micro_batch(void* block, int64_t m) const;
  bool operator==(const BatchLayout&) const = default;

 private:
  struct Place {
    DType dtype = DType::u8;
    Shape shape;                           // of one micro-batch
    int64_t offset = -1;                   // < 0: absent
    bool operator==(const Place&) const = default;
  };
  void add(BatchPart part, DType dtype, const Shape& shape);
  const Place& place(BatchPart part) const { return places_[static_cast<size_t>(part)]; }

  ModelInputs inputs_;
  int64_t micro_batches_ = 1, batch_size_ = 1;
  TextShape text_;
  std::array<Place, kBatchParts> places_;
  int64_t bytes_ = 0;
};

/// The text of a sample.
struct TokenizedText {
  std::vector<int32_t> ids;
  std::vector<uint8_t> learnt;             ///< of each id: whether it is to be predicted. The first never is.
  std::vector<int32_t> instruction;        ///< ids of the instruction, where the model reads one
  std::vector<int32_t> source;             ///< what an encoder reads
  bool cut = false;                        ///< there were more than data.max_text_tokens
  int64_t size() const { return static_cast<int64_t>(ids.size()); }
  int64_t source_size() const { return static_cast<int64_t>(source.size()); }
  int64_t rows() const { return size() + source_size(); }
  /// Of the text or of the instruction.
  int64_t most_tokens() const { return std::max(size(), static_cast<int64_t>(instruction.size())); }
  bool has_target() const { return !ids.empty() && std::find(learnt.begin() + 1, learnt.end(), 1) != learnt.end(); }
};

/// A sample of a step, but for its pixels.
struct BatchSample {
  TokenizedText text;
  int64_t key = 0;                         ///< see MicroBatch::sample_keys
  bool absent = false;                     ///< a place that no sample takes: padding of which nothing is learnt
};

/// Fills blocks. Nobody else writes into one.
class BatchWriter {
 public:
  /// `pad_id` stands behind a text. With loss_on_padding, padding up to the longest text of its own micro-batch is
  /// learnt too.
  BatchWriter(int32_t pad_id, bool loss_on_padding) : pad_id_(pad_id), loss_on_padding_(loss_on_padding) {}

  /// The pixels of sample i, u8 [P, P, 3], for the caller to fill: the same place for every text shape. Null when the
  /// model reads no pictures.
  static uint8_t* pixels(const BatchLayout& layout, void* block, int64_t i);
  /// Gives sample i the pixels that sample order[i] had.
  static void reorder_pixels(const BatchLayout& layout, void* block, std::span<const size_t> order);
  /// All but the pixels, from layout.samples() samples whose texts and instructions fit the layout's text shape. A text
  /// takes at least one row; rows that the shape has beyond the texts go to the first samples as padding.
  void write(const BatchLayout& layout, std::span<const BatchSample> samples, void* block) const;

 private:
  void write_micro_batch(const BatchLayout& layout, std::span<const BatchSample> samples, void* block,
                         int64_t m) const;
  int32_t pad_id_;
  bool loss_on_padding_;
};

/// One optimizer step of one rank, ready to be copied to the device.
struct HostBatch {
  int64_t step = 0, epoch = 0;
  BatchLayout layout;
  void* block = nullptr;                     ///< layout.bytes() of Device::allocate_host memory
  int64_t text_tokens_used = 0;              ///< sum of lengths, for statistics
  int64_t texts_without_target = 0;          ///< samples with no token to predict
  int64_t texts_cut = 0;                     ///< samples with more than data.max_text_tokens
  std::vector<std::string> bad_samples;      ///< what is wrong with those that data.on_bad_sample: skip left out
};

}  // namespace blipft
