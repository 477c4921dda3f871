// Batch: the inputs of one training step and their memory layout.
//
// A model declares ModelInputs: pictures, and streams of rows. BatchLayout defines the offset of each field of each stream
// inside of one block, on the host and on the device alike; BatchWriter fills the block from samples. The loader, the step
// program and the tests share all three.
//
// A stream has rows of each sample, and is packed independently of the other streams: the rows of a micro-batch's samples
// are concatenated without padding, and attention never crosses a sample boundary. A padded batch is the special case in
// which all samples have the same number of rows. The rows of a sample are a list of segments: rows of pictures, which the
// model computes, and tokens. Either the first segment of each sample has Q rows of a picture, or the rows of pictures of
// any number and size replace tokens anywhere in the text.
//
// Dimension legend: M micro-batches, B samples of a micro-batch, P picture side; in a stream: T maximum tokens of a sample,
// Q rows of a sample's first segment, S = Q + T maximum rows of a sample, R rows of a micro-batch, N picture rows of a
// micro-batch that stand anywhere.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "blipft/ops.h"
#include "blipft/tensor.h"

namespace blipft {

/// The streams of a sample. `text` is the one that is predicted. If the model has an encoder, `source` is the encoder's
/// text. `instruction` is a text with its own tokenizer, which a Q-Former reads. `patches` are those of the pictures that
/// stand anywhere in the text; its samples are pictures.
enum class BatchStream { text, source, instruction, patches };
constexpr BatchStream kTextStreams[] = {BatchStream::text, BatchStream::source, BatchStream::instruction};

/// The fields of a stream that a model reads. Others use no memory. Ids and lengths are always present.
struct StreamInputs {
  int64_t vocabulary = 0;                  ///< ids are below this; 0: the model does not read the stream
  int64_t max_tokens = 0;                  ///< maximum number of tokens that the model has positions for
  int64_t first_rows = 0;                  ///< Q
  bool pictures = false;                   ///< true: rows of pictures replace tokens anywhere in the text
  int32_t picture_id = -1;                 ///< id of these tokens
  int64_t position_axes = 0;               ///< 1: it reads the position of each row; 3: positions on the axes time, y and x
                                           ///< (M-RoPE); 0: none
  bool key_lengths = false;                ///< true: reads the number of rows of each sample that are not padding
  bool label_rows = false;                 ///< true: reads the row that predicts each label
  bool last_keys = false;                  ///< true: rows of a picture see each other; goes with pictures
  bool splits_text = false;                ///< true: reads the rows of texts as rows of their own too; positions are theirs
  std::string_view tokenizer = {};         ///< subfolder of the model's folder with its tokenizer; empty: the model's own
  explicit operator bool() const { return vocabulary > 0; }
  bool operator==(const StreamInputs&) const = default;
};

/// How a tower reads the pictures of a text: in square patches. A square of patches, a cell, becomes one row of the text.
struct PatchInputs {
  int64_t side = 0;                        ///< of a patch, in pixels; 0: the model reads no patches
  int64_t merge = 1;                       ///< side of a cell, in patches
  int64_t window = 0;                      ///< side of the windows in which attention sees, in cells; 0: none
  int64_t picture_side = 0;                ///< of every picture, in cells; 0: pictures have any size
  int64_t of_cell() const { return merge * merge; }
  explicit operator bool() const { return side > 0; }
  bool operator==(const PatchInputs&) const = default;
};

/// Mean number of text rows of a sample, and of what it has of PictureShape.
struct TextRows {
  double text = 0, source = 0;
  double picture_rows = 0, pictures = 0;
  TextRows(double text_rows, double source_rows = 0) : text(text_rows), source(source_rows) {}  // NOLINT: text alone
  double all() const { return text + source; }
};

/// The inputs that a model reads. Nothing is read or decoded for what it does not declare.
struct ModelInputs {
  int64_t picture_size = 0;                ///< P: side in pixels of the picture of each sample; 0: no pictures
  StreamInputs text = {}, source = {}, instruction = {};
  PatchInputs patches = {};                ///< goes with text.pictures
  int32_t decoder_start = -1;              ///< with a source, which is the prompt of each sample: the text, the answer,
                                           ///< begins with this id
  const StreamInputs& of(BatchStream stream) const {
    return stream == BatchStream::text ? text : stream == BatchStream::source ? source : instruction;
  }
  bool has_source() const { return static_cast<bool>(source); }
  bool has_picture() const { return picture_size > 0; }
  /// Returns the rows of an instruction, without its first segment.
  double instruction_rows(const TextRows& rows) const { return !instruction ? 0 : has_source() ? rows.source : rows.text; }
  bool operator==(const ModelInputs&) const = default;
};

/// The properties of a stream's texts that determine shapes.
struct StreamShape {
  int64_t tokens = 0;                      ///< T
  int64_t packed_rows = 0;                 ///< text rows of a micro-batch whose samples differ in their number of rows; 0:
                                           ///< every sample has T
  int64_t rows(int64_t batch_size) const { return packed_rows > 0 ? packed_rows : batch_size * tokens; }
};

/// The properties of the pictures that stand anywhere in a micro-batch's texts, as far as shapes depend on them. Rows
/// that no picture fills are divided among pictures and windows of padding, which count here.
struct PictureShape {
  int64_t rows = 0;                          ///< N: cells of all pictures
  int64_t count = 0, largest = 0;            ///< pictures, and the cells of the largest one
  int64_t windows = 0;
  bool operator==(const PictureShape&) const = default;
};

/// The properties of a step's texts that determine shapes.
struct TextShape {
  int64_t tokens = 50;                       ///< T
  int64_t packed_rows = 0;                   ///< text rows of a micro-batch whose samples differ in their number
                                             ///< of rows; 0: every sample has T
  int64_t source_tokens = 0;                 ///< U; 0: there are no sources
  int64_t packed_source_rows = 0;            ///< as packed_rows, for sources
  PictureShape pictures = {};
  bool packed() const { return packed_rows > 0; }
  StreamShape text() const { return {tokens, packed_rows}; }
  StreamShape source() const { return {source_tokens, packed_source_rows}; }
  /// Text rows and source rows of a micro-batch of `batch_size` samples; mean_rows() is per sample.
  int64_t rows(int64_t batch_size) const { return text().rows(batch_size); }
  int64_t source_rows(int64_t batch_size) const { return source().rows(batch_size); }
  TextRows mean_rows(int64_t batch_size) const {
    const auto samples = static_cast<double>(batch_size);
    TextRows mean = {static_cast<double>(rows(batch_size)) / samples, static_cast<double>(source_rows(batch_size)) / samples};
    mean.picture_rows = static_cast<double>(pictures.rows) / samples;
    mean.pictures = static_cast<double>(pictures.count) / samples;
    return mean;
  }
  bool operator==(const TextShape&) const = default;
};

/// pixel -> (pixel / 255 - mean) / std, per colour.
struct PixelStatistics {
  float mean[3] = {0, 0, 0}, std[3] = {1, 1, 1};
  bool of_bytes = false;                     ///< true: computed as (pixel - 255 mean) / (255 std), as torchvision does
};

/// Device tensors of one stream of a micro-batch. Fields that the stream does not have are absent.
struct StreamRows {
  int64_t samples = 0;                     ///< B
  int64_t first_rows = 0, max_rows = 0, rows = 0;  ///< Q, S, R
  Tensor ids;                              ///< i32 [B, T], padded with the padding id
  Tensor lengths;                          ///< i32 [B], tokens
  Tensor key_lengths;                      ///< i32 [B], Q + lengths
  Tensor positions;                        ///< i32 [axes, R]; with splits_text [axes, R - B * Q], limited to max_tokens
  Tensor labels;                           ///< i32 [R - B * (Q + 1)], of the text: for each row of its tokens but the last of
                                           ///< its sample the next id, or -100 if that is no training target
  Tensor label_rows;                       ///< i32 [labels]: sample * S + row of the sample that predicts the label
  Tensor sample_keys;                      ///< i64 [B], keys of the samples (of patches: of the pictures) for dropout
  Tensor picture_of_row;                   ///< i32 [R], with pictures: the picture row that stands there; -1: a token
  Tensor row_of_picture;                   ///< i32 [N], with pictures: the row where each picture row stands; -1: nowhere
  Tensor last_keys;                        ///< i32 [R], with pictures: the last row of its sample that each row sees, see
                                           ///< AttentionForward; adjacent pictures are one
  Tensor pixels;                           ///< u8 [R, 3 * side^2], of patches: by colour, then by rows
  Tensor cell_numbers;                     ///< i32 [N], of patches: picture * maximum cells + cell in the picture
  Packing packing;                         ///< of the R rows; absent if every sample has S rows
  Packing text_packing;                    ///< of the R - B * Q rows of tokens, with splits_text; absent likewise
  int64_t windows = 0, max_window_rows = 0;  ///< of patches
  Packing window_packing;                  ///< of the R rows of patches, by windows
};

/// Device tensors of one micro-batch. Inputs that the model did not declare are absent.
struct MicroBatch {
  int64_t samples = 0;                     ///< B
  Tensor pixels;                           ///< u8 [B, P, P, 3]
  PixelStatistics pixel_statistics;
  Tensor sample_keys;                      ///< as in StreamRows
  StreamRows text, source, instruction;
  StreamRows patches;                      ///< samples: pictures. The patches of a cell follow each other, and the cells of
                                           ///< a window; positions [4, R] are row and column of the patch in its picture,
                                           ///< and the picture's number of rows and columns
  Tensor loss_weight;                      ///< f32 [1], weight of each label that is not -100
  Tensor loss;                             ///< f32 [1], the model adds the weighted loss to it
  Tensor row_loss;                         ///< f32 [labels], optional, out: the weighted loss of each label
};

/// A field of a step's block: an array [M, ...] whose m-th element belongs to micro-batch m. The first three exist once,
/// the others for each stream.
enum class BatchField {
  pixels, sample_keys,                     ///< as in MicroBatch; of patches as in StreamRows
  label_counts,                            ///< f32 [M], labels that are not -100
  ids, labels, lengths, positions, key_lengths, label_rows,  ///< as in StreamRows
  picture_of_row, row_of_picture, last_keys, cell_numbers, window_starts, window_padded_rows,
  starts, padded_rows, text_starts, text_padded_rows         ///< of its two packings
};
struct BatchPart {
  BatchField field;
  BatchStream stream = BatchStream::text;
  BatchPart(BatchField of, BatchStream in = BatchStream::text) : field(of), stream(in) {}  // NOLINT: implicit conversion
  bool operator==(const BatchPart&) const = default;
};

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
  /// Returns the shape of a stream's texts. Instructions have the shape of the sources, or of the texts if the model reads
  /// no sources.
  StreamShape shape(BatchStream stream) const;
  /// Returns the rows of a micro-batch: R; without the rows of first segments; and the labels, R - B * (Q + 1).
  int64_t rows(BatchStream stream = BatchStream::text) const {
    return batch_size_ * inputs_.of(stream).first_rows + text_rows(stream);
  }
  int64_t text_rows(BatchStream stream) const { return shape(stream).rows(batch_size_); }
  int64_t labels() const { return text_rows(BatchStream::text) - batch_size_; }

