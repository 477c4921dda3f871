// Loading: the samples of each step, and the threads that prepare them in pinned buffers ahead of the trainer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "blipft/batch.h"
#include "blipft/choices.h"
#include "blipft/datasets.h"
#include "blipft/device.h"
#include "blipft/key_locations.h"
#include "blipft/text.h"

namespace blipft {

/// data.transparency: composite transparent pixels over white, or ignore the alpha channel.
enum class Transparency { white, drop };
BLIPFT_CHOICE_WORDS(Transparency, "white", "drop");
/// data.pixel_library: the one whose resizing and normalization are reproduced; auto: that of the model family's processor.
enum class PixelLibraryChoice { automatic, pillow, torchvision };
BLIPFT_CHOICE_WORDS(PixelLibraryChoice, "auto", "pillow", "torchvision");
/// data.text_padding
enum class TextPadding { automatic, packed, longest, max };
BLIPFT_CHOICE_WORDS(TextPadding, "auto", "packed", "longest", "max");
/// train.loss_normalization: mean over the tokens of a step, or mean of the micro-batches' means.
enum class LossNormalization { tokens, micro_batch };
BLIPFT_CHOICE_WORDS(LossNormalization, "tokens", "micro_batch");

/// Which samples a run reads, and how they are prepared.
struct DataSection : TextKeys {
  std::string path;                     ///< ImageFolder directory or COCO captions (.json), or a .tar / directory of .tar
                                        ///< shards (WebDataset), or a .json / .jsonl / .csv file / directory of them
  std::string val_path;                 ///< validation samples, in the same format; empty: none
  double val_split_fraction = 0;        ///< share of the samples at `path` that are kept for validation
  DatasetFormat format = DatasetFormat::automatic;
  int64_t num_train_samples = 0;        ///< use the first n samples; 0: all. More than there are: the set repeats.
  bool exif_orientation = true;         ///< turn pictures as their EXIF says
  Transparency transparency = Transparency::white;  ///< of pictures with an alpha channel
  /// Limits of the area of pictures in texts after resizing; 0: those of the model's folder.
  int64_t min_pixels = 0, max_pixels = 0;
  int64_t max_pictures = 0;             ///< of a sample; 0: any number
  PixelLibraryChoice pixel_library = PixelLibraryChoice::automatic;
  int64_t max_text_tokens = 50;         ///< longer texts are cut; usual_text_tokens() where not given. A
                                        ///< run file may call it max_seq_length
  TextPadding text_padding = TextPadding::automatic;  ///< auto: packed, or longest with loss_on_padding
  int64_t num_workers = 4;              ///< decoding and tokenizing threads of each rank
  int64_t prefetch_steps = 3;           ///< steps prepared ahead
  bool shuffle = true;
  FaultAction on_bad_sample = FaultAction::stop;  ///< a sample that cannot be read, decoded or tokenized
};

/// How samples are divided into the steps of a run: keys of train.
struct StepsSection {
  int64_t batch_size = 16;              ///< samples of one micro-batch of one rank, at most; 0 (auto): chosen when the run
                                        ///< starts; load_config(): so where total_batch_size alone is given
  int64_t accumulate_grad_batches = 1;  ///< micro-batches of a step; 0: as total_batch_size says, see resolve_for_ranks
  int64_t total_batch_size = 0;         ///< samples of a step over all ranks; 0: as the others say
  int64_t max_epochs = 1;               ///< -1: no limit; load_config() sets it where max_steps alone is given
  int64_t max_steps = -1;               ///< -1: no limit
  double limit_train_batches = 1.0;     ///< <= 1: a fraction of an epoch's steps; > 1: that many steps
  double limit_val_batches = 1.0;       ///< <= 1: a fraction of a validation's batches; > 1: that many
  int64_t seed = 0;
  bool loss_on_padding = false;         ///< train on padding as the tutorial does
  LossNormalization loss_normalization = LossNormalization::tokens;  ///< mean over tokens, or over micro-batches
};

/// The settings that determine a run's samples and their division into steps.
struct LoadingSettings : KeyLocations {
  DataSection data;
  StepsSection steps;
  int64_t smoke_steps = 0;                  ///< > 0: number of steps of a trial run, see make_smoke()
};
/// Returns true if the run validates: data.val_path or data.val_split_fraction is given.
inline bool validates(const LoadingSettings& loading) {
  return !loading.data.val_path.empty() || loading.data.val_split_fraction > 0;
}

struct DecodeSettings;                         // blipft/pictures.h
/// Returns how the run file decodes pictures.
DecodeSettings picture_decoding(const LoadingSettings& loading);

/// Selects the samples of each step. All ranks share one seeded permutation per epoch. Step s consists of its
/// positions [s * G, (s + 1) * G) with G = batch_size * micro_batches * world; an incomplete last step is dropped.
/// Micro-batch m of rank r gets positions [(m * world + r) * batch_size, ... + batch_size) of the step, so the global
/// batch is the same for every world size with equal G. If step_samples is set, it is G: samples are divided evenly
/// between the micro-batches, the first ones get one more if there is a remainder, and the slots behind them stay
/// empty.
class Sampler {
 public:
  struct Settings {
    int64_t dataset_size = 0;               ///< samples in the files
    int64_t num_train_samples = 0;          ///< 0: dataset_size; if it is larger than that, the dataset repeats
    int64_t batch_size = 1, micro_batches = 1, world = 1, rank = 0;
    int64_t step_samples = 0;               ///< G; 0: the number of slots
    uint64_t seed = 0;
    bool shuffle = true;
    double limit_train_batches = 1.0;
    /// Parts of error messages, which may be empty: the key that sets the size of a step, the keys to lower, and the
    /// samples that are not part of an epoch.
    std::string location, lower, origin;
  };
  explicit Sampler(const Settings& settings);  ///< throws UserError if there are too few samples for one step
  int64_t steps_per_epoch() const;
  int64_t samples_per_epoch() const;           ///< number of samples that one epoch uses on all ranks
  struct Slot {
    int64_t sample = 0;                        ///< index into the dataset, -1 for an empty slot
    int64_t key = 0;                           ///< number of the sample in the run: epoch * samples + position
    int64_t pass = 0;                          ///< number of earlier uses of the sample, -1 if nothing is drawn for it
  };
  /// Returns this rank's samples of step `step`, counted from the start of the run: [micro_batches * batch_size].
  /// Thread-safe. Fast while successive calls stay in one epoch.
  std::vector<Slot> slots(int64_t step) const;
  int64_t epoch_of(int64_t step) const { return step / steps_per_epoch(); }

