// Data: samples of texts and pictures, from files to the pinned buffers of one optimizer step.
//
// Dataset (what there is) -> Sampler (which samples, in which order, for which rank) -> DataLoader (worker threads that
// decode, resize and tokenize ahead of the trainer).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "blipft/batch.h"
#include "blipft/config.h"
#include "blipft/device.h"
#include "blipft/tokenizer_rules.h"

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
/// What a picture may have: encoded, decoded, and what libjpeg keeps of one with several scans (progressive). They
/// bound the memory of each of data.num_workers threads.
constexpr int64_t most_picture_bytes = int64_t{512} << 20;
constexpr int64_t most_picture_side = 65535;
constexpr int64_t most_picture_pixels = 178956970;  // PIL refuses more as a decompression bomb
constexpr int64_t most_jpeg_bytes = int64_t{256} << 20;
constexpr int64_t most_jpeg_scans = 64;
/// Of a caption, a JSON record, or a line of metadata.
constexpr int64_t most_text_bytes = int64_t{64} << 20;

/// Decodes a JPEG, PNG or WebP (by its first bytes) into RGB as PIL's Image.open(...).convert("RGB") does, after what
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
  PixelStatistics statistics = {{0.48145466f, 0.4578275f, 0.40821073f}, {0.26862954f, 0.26130258f, 0.27577711f}};
  static ImageProcessor from_directory(const std::string& model_directory);
};

/// How a text becomes ids; the names and defaults are those of Hugging Face tokenizers.
struct EncodeOptions {
  bool add_special_tokens = true;     ///< put the ids around the text that the tokenizer's files ask for
  bool split_special_tokens = false;  ///< special tokens in the text (a literal "</s>") are text like any other
};

/// Places in a text, and where its ids have them.
struct TextPlaces {
  std::vector<size_t> bytes;          ///< first bytes of characters of the text, ascending
  std::vector<size_t> ids;            ///< of each, the index of the (first) id that stands for that character
};

/// How ids become text.
struct DecodeOptions {
  bool skip_special_tokens = true;    ///< tokens that the files call special leave no text
  bool whole_bytes = false;           ///< of a stream: tokens of single bytes wait for the next token that is none, so that
                                      ///< the pieces are decode()'s text even where the bytes are no UTF-8
};

/// Text from ids that come one after the other. To be used by one thread; the tokenizer must outlive it.
class TextStream {
 public:
  virtual ~TextStream() = default;
  /// The text that is known with this id: whole characters, perhaps none. Ids that no token has leave no text.
  virtual std::string push(int32_t id) = 0;
  /// The rest, with U+FFFD for what is no character. The next id begins another text.
  virtual std::string finish() = 0;
};

/// Text to token ids, and back. Thread-safe after construction.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// Ids of `text` alone; options.add_special_tokens does not count. Ill-formed UTF-8 is read as U+FFFD.
  virtual std::vector<int32_t> encode_plain(const std::string& text, const EncodeOptions& options = {}) const = 0;
  /// encode_plain, and places.ids for places.bytes. This default is right where each character has ids of its own.
  virtual std::vector<int32_t> encode_with_places(const std::string& text, TextPlaces& places) const;
  /// The special tokens that the Hugging Face tokenizer puts before (OPT: `</s>`, LLaMA: `<s>`) and behind every text.
  virtual std::vector<int32_t> prefix_ids() const = 0;
  virtual std::vector<int32_t> suffix_ids() const = 0;
  /// Ids of `text`; by default with these special tokens.
  std::vector<int32_t> encode(const std::string& text, const EncodeOptions& options = {}) const;
  /// The text of ids, by the decoder of the tokenizer's files: what tokenizer.decode() of transformers gives. Throws
  /// UserError naming the file where this decoder is not supported.
  std::string decode(std::span<const int32_t> ids, const DecodeOptions& options = {}) const;
  /// The same, piece by piece. Where bytes that are no UTF-8 follow each other as tokens of their own, the pieces keep the
  /// characters before them, and decode() does not.
  virtual std::unique_ptr<TextStream> text_stream(const DecodeOptions& options = {}) const = 0;
  /// The largest id + 1, added tokens included: may be more than the model's vocabulary.
  virtual int64_t vocab_size() const = 0;
  /// The id that fills up rows: pad_token of the files, else the token "<pad>", else the end id; -1: none of these.
  virtual int32_t pad_id() const = 0;
  virtual std::optional<int32_t> bos_id() const { return std::nullopt; }  ///< bos_token, where the files name one
  virtual std::optional<int32_t> eos_id() const { return std::nullopt; }  ///< eos_token, where the files name one
  virtual std::string bos_token() const { return {}; }                    ///< its text; empty: the files name none
  virtual std::string eos_token() const { return {}; }
};
/// Reads tokenizer.json, else vocab.json + merges.txt, else vocab.txt (BERT), else tokenizer.model (SentencePiece), with
/// the special-token files beside them. `rules` are those of the model's family. Throws UserError naming the missing or
/// broken file.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& model_directory, const TokenizerRules& rules);
/// Whether there is one of these files.
bool has_tokenizer(const std::string& model_directory);

