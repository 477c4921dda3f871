// Batch: the inputs of one training step and their memory layout.
//
// A model declares ModelInputs. BatchLayout defines the offset of each part inside of one block, on the host and on the
// device alike; BatchWriter fills the block from samples. The loader, the step program and the tests share all three.
//
// Samples are packed: the rows of a micro-batch's samples are concatenated without padding, and attention never crosses
// a sample boundary. A padded batch is the special case in which all samples have the same number of rows.
//
// A model with a text encoder reads two texts of each sample: the source, for the encoder, and the decoder's text. Each
// of the two has its own number of rows and its own packing. Names without "source" refer to the decoder.
//
// Dimension legend: M micro-batches, B samples of a micro-batch, T maximum text tokens of a sample, Q rows of a sample
// before its text, S = Q + T maximum rows of a sample, R rows of a micro-batch, P picture side. For sources: U maximum
// tokens, Q rows before them (the decoder's Q is then 0), N rows of a micro-batch.
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

/// A second text of each sample with its own tokenizer: the instruction that a Q-Former reads. Its rows, which follow
/// rows of the model, are packed like the sources if the model reads sources (both are the same text), else like the
/// texts.
struct InstructionInputs {
  int64_t vocabulary = 0;                  ///< ids are below this; 0: the model reads no instruction
  std::string_view tokenizer;              ///< subfolder of the model's folder with its tokenizer
  int64_t prefix_rows = 0;                 ///< rows that the model inserts before it
  int64_t max_tokens = 0;                  ///< maximum number of tokens that the model has positions for
  explicit operator bool() const { return vocabulary > 0; }
  bool operator==(const InstructionInputs&) const = default;
};

/// Mean number of text rows of a sample.
struct TextRows {
  double text = 0, source = 0;
  TextRows(double text_rows, double source_rows = 0) : text(text_rows), source(source_rows) {}  // NOLINT: text alone
  double all() const { return text + source; }
};

/// The inputs that a model reads. Parts that it does not declare use no memory, and nothing is read or decoded for
/// them. Ids, labels and text lengths are always present.
struct ModelInputs {
  int64_t picture_size = 0;                ///< P: side in pixels of the picture of each sample; 0: no pictures
  int64_t prefix_rows = 0;                 ///< Q: rows that the model inserts before a sample's text, or its source
  int64_t max_text_tokens = 0;             ///< maximum number of tokens that the model has positions for
  int64_t vocabulary = 0;                  ///< ids are below this
  bool positions = false;                  ///< true: reads the position of each row in its sample
  bool key_lengths = false;                ///< true: reads the number of rows of each sample that are not padding
  bool label_rows = false;                 ///< true: reads the row that predicts each label
  InstructionInputs instruction;
  int32_t decoder_start = -1;              ///< >= 0: an encoder reads the prompt of each sample; the decoder's text,
                                           ///< the answer, begins with this id
  bool has_source() const { return decoder_start >= 0; }
  int64_t text_prefix() const { return has_source() ? 0 : prefix_rows; }  ///< rows before the text that is predicted
  bool has_picture() const { return picture_size > 0; }
  /// Returns the rows of an instruction, without the rows before it.
  double instruction_rows(const TextRows& rows) const { return !instruction ? 0 : has_source() ? rows.source : rows.text; }
  bool operator==(const ModelInputs&) const = default;
};

/// The properties of a step's texts that determine shapes. Instructions have the shape of the sources, or of the texts
/// if the model reads no sources.
struct TextShape {
  int64_t tokens = 50;                       ///< T
  int64_t packed_rows = 0;                   ///< text rows of a micro-batch whose samples differ in their number
                                             ///< of rows; 0: every sample has T
  int64_t source_tokens = 0;                 ///< U; 0: there are no sources
  int64_t packed_source_rows = 0;            ///< as packed_rows, for sources
  bool packed() const { return packed_rows > 0; }
  /// Text rows and source rows of a micro-batch of `batch_size` samples; mean_rows() is per sample.
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
  int64_t max_rows = 0, rows = 0;         ///< maximum rows of a sample, rows of all; rows before the text included
  Tensor ids;                              ///< i32 [B, I], padded with 0; I: U or T
  Tensor places;                           ///< i32 [B, I]: positions 0, 1, ..., limited to those that the model has
  Tensor lengths;                          ///< i32 [B]
  Tensor key_lengths;                      ///< i32 [B], lengths with the rows before the text
  Packing packing, text_packing;           ///< of all rows, of the text rows alone; absent if every sample has I tokens
};

/// The inputs of an encoder for one micro-batch.
struct SourceRows {
  int64_t max_rows = 0, rows = 0;         ///< Q + U, N
  Tensor ids;                              ///< i32 [B, U]
  Tensor lengths;                          ///< i32 [B], source tokens
  Tensor key_lengths;                      ///< i32 [B], Q + lengths
  Packing packing;                         ///< of the N rows; absent if every sample has Q + U rows
};

