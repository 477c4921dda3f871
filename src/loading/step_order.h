// The samples of each step of a run.
#pragma once

#include <memory>
#include <vector>

#include "blipft/loading.h"

namespace blipft {

/// The samples of each step of one rank.
class StepOrder {
 public:
  virtual ~StepOrder() = default;
  /// Returns the slots of a step, [micro_batches * batch_size]: indices into the dataset, -1 for an empty slot if the
  /// samples cannot be divided evenly. Thread-safe.
  virtual std::vector<Sampler::Slot> slots(int64_t step) const = 0;
  virtual int64_t micro_batches() const = 0;
  virtual int64_t steps_per_epoch() const = 0;
  virtual int64_t total_steps() const = 0;
};

/// Returns the settings of a run's Sampler. `samples`: the size of the dataset; `epoch_samples`: see SampleSet.
Sampler::Settings sampler_settings(const LoadingSettings& loading, int64_t rank, int64_t world, int64_t samples,
                                   int64_t epoch_samples);
/// Steps of a run: train.max_epochs, train.max_steps. Throws UserError when neither says when to stop.
int64_t count_steps(const LoadingSettings& loading, int64_t steps_per_epoch);
std::unique_ptr<StepOrder> make_training_order(const LoadingSettings& loading, int64_t rank, int64_t world, int64_t samples,
                                               int64_t epoch_samples);
/// Like make_training_order(), but the samples of a step are dealt to the micro-batches of all ranks so that each has about
/// the same sum of `work`, which has a number for each sample.
std::unique_ptr<StepOrder> make_dealt_order(const LoadingSettings& loading, int64_t rank, int64_t world,
                                            std::vector<int64_t> work, int64_t epoch_samples);
/// Returns the settings of a Sampler of all ranks: its micro-batch m * world + r is micro-batch m of rank r.
Sampler::Settings sampler_of_all_ranks(const LoadingSettings& loading, int64_t world, int64_t samples, int64_t epoch_samples);
/// Deals the slots of a step to `groups` groups of equally many slots: consecutive groups with about the same sum of `work`.
std::vector<Sampler::Slot> dealt_slots(const std::vector<Sampler::Slot>& slots, const std::vector<int64_t>& work, int64_t groups);

/// Steps of a validation with `samples` samples: of one micro-batch of train.batch_size on each rank, as far as
/// train.limit_val_batches says. Throws UserError when it leaves none.
int64_t validation_steps(const LoadingSettings& loading, int64_t world, int64_t samples);
/// Samples in order: rank r takes the (step * world + r)-th train.batch_size of them. An epoch is one validation; there
/// is no last one.
std::unique_ptr<StepOrder> make_validation_order(const LoadingSettings& loading, int64_t rank, int64_t world, int64_t samples);

/// The samples that data.val_split_fraction holds out for validation, and all others, both in ascending order.
struct Split {
  std::vector<int64_t> training, validation;
};
/// Splits samples by train.seed. `groups[i]` is the group of sample i: a group is held out whole or not at all, and
/// groups are numbered from 0 in the order of their first samples. The number of samples held out is as close to
/// the fraction as whole groups allow. Throws UserError if either side is empty.
Split split_samples(const LoadingSettings& loading, const std::vector<int64_t>& groups);
/// Splits samples into the groups of Dataset::split_group(). A prompt with more than 64 samples, or with more than half
/// of all samples, describes the task and does not identify a sample: its samples are split one by one.
Split split_samples(const LoadingSettings& loading, const Dataset& dataset, int64_t threads = 1);

}  // namespace blipft
