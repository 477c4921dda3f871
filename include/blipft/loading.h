// Loading: which samples make up a step, and the threads that prepare them in pinned buffers ahead of the trainer.
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
#include "blipft/key_places.h"
#include "blipft/text.h"

namespace blipft {

/// What the samples of a run are, and how steps are made of them. The keys of the run file say more of each.
struct LoadingSettings {
  KeyPlaces keys;
  std::string model_path, path, val_path;   ///< for messages
  // Texts.
  int64_t max_text_tokens = 0;
  TextPadding text_padding = TextPadding::automatic;
  bool loss_on_padding = false;
  // Steps.
  int64_t batch_size = 1, micro_batches = 1, total_batch_size = 0;
  LossNormalization loss_normalization = LossNormalization::tokens;
  uint64_t seed = 0;
  bool shuffle = true, smoke = false;
  double val_split_fraction = 0, limit_train_batches = 1, limit_val_batches = 1;
  int64_t max_epochs = 1, max_steps = -1;
  // Reading.
  int64_t num_workers = 1, prefetch_steps = 1;
  FaultAction on_bad_sample = FaultAction::stop;
  bool exif_orientation = true;
  Transparency transparency = Transparency::white;
};

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

/// Rank and world come from the communicator. `text_shapes`: those that steps
/// may have, ascending; the last holds whatever comes. Pictures are decoded, and must be there, only if `inputs`
/// declares them. Prepared samples that will recur are kept in host memory, up to 1 GiB a rank. A sample that cannot be
/// prepared is a UserError with its name; with data.on_bad_sample skip its place stays empty, and the batch tells of
/// it, until so many come one after the other that it is the data that has gone. `device` must outlive the loader.
/// `first_step`: the first that comes out.
std::unique_ptr<DataLoader> make_data_loader(const LoadingSettings& loading, int64_t rank, int64_t world,
                                             const ModelInputs& inputs, std::vector<TextShape> text_shapes,
                                             std::shared_ptr<const Tokenizer> tokenizer, const SampleSet& samples,
                                             Device& device, int64_t first_step = 0,
                                             InstructionReader instructions = {});
/// The same for validation: samples in order, each once, on all ranks together; then again from the first, without end:
/// an epoch is one validation. Steps have one micro-batch; where samples do not come out even, places stay empty.
std::unique_ptr<DataLoader> make_validation_loader(const LoadingSettings& loading, int64_t rank, int64_t world,
                                                   const ModelInputs& inputs, std::vector<TextShape> text_shapes,
                                                   std::shared_ptr<const Tokenizer> tokenizer,
                                                   const SampleSet& samples, Device& device,
                                                   InstructionReader instructions = {});
/// The text shapes that steps of such a run may have, ascending, as far as the settings tell: for texts of any length up
/// to data.max_text_tokens. Where texts are known before, text_survey.h chooses better ones.
/// With sources, of both sides.
std::vector<TextShape> possible_text_shapes(const LoadingSettings& loading, bool has_source = false);
/// Throws UserError when texts of data.max_text_tokens are longer than the model's positions allow.
void check_text_length(const LoadingSettings& loading, const ModelInputs& inputs);
/// The same, and when ids that the tokenizer puts around texts, or padding that is learnt, are not the model's.
void check_text_inputs(const LoadingSettings& loading, const ModelInputs& inputs, const Tokenizer& tokenizer);

}  // namespace blipft