/// Device tensors of one micro-batch. Inputs that the model did not declare are absent.
struct MicroBatch {
  int64_t samples = 0;                     ///< B
  int64_t max_rows = 0, rows = 0;         ///< S, R
  Tensor pixels;                           ///< u8 [B, P, P, 3]
  PixelStatistics pixel_statistics;
  Tensor ids;                              ///< i32 [B, T], padded with the padding id
  Tensor labels;                           ///< i32 [R - B * (Q + 1)]: for each text row but the last of its sample
                                           ///< the next id, or -100 if that is no training target
  Tensor lengths;                          ///< i32 [B], text tokens
  Tensor sample_keys;                      ///< i64 [B], keys of the samples for dropout
  Tensor positions;                        ///< i32 [R]
  Tensor key_lengths;                      ///< i32 [B], Q + lengths
  Tensor label_rows;                       ///< i32 [labels]: sample * S + row of the sample that predicts the label
  Packing packing;                         ///< of the R rows; absent if every sample has S rows
  InstructionBatch instruction;
  SourceRows source;
  Tensor loss_weight;                      ///< f32 [1], weight of each label that is not -100
  Tensor loss;                             ///< f32 [1], the model adds the weighted loss to it
  Tensor row_loss;                         ///< f32 [labels], optional, out: the weighted loss of each label
};

/// A part of a step's block: an array [M, ...] whose m-th element belongs to micro-batch m.
enum class BatchPart {
  pixels,                                  ///< first, so that its offset does not depend on texts
  ids, labels, lengths, sample_keys,       ///< as in MicroBatch
  label_counts,                            ///< f32 [M], labels that are not -100
  positions, key_lengths, label_rows,
  starts, padded_rows,                     ///< of the packing; absent if every sample has S rows
  instruction_ids, instruction_places, instruction_lengths, instruction_key_lengths,  ///< as in InstructionBatch
  instruction_starts, instruction_padded_rows, instruction_text_starts, instruction_text_padded_rows,
  source_ids, source_lengths, source_key_lengths, source_starts, source_padded_rows  ///< as in SourceRows
};
constexpr size_t kBatchParts = 24;

/// The offsets of all parts of one step of one rank inside of one block.
class BatchLayout {
 public:
  BatchLayout() = default;
  BatchLayout(const ModelInputs& inputs, int64_t micro_batches, int64_t batch_size, const TextShape& text);

  const ModelInputs& inputs() const { return inputs_; }
  int64_t micro_batches() const { return micro_batches_; }
  int64_t batch_size() const { return batch_size_; }
  int64_t samples() const { return micro_batches_ * batch_size_; }
  const TextShape& text() const { return text_; }
  /// Rows of a micro-batch, R and N; labels() is R - B * (Q + 1).
  int64_t rows() const { return batch_size_ * inputs_.text_prefix() + text_.rows(batch_size_); }
  int64_t source_rows() const { return batch_size_ * inputs_.prefix_rows + text_.source_rows(batch_size_); }
  int64_t labels() const { return text_.rows(batch_size_) - batch_size_; }
  /// Rows of a micro-batch's instructions, with the rows before them.
  int64_t instruction_rows() const { return batch_size_ * inputs_.instruction.prefix_rows + instruction_text_rows(); }
  /// Maximum tokens of an instruction; text rows of a micro-batch's instructions.
  int64_t instruction_tokens() const { return inputs_.has_source() ? text_.source_tokens : text_.tokens; }
  int64_t instruction_text_rows() const {
    return inputs_.has_source() ? text_.source_rows(batch_size_) : text_.rows(batch_size_);
  }

  int64_t bytes() const { return bytes_; }
  /// Returns a part for all micro-batches, one-dimensional, or for micro-batch m; absent if the block lacks it.
  Tensor whole(BatchPart part, void* block) const;
  Tensor of(BatchPart part, void* block, int64_t m) const;
  /// Returns all tensors of micro-batch m in the block.
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
  std::vector<uint8_t> learnt;             ///< [ids]: 1 if the token is a training target; learnt[0] is always 0
  std::vector<int32_t> instruction;        ///< ids of the instruction, if the model reads one
  std::vector<int32_t> source;             ///< ids of the source, if the model has an encoder
  bool cut = false;                        ///< true: the text had more than data.max_text_tokens and was truncated
  int64_t size() const { return static_cast<int64_t>(ids.size()); }
  int64_t source_size() const { return static_cast<int64_t>(source.size()); }
  int64_t rows() const { return size() + source_size(); }
  /// Returns the number of tokens of the longer of text and instruction.
  int64_t max_tokens() const { return std::max(size(), static_cast<int64_t>(instruction.size())); }
  bool has_target() const { return !ids.empty() && std::find(learnt.begin() + 1, learnt.end(), 1) != learnt.end(); }
};

/// A sample of a step, without its pixels.
struct BatchSample {
  TokenizedText text;
  int64_t key = 0;                         ///< see MicroBatch::sample_keys
  bool absent = false;                     ///< true for an empty slot: padding that contributes nothing to the loss
};

/// Fills blocks. Only BatchWriter writes into a block.
class BatchWriter {
 public:
  /// `pad_id` pads texts. With loss_on_padding, padding up to the longest text of the same micro-batch is a training
  /// target too.
  BatchWriter(int32_t pad_id, bool loss_on_padding) : pad_id_(pad_id), loss_on_padding_(loss_on_padding) {}

  /// Returns the memory for the pixels of sample i, u8 [P, P, 3], which the caller fills. It is the same for every text
  /// shape. Null if the model reads no pictures.
  static uint8_t* pixels(const BatchLayout& layout, void* block, int64_t i);
  /// Moves pixels between samples: sample i gets the pixels of sample order[i].
  static void reorder_pixels(const BatchLayout& layout, void* block, std::span<const size_t> order);
  /// Writes all parts except pixels from layout.samples() samples, whose texts and instructions must fit the layout's
  /// text shape. A text has at least one row; rows of the shape that no text needs become padding of the first samples.
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
  std::vector<std::string> bad_samples;      ///< error messages of samples that data.on_bad_sample: skip left out
};

}  // namespace blipft
