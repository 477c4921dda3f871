// Data: pictures with captions, from files to the pinned buffers of one optimizer step.
//
// Dataset (what there is) -> Sampler (which samples, in which order, for which rank) -> DataLoader (worker threads that
// decode, resize and tokenize ahead of the trainer).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "blipft/config.h"
#include "blipft/device.h"
#include "blipft/tensor.h"

namespace blipft {

/// 8-bit RGB, [height, width, 3], rows without padding.
struct Image {
  int64_t height = 0, width = 0;
  std::vector<uint8_t> rgb;
};

/// What becomes of a file's metadata. The defaults: what a script's pictures are that come from `datasets` (which turns
/// them) and go through transformers from 5.23 on (which puts them on white).
struct DecodeSettings {
  bool exif_orientation = true;             ///< turn by the EXIF (else XMP) orientation, as exif_transpose does
  bool white_background = true;             ///< what is transparent lies on white; false: transparency is left out, as
                                            ///< convert("RGB") and older transformers do
};
/// Decodes a JPEG or PNG (by its first bytes) into RGB as PIL's Image.open(...).convert("RGB") does, after what
/// `settings` ask for. 16-bit gray is clipped, CMYK read as Adobe writes it, as PIL does. EXIF that cannot be read is
/// ignored. `name` is for error messages only. Throws UserError on anything corrupt or truncated; stricter than PIL in
/// that damage which libjpeg papers over with invented pixels counts as corrupt.
Image decode_image(const uint8_t* bytes, size_t size, const std::string& name, const DecodeSettings& settings = {});
/// PIL's Image.resize((width, height), BICUBIC): antialiased, a = -0.5, 8-bit fixed-point passes. Equal bits with
/// Pillow 13; older versions differ by a few levels on pictures much taller than wide (they never do the vertical pass
/// first).
Image resize_bicubic(const Image& image, int64_t width, int64_t height);

/// What preprocessor_config.json (else processor_config.json's "image_processor") says. Missing file: the BLIP-2
/// defaults. Throws UserError naming file, key, found and expected where it asks for what this program does not do.
struct ImageProcessor {
  int64_t image_size = 224;                 ///< both sides
  float mean[3] = {0.48145466f, 0.4578275f, 0.40821073f};
  float std[3] = {0.26862954f, 0.26130258f, 0.27577711f};
  static ImageProcessor from_directory(const std::string& model_directory);
};

/// Text to token ids. Thread-safe after construction.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// Ids of `text` with the special tokens that the Hugging Face tokenizer adds (OPT: `</s>` first).
  virtual std::vector<int32_t> encode(const std::string& text) const = 0;
  virtual std::string decode(const std::vector<int32_t>& ids, bool skip_special_tokens) const = 0;
  virtual int64_t vocab_size() const = 0;
  virtual int32_t pad_id() const = 0;
};
/// Reads tokenizer.json, else vocab.json + merges.txt, with the special-token files beside them.
/// Throws UserError naming the missing or broken file.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& model_directory);

/// Random access to encoded samples. Thread-safe.
class Dataset {
 public:
  struct Sample {
    std::string name;                       ///< for messages: the picture's file, or tar member
    std::string text;
    std::vector<uint8_t> picture;           ///< encoded JPEG or PNG
  };
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;
  virtual Sample read(int64_t index) const = 0;
};
/// Opens an ImageFolder or WebDataset by `format` ("auto" looks). Throws UserError naming file and line.
/// Captions are taken as they are, white space at their ends too. A surrogate escape in JSON that is no half of a pair
/// becomes U+FFFD, as other ill-formed text does in the tokenizer. Captions that are all known to be empty are refused.
std::unique_ptr<Dataset> open_dataset(const std::string& path, const std::string& format);

/// Which samples make up a step. The whole world shares one seeded permutation per epoch; step s takes positions
/// [s * G, (s + 1) * G) of it, G = batch_size * micro_batches * world, the last incomplete step is dropped; micro-batch
/// m of rank r takes [ (m * world + r) * batch_size, ... + batch_size ) of those. So the global batch is the same for
/// every world size with equal G.
class Sampler {
 public:
  struct Settings {
    int64_t dataset_size = 0;               ///< samples in the files
    int64_t num_train_samples = 0;          ///< 0: dataset_size; may be larger: the set repeats
    int64_t batch_size = 1, micro_batches = 1, world = 1, rank = 0;
    uint64_t seed = 0;
    bool shuffle = true;
    double limit_train_batches = 1.0;
  };
  explicit Sampler(const Settings& settings);  ///< throws UserError when not even one step fits
  int64_t steps_per_epoch() const;
  int64_t samples_per_epoch() const;           ///< samples that one epoch uses (over all ranks)
  struct Slot {
    int64_t sample = 0;                        ///< index into the dataset
    int64_t key = 0;                           ///< counts samples since the run began: epoch * samples + position
  };
  /// This rank's samples of step `step` (counted from the run's start), [micro_batches * batch_size]. Thread-safe; fast
  /// while the steps asked for stay in one epoch.
  std::vector<Slot> slots(int64_t step) const;
  int64_t epoch_of(int64_t step) const { return step / steps_per_epoch(); }