/// What makes ids of the instructions that a model reads beside its texts (ModelInputs::instruction).
struct InstructionReader {
  std::shared_ptr<const Tokenizer> tokenizer; ///< null: the model reads none
  int64_t vocabulary = 0;
  int64_t max_tokens = 0;                     ///< longer ones are cut in front of what stands behind every text
  /// Empty without a tokenizer. Throws UserError with `name` if an id is not below the vocabulary.
  std::vector<int32_t> ids(const std::string& text, const std::string& name) const;
};
/// Of instructions of at most `max_tokens` tokens, where that is fewer than the model has positions for.
InstructionReader open_instruction_reader(const std::string& model_directory, const InstructionInputs& inputs,
                                          int64_t max_tokens);


/// How records become text, by config.data and the tokenizer; and what a dataset may read.
struct TextSettings {
  std::string prompt_style = "alpaca";      ///< see DataSection
  std::string chat_template;                ///< one of the names; empty: none is known
  bool mask_prompt = false;
  std::optional<bool> append_eos;           ///< nullopt: auto
  std::string bos_token, eos_token;         ///< for the chat templates
  std::string chat_date_short = "26 Jul 2024", chat_date_long = "26 July 2024";  ///< what some of these call today
  bool allow_outside = false;               ///< an ImageFolder's pictures may lie outside of its folder
  std::map<std::string, std::string> keys;  ///< what records call the keys that are known here
  std::string pictures;                     ///< folder of an ImageFolder's pictures; empty: beside the metadata
  std::string prompt_template;              ///< of pictures: what stands before a caption, or with {} for their prompt
  AnswerSelection answers = AnswerSelection::draw;
  bool for_prompts = false;                 ///< read_prompt() alone will be called: what would be learnt may be absent
};
/// With data.chat_template auto, the template is the one whose published text the tokenizer's files have.
TextSettings text_settings(const Config& config, const Tokenizer& tokenizer);