  int64_t bytes() const { return bytes_; }
  /// Returns the parts that the block has, by their offsets. Pixels are the first, so that their offset does not depend on
  /// the text shape.
  std::vector<BatchPart> parts() const;
  /// Returns a part for all micro-batches, one-dimensional, or for micro-batch m; absent if the block lacks it.
  Tensor whole(BatchPart part, void* block) const;
  Tensor of(BatchPart part, void* block, int64_t m) const;
  /// Returns the tensors of a stream, or of all streams, of micro-batch m in the block.
  StreamRows stream(BatchStream stream, void* block, int64_t m) const;
  MicroBatch micro_batch(void* block, int64_t m) const;
  bool operator==(const BatchLayout&) const = default;

 private:
  struct PlacedPart {
    BatchPart part;
    DType dtype;
    Shape shape;                           // of one micro-batch
    int64_t offset;
    bool operator==(const PlacedPart&) const = default;
  };
  void add(BatchPart part, DType dtype, const Shape& shape);
  void add_stream(BatchStream stream);
  void add_patches();
  StreamRows patches(void* block, int64_t m) const;
  const PlacedPart* find(BatchPart part) const;

  ModelInputs inputs_;
  int64_t micro_batches_ = 1, batch_size_ = 1;
  TextShape text_;
  std::vector<PlacedPart> parts_;
  int64_t bytes_ = 0;
};