 private:
  struct EpochOrder;                           // the permutation in use; thread-safe
  Settings settings_;
  int64_t samples_ = 0;
  int64_t steps_ = 0;
  std::shared_ptr<EpochOrder> order_;
};

/// The text of a step's micro-batches, as far as shapes depend on it.
struct TextShape {
  int64_t tokens = 50;                       ///< most text tokens of a sample
  int64_t packed_rows = 0;                   ///< text rows of a micro-batch whose samples lie one after the other, each
                                             ///< with rows of its own number; 0: every sample has `tokens` rows
  bool packed() const { return packed_rows > 0; }
  /// Of a micro-batch of `batch_size` samples; and of a sample, where they differ the mean.
  int64_t rows(int64_t batch_size) const { return packed() ? packed_rows : batch_size * tokens; }
  double mean_rows(int64_t batch_size) const {
    return static_cast<double>(rows(batch_size)) / static_cast<double>(batch_size);
  }
  bool operator==(const TextShape&) const = default;
};

/// Where each part of one step's data lies inside one block, on the host and on the device alike.
/// All micro-batches follow each other in each part.
struct BatchLayout {
  int64_t micro_batches = 1, batch_size = 1;
  TextShape text;                            ///< T = text.tokens, R = text.packed_rows
  int64_t image_size = 224;

  /// u8 [M, B, S, S, 3]
  int64_t pixels_offset() const { return 0; }
  /// i32 [M, B, T]
  int64_t ids_offset() const { return up(micro_batches * batch_size * image_size * image_size * 3); }
  /// i32 [M, B, T - 1] or, packed, [M, R - B]
  int64_t labels_offset() const { return ids_offset() + up(4 * micro_batches * batch_size * text.tokens); }
  /// i32 [M, B]
  int64_t lengths_offset() const { return labels_offset() + up(4 * micro_batches * batch_size * (text.tokens - 1)); }
  /// i32 [M, B]
  int64_t rows_offset() const { return lengths_offset() + up(4 * micro_batches * batch_size); }
  /// i64 [M, B]
  int64_t keys_offset() const { return rows_offset() + up(4 * micro_batches * batch_size); }
  /// f32 [M], labels >= 0
  int64_t counts_offset() const { return keys_offset() + up(8 * micro_batches * batch_size); }
  int64_t bytes() const { return counts_offset() + up(4 * micro_batches); }

  /// Labels of a micro-batch: each row predicts the next of its sample.
  int64_t labels() const { return text.rows(batch_size) - batch_size; }

  /// What a part takes: each begins at a multiple of 256 bytes.
  static int64_t up(int64_t bytes) { return (bytes + 255) / 256 * 256; }
};

/// One optimizer step of one rank, ready to be copied to the device.
/// ids are right-padded with pad_id; lengths count valid ids. rows count the text rows that the language model has for
/// a sample: T or, packed, its length and as much padding as it takes to make the R of the micro-batch.
/// A label is the id that a text row must predict, ids[b, t + 1] for row t of sample b, -100 where nothing is to be
/// learnt; a sample's last row has none. With loss_on_padding, padding up to the micro-batch's own longest caption is
/// learnt too.
struct HostBatch {
  int64_t step = 0, epoch = 0;
  BatchLayout layout;
  void* block = nullptr;                     ///< layout.bytes() of Device::allocate_host memory
  int64_t text_tokens_used = 0;              ///< sum of lengths, for statistics
  int64_t texts_without_target = 0;          ///< samples with no token to predict: nothing but the first is there
};

class DataLoader {
 public:
  virtual ~DataLoader() = default;
  /// The next step's data, null after the last step; blocks until the workers have it. Rethrows a worker's error (a
  /// corrupt picture, ...) when its step is due, and from then on. The batch stays valid until it is given back; at
  /// most prefetch_steps are out or prepared at once, so calling it with that many out is an Error.
  virtual const HostBatch* next() = 0;
  virtual void give_back(const HostBatch* batch) = 0;
  virtual int64_t steps_per_epoch() const = 0;
  virtual int64_t total_steps() const = 0;   ///< of the run: max_epochs, max_steps
  virtual double wait_seconds() const = 0;   ///< spent blocked in next() so far
};

/// `micro_batches` etc. come from config.train; rank and world from the communicator. Prepared samples that will recur
/// are kept in host memory, up to 1 GiB a rank. `device` must outlive the loader.
std::unique_ptr<DataLoader> make_data_loader(const Config& config, int64_t rank, int64_t world,
                                             const ImageProcessor& processor,
                                             std::shared_ptr<const Tokenizer> tokenizer,
                                             std::shared_ptr<const Dataset> dataset, Device& device);
/// The text shapes that steps of such a run may have, ascending, without opening any data (for --plan).
std::vector<TextShape> possible_text_shapes(const Config& config);

}  // namespace blipft