 private:
  struct EpochOrder;                           // the current permutation; thread-safe
  Settings settings_;
  int64_t samples_ = 0;
  int64_t step_samples_ = 0;                   // G
  int64_t steps_ = 0;
  std::shared_ptr<EpochOrder> order_;
};

struct PictureReader;                          // src/loading/picture_reader.h: pictures anywhere in texts
class TextSurvey;                              // src/loading/text_survey.h: texts, tokenized before the first step

/// The samples of a loader.
struct SampleSet {
  std::shared_ptr<const Dataset> dataset;
  int64_t epoch_samples = 0;                   ///< 0: the size of the dataset; if larger than that, the dataset repeats
  std::shared_ptr<const TextSurvey> texts;     ///< survey of exactly these samples; null if there is none
  std::shared_ptr<const PictureReader> pictures;  ///< if the model reads pictures anywhere in texts
};

class DataLoader {
 public:
  virtual ~DataLoader() = default;
  /// Returns the data of the next step, or null after the last step. Blocks until the workers have prepared it. From
  /// the step of a worker's error (such as a corrupt picture) on, each call rethrows that error. The batch is valid
  /// until give_back(). At most prefetch_steps batches exist at once, so it is an Error to call this while that many
  /// are in use.
  virtual const HostBatch* next() = 0;
  virtual void give_back(const HostBatch* batch) = 0;
  virtual int64_t steps_per_epoch() const = 0;
  virtual int64_t total_steps() const = 0;   ///< number of steps of the run, by max_epochs and max_steps
  virtual double wait_seconds() const = 0;   ///< time blocked in next() so far
  /// Returns the text shapes of this rank's first steps, one per step: at most some hundred steps with at most
  /// `max_samples` different samples, ending before a step with an unreadable sample. Reads and tokenizes the
  /// samples on the calling thread, which need not be the thread of next().
  virtual std::vector<TextShape> first_text_shapes(int64_t max_samples) const = 0;
};

/// Creates the loader of a training run. `text_shapes` are the possible shapes of steps, ascending; the last one
/// holds any step. Pictures are required and decoded only if `inputs` declares them. Prepared samples that will recur
/// are kept in host memory, up to 1 GiB per rank. A sample that cannot be prepared is a UserError with its name. With
/// data.on_bad_sample=skip its slot stays empty and the batch reports it, until the number of consecutive failures
/// shows that the data itself is missing. `device` must outlive the loader. The loader begins with `first_step`.
std::unique_ptr<DataLoader> make_data_loader(const LoadingSettings& loading, int64_t rank, int64_t world,
                                             const ModelInputs& inputs, std::vector<TextShape> text_shapes,
                                             std::shared_ptr<const Tokenizer> tokenizer, const SampleSet& samples,
                                             Device& device, int64_t first_step = 0,
                                             InstructionReader instructions = {});
/// Creates the loader of validations. One epoch is one validation: all ranks together read each sample once, in
/// order. The epochs never end. Steps have one micro-batch; slots without a sample stay empty.
std::unique_ptr<DataLoader> make_validation_loader(const LoadingSettings& loading, int64_t rank, int64_t world,
                                                   const ModelInputs& inputs, std::vector<TextShape> text_shapes,
                                                   std::shared_ptr<const Tokenizer> tokenizer,
                                                   const SampleSet& samples, Device& device,
                                                   InstructionReader instructions = {});
/// Returns the text shapes that steps may have by the settings alone, ascending: for texts of any length up to
/// data.max_text_tokens, and with `has_source` for sources too. A survey of the texts (text_survey.h) chooses better
/// ones.
std::vector<TextShape> possible_text_shapes(const LoadingSettings& loading, bool has_source = false);
/// Throws UserError if data.max_text_tokens exceeds the number of positions of the model.
void check_text_length(const LoadingSettings& loading, const ModelInputs& inputs);
/// Calls check_text_length(), then throws UserError if the model lacks ids that the tokenizer puts around texts or, if
/// padding is trained on, the id of padding.
void check_text_inputs(const LoadingSettings& loading, const std::string& model_folder, const ModelInputs& inputs,
                       const Tokenizer& tokenizer);

}  // namespace blipft