/// A picture among the tokens of a text. Its cells, in row-major order, replace one token each.
struct PictureSegment {
  int64_t first = 0;                       ///< index of the first of these tokens
  int64_t height = 0, width = 0;           ///< in cells
  const uint8_t* patches = nullptr;        ///< [patches, 3 * side^2], cell by cell, if the model reads patches
  int64_t cells() const { return height * width; }
};

/// The text of a sample.
struct TokenizedText {
  std::vector<int32_t> ids;
  std::vector<uint8_t> is_label;             ///< [ids]: 1 if the token is a training target; is_label[0] is always 0
  std::vector<int32_t> instruction;        ///< ids of the instruction, if the model reads one
  std::vector<int32_t> source;             ///< ids of the source, if the model has an encoder
  std::vector<PictureSegment> pictures;    ///< of the text, ascending, if the model reads pictures anywhere
  bool cut = false;                        ///< true: the text had more than data.max_text_tokens and was truncated
  /// Returns the ids of a stream.
  const std::vector<int32_t>& of(BatchStream stream) const {
    return stream == BatchStream::text ? ids : stream == BatchStream::source ? source : instruction;
  }
  int64_t size() const { return static_cast<int64_t>(ids.size()); }
  int64_t source_size() const { return static_cast<int64_t>(source.size()); }
  int64_t rows() const { return size() + source_size(); }
  /// Returns the number of tokens of the longer of text and instruction.
  int64_t max_tokens() const { return std::max(size(), static_cast<int64_t>(instruction.size())); }
  bool has_target() const { return !ids.empty() && std::find(is_label.begin() + 1, is_label.end(), 1) != is_label.end(); }
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
  std::vector<int64_t> write_stream(const BatchLayout& layout, BatchStream stream, std::span<const BatchSample> samples,
                                    void* block, int64_t m) const;
  void write_labels(const BatchLayout& layout, std::span<const BatchSample> samples, const std::vector<int64_t>& rows,
                    void* block, int64_t m) const;
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