/// Random access to encoded samples. Thread-safe.
class Dataset {
 public:
  struct Segment {
    std::string text;
    bool learnt = true;                     ///< whether its tokens are to be predicted
  };
  struct Answer {
    std::string text;
    double weight = 1;                      ///< > 0, in proportion to the others'
  };
  struct Sample {
    std::string name;                       ///< for messages: the picture's file, or tar member, or file and line
    std::vector<Segment> segments;          ///< its text: each is tokenized apart, then they are joined
    std::optional<std::vector<uint8_t>> picture;  ///< encoded JPEG, PNG or WebP
    bool whole = false;                     ///< the segments are one text, tokenized in one go: what it begins and ends
                                            ///< with stands in it
    std::optional<bool> ends = {};          ///< whether the end token stands behind the joined segments, once; nullopt:
                                            ///< what the tokenizer's files put behind every text
    std::vector<Answer> answers = {};       ///< more than one: the last segment is one of these, drawn in each pass
    int64_t number = 0;                     ///< with answers: draws depend on it
  };
  /// What generation takes of a sample: the text up to what is to be generated.
  struct Prompt {
    std::string name;                       ///< as of the sample
    std::string id;                         ///< question_id or image_id of the record, as JSON; empty: it has none
    std::string picture;                    ///< the same for samples of one picture; empty: it has none
    std::string text;                       ///< empty: nothing but what the tokenizer puts before every text
    bool whole = false;                     ///< what it begins with stands in it: a conversation
    std::vector<std::string> references;    ///< texts that would be right
    bool operator==(const Prompt&) const = default;
  };
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;
  virtual Sample read(int64_t index) const = 0;
  /// Reads no picture. This default is right where the text is no conversation and has no prompt.
  virtual Prompt read_prompt(int64_t index) const;
  /// The number of a sample in the order of the files, from 0; another one than its index where samples were left out.
  virtual int64_t number_of(int64_t index) const { return index; }
  virtual bool has_pictures() const { return true; }  ///< false: no sample has one
  /// Samples of one group stay together when a part of the samples is held out.
  struct SplitGroup {
    std::string name;                       ///< empty: the sample is a group by itself
    bool is_prompt = false;                 ///< the group's samples share a prompt, not a picture
  };
  /// The group of a sample: that of its picture, else that of its prompt. A sample that cannot be read has no group.
  virtual SplitGroup split_group(int64_t index) const;
  /// Throws UserError with the number and the first of the pictures that have an unsupported format, such as GIF. Looks at
  /// all names, and at the first bytes of some pictures.
  virtual void check_picture_formats() const {}
  /// Of a folder that has pictures alone: how many files in it are no pictures, by their names.
  virtual std::optional<int64_t> files_beside_pictures() const { return std::nullopt; }
  /// Tells what this dataset is made of, in order, as far as that is known without reading samples: names of files and
  /// members (without the folder that all lie in), texts, sizes in bytes. Equal datasets tell the same. Takes some 0.1 us
  /// a sample, and looks at a few dozen files at most.
  using Take = std::function<void(std::string_view text, int64_t bytes)>;
  virtual void identify(const Take& take) const { take("", size()); }
  /// Tells what identify() does not: texts whole, of pictures sizes and contents of some that are evenly spread. What cannot
  /// be read is told as such. Reads files: up to seconds for a million samples. Thread-safe.
  virtual void identify_contents(const Take& take) const { (void)take; }
};
/// Opens a dataset by `format`: imagefolder, webdataset, json, csv, or "auto", which looks. Throws UserError naming file and
/// line. JSON files are indexed when they are opened, and each record is parsed, and checked, when it is read.
/// Captions are taken as they are, white space at their ends too. A surrogate escape in JSON that is no half of a pair
/// becomes U+FFFD, as other ill-formed text does in the tokenizer. Captions that are all known to be empty are refused.
std::unique_ptr<Dataset> open_dataset(const std::string& path, DatasetFormat format,
                                      const TextSettings& settings = {});
/// Whether something is at `path`, or matches it where it is a pattern of .tar files.
bool dataset_exists(const std::string& path);
/// What of config.data depends on the files at data.path, where the run file does not say it: texts of JSON data have
/// at most 512 tokens. To be called after load_config().
void settle_data(Config& config);

/// Which samples make up a step. The whole world shares one seeded permutation per epoch; step s takes positions
/// [s * G, (s + 1) * G) of it, G = batch_size * micro_batches * world, the last incomplete step is dropped; micro-batch
/// m of rank r takes [ (m * world + r) * batch_size, ... + batch_size ) of those. So the global batch is the same for
/// every world size with equal G. With step_samples G is that number: the micro-batches take as many of it each, the first
/// ones one more where that does not come out even, and places behind them stay empty.
class Sampler {
 public:
  struct Settings {
    int64_t dataset_size = 0;               ///< samples in the files
    int64_t num_train_samples = 0;          ///< 0: dataset_size; may be larger: the set repeats
    int64_t batch_size = 1, micro_batches = 1, world = 1, rank = 0;
    int64_t step_samples = 0;               ///< G; 0: as many as there are places
    uint64_t seed = 0;
    bool shuffle = true;
    double limit_train_batches = 1.0;
    /// Of errors: where the size of a step is set, what to lower, where samples are that an epoch has not; may be empty.
    std::string place, lower, origin;
  };
  explicit Sampler(const Settings& settings);  ///< throws UserError when not even one step fits
  int64_t steps_per_epoch() const;
  int64_t samples_per_epoch() const;           ///< samples that one epoch uses (over all ranks)
  struct Slot {
    int64_t sample = 0;                        ///< index into the dataset; -1: the place stays empty
    int64_t key = 0;                           ///< counts samples since the run began: epoch * samples + position
    int64_t pass = 0;                          ///< how often this sample came before; -1: nothing is drawn
  };
  /// This rank's samples of step `step` (counted from the run's start), [micro_batches * batch_size]. Thread-safe; fast
  /// while the steps asked for stay in one epoch.
  std::vector<Slot> slots(int64_t step) const;
  int64_t epoch_of(int64_t step) const { return step / steps_per_epoch(); }

 private:
  struct EpochOrder;                           // the permutation in use; thread-safe
  Settings settings_;
  int64_t samples_ = 0;
  int64_t step_samples_ = 0;                   // G
  int64_t steps_ = 0;
  std::shared_ptr<EpochOrder> order_;
};

class TextSurvey;                              // src/loading/text_survey.h: texts tokenized before the run begins

/// The samples that a loader reads.
struct SampleSet {
  std::shared_ptr<const Dataset> dataset;
  int64_t epoch_samples = 0;                   ///< 0: as many as there are; more than there are: the set repeats
  std::shared_ptr<const TextSurvey> texts;     ///< of just these samples; null: nothing is known of them before
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
  /// The text shapes of this rank's first steps, one for each step: of all steps as far as `most_samples` different
  /// samples and some hundred steps go. Reads and tokenizes these samples on the calling thread, which may be another
  /// one than next()'s; ends before a step with a sample that cannot be read.
  virtual std::vector<TextShape> first_text_shapes(int64_t most_samples) const = 0;
};

/// `micro_batches` etc. come from config.train; rank and world from the communicator. `text_shapes`: those that steps
/// may have, ascending; the last holds whatever comes. Pictures are decoded, and must be there, only if `inputs`
/// declares them. Prepared samples that will recur are kept in host memory, up to 1 GiB a rank. A sample that cannot be
/// prepared is a UserError with its name; with data.on_bad_sample skip its place stays empty, and the batch tells of
/// it, until so many come one after the other that it is the data that has gone. `device` must outlive the loader.
/// `first_step`: the first that comes out.
std::unique_ptr<DataLoader> make_data_loader(const Config& config, int64_t rank, int64_t world,
                                             const ModelInputs& inputs, std::vector<TextShape> text_shapes,
                                             std::shared_ptr<const Tokenizer> tokenizer, const SampleSet& samples,
                                             Device& device, int64_t first_step = 0,
                                             InstructionReader instructions = {});
/// The same for validation: samples in order, each once, on all ranks together; then again from the first, without end:
/// an epoch is one validation. Steps have one micro-batch; where samples do not come out even, places stay empty.
std::unique_ptr<DataLoader> make_validation_loader(const Config& config, int64_t rank, int64_t world,
                                                   const ModelInputs& inputs, std::vector<TextShape> text_shapes,
                                                   std::shared_ptr<const Tokenizer> tokenizer,
                                                   const SampleSet& samples, Device& device,
                                                   InstructionReader instructions = {});
/// The text shapes that steps of such a run may have, ascending, as far as the config tells: for texts of any length up
/// to data.max_text_tokens. Where texts are known before, text_survey.h chooses better ones.
/// With sources, of both sides.
std::vector<TextShape> possible_text_shapes(const Config& config, bool has_source = false);
/// Throws UserError when texts of data.max_text_tokens are longer than the model's positions allow.
void check_text_length(const Config& config, const ModelInputs& inputs);
/// The same, and when ids that the tokenizer puts around texts, or padding that is learnt, are not the model's.
void check_text_inputs(const Config& config, const ModelInputs& inputs, const Tokenizer& tokenizer);

}  // namespace blipft
