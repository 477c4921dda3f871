// The samples of each step of a run; see step_order.h.
#include "loading/step_order.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <unordered_map>

#include "blipft/error.h"
#include "loading/in_threads.h"
#include "loading/random_order.h"

namespace blipft {

namespace {

class TrainingOrder final : public StepOrder {
 public:
  TrainingOrder(const Sampler::Settings& settings, const LoadingSettings& loading)
      : sampler_(settings), micro_batches_(settings.micro_batches),
        total_steps_(count_steps(loading, sampler_.steps_per_epoch())) {}
  std::vector<Sampler::Slot> slots(int64_t step) const override { return sampler_.slots(step); }
  int64_t micro_batches() const override { return micro_batches_; }
  int64_t steps_per_epoch() const override { return sampler_.steps_per_epoch(); }
  int64_t total_steps() const override { return total_steps_; }

 private:
  Sampler sampler_;
  int64_t micro_batches_, total_steps_;
};

class DealtOrder final : public StepOrder {
 public:
  DealtOrder(const LoadingSettings& loading, int64_t rank, int64_t world, std::vector<int64_t> work, int64_t epoch_samples)
      : sampler_(sampler_of_all_ranks(loading, world, static_cast<int64_t>(work.size()), epoch_samples)), work_(std::move(work)),
        rank_(rank), world_(world), batch_(loading.steps.batch_size), micro_batches_(loading.steps.accumulate_grad_batches),
        total_steps_(count_steps(loading, sampler_.steps_per_epoch())) {}
  std::vector<Sampler::Slot> slots(int64_t step) const override {
    const std::vector<Sampler::Slot> all = dealt_slots(sampler_.slots(step), work_, micro_batches_ * world_);
    std::vector<Sampler::Slot> own;
    for (int64_t m = 0; m < micro_batches_; ++m) {
      const auto first = all.begin() + (m * world_ + rank_) * batch_;
      own.insert(own.end(), first, first + batch_);
    }
    return own;
  }
  int64_t micro_batches() const override { return micro_batches_; }
  int64_t steps_per_epoch() const override { return sampler_.steps_per_epoch(); }
  int64_t total_steps() const override { return total_steps_; }

 private:
  Sampler sampler_;
  std::vector<int64_t> work_;
  int64_t rank_, world_, batch_, micro_batches_, total_steps_;
};

class ValidationOrder final : public StepOrder {
 public:
  ValidationOrder(int64_t rank, int64_t world, int64_t batch, int64_t samples, int64_t steps)
      : rank_(rank), world_(world), batch_(batch), samples_(samples), steps_(steps) {}
  std::vector<Sampler::Slot> slots(int64_t step) const override {
    std::vector<Sampler::Slot> slots;
    const int64_t first = (step % steps_ * world_ + rank_) * batch_;
    for (int64_t i = first; i < first + batch_; ++i) slots.push_back({i < samples_ ? i : -1, i, -1});
    return slots;
  }
  int64_t micro_batches() const override { return 1; }
  int64_t steps_per_epoch() const override { return steps_; }
  int64_t total_steps() const override { return std::numeric_limits<int64_t>::max(); }

 private:
  int64_t rank_, world_, batch_, samples_, steps_;
};

}  // namespace

Sampler::Settings sampler_settings(const LoadingSettings& loading, int64_t rank, int64_t world, int64_t samples,
                                   int64_t epoch_samples) {
  Sampler::Settings settings;
  settings.dataset_size = samples;
  settings.num_train_samples = epoch_samples;
  settings.batch_size = loading.steps.batch_size;
  settings.micro_batches = loading.steps.accumulate_grad_batches;
  settings.step_samples = loading.steps.total_batch_size;
  settings.world = world;
  settings.rank = rank;
  settings.seed = static_cast<uint64_t>(loading.steps.seed);
  settings.shuffle = loading.data.shuffle;
  settings.limit_train_batches = loading.steps.limit_train_batches;
  const bool total = loading.steps.total_batch_size > 0;
  const std::string key = total ? "train.total_batch_size" : "train.batch_size";
  settings.location = location_of(loading, key) + ": " + key;
  if (loading.data.val_split_fraction > 0)
    settings.origin = concat(" (data.val_split_fraction=", loading.data.val_split_fraction, " keeps the others for validation)");
  settings.lower = total ? "train.total_batch_size and train.batch_size" : "";
  return settings;
}

int64_t count_steps(const LoadingSettings& loading, int64_t steps_per_epoch) {
  int64_t steps = std::numeric_limits<int64_t>::max();
  if (loading.steps.max_epochs > 0 && __builtin_mul_overflow(loading.steps.max_epochs, steps_per_epoch, &steps))
    steps = std::numeric_limits<int64_t>::max();
  if (loading.steps.max_steps >= 0) steps = std::min(steps, loading.steps.max_steps);
  BLIPFT_USER_CHECK(steps < std::numeric_limits<int64_t>::max(), "neither train.max_epochs (", loading.steps.max_epochs,
                    ") nor train.max_steps (",
                    loading.steps.max_steps, ") says when to stop; set one of them");
  return steps;
}

std::unique_ptr<StepOrder> make_training_order(const LoadingSettings& loading, int64_t rank, int64_t world, int64_t samples,
                                               int64_t epoch_samples) {
  return std::make_unique<TrainingOrder>(sampler_settings(loading, rank, world, samples, epoch_samples), loading);
}

Sampler::Settings sampler_of_all_ranks(const LoadingSettings& loading, int64_t world, int64_t samples, int64_t epoch_samples) {
  Sampler::Settings all = sampler_settings(loading, 0, 1, samples, epoch_samples);
  all.micro_batches *= world;
  return all;
}

std::vector<Sampler::Slot> dealt_slots(const std::vector<Sampler::Slot>& slots, const std::vector<int64_t>& work, int64_t groups) {
  const auto work_of = [&](const Sampler::Slot& slot) { return slot.sample < 0 ? 0 : work[static_cast<size_t>(slot.sample)]; };
  std::vector<Sampler::Slot> largest_first = slots;
  std::stable_sort(largest_first.begin(), largest_first.end(),
                   [&](const Sampler::Slot& a, const Sampler::Slot& b) { return work_of(a) > work_of(b); });
  struct Group {
    std::vector<Sampler::Slot> slots;
    int64_t work = 0;
  };
  std::vector<Group> all(static_cast<size_t>(groups));
  const size_t each = slots.size() / all.size();
  for (const Sampler::Slot& slot : largest_first) {  // to the group with the least work that has room
    Group& group = *std::min_element(all.begin(), all.end(), [&](const Group& a, const Group& b) {
      return std::pair(a.slots.size() == each, a.work) < std::pair(b.slots.size() == each, b.work);
    });
    group.slots.push_back(slot);
    group.work += work_of(slot);
  }
  std::vector<Sampler::Slot> dealt;
  for (const Group& group : all) dealt.insert(dealt.end(), group.slots.begin(), group.slots.end());
  return dealt;
}

std::unique_ptr<StepOrder> make_dealt_order(const LoadingSettings& loading, int64_t rank, int64_t world,
                                            std::vector<int64_t> work, int64_t epoch_samples) {
  return std::make_unique<DealtOrder>(loading, rank, world, std::move(work), epoch_samples);
}

int64_t validation_steps(const LoadingSettings& loading, int64_t world, int64_t samples) {
  const int64_t together = loading.steps.batch_size * world, all = (samples + together - 1) / together;
  if (loading.smoke_steps > 0) return 1;
  const double limit = loading.steps.limit_val_batches;
  const int64_t steps = limit <= 1 ? static_cast<int64_t>(std::floor(static_cast<double>(all) * limit))
                                   : static_cast<int64_t>(std::min(static_cast<double>(all), limit));
  BLIPFT_USER_CHECK(steps > 0, location_of(loading, "train.limit_val_batches"), ": train.limit_val_batches: ", limit,
                    " of the ", all, " batches of a validation leaves none; raise it (above 1 it counts batches)");
  return steps;
}

std::unique_ptr<StepOrder> make_validation_order(const LoadingSettings& loading, int64_t rank, int64_t world, int64_t samples) {
  return std::make_unique<ValidationOrder>(rank, world, loading.steps.batch_size, samples,
                                           validation_steps(loading, world, samples));
}

Split split_samples(const LoadingSettings& loading, const std::vector<int64_t>& groups) {
  const auto samples = static_cast<int64_t>(groups.size());
  const double share = loading.data.val_split_fraction;
  BLIPFT_USER_CHECK(samples >= 2, location_of(loading, "data.val_split_fraction"), ": data.val_split_fraction: found ",
                    counted(samples, "sample"), " at ", loading.data.path, ", and a split needs at least two, one to learn and one "
                    "to validate with; give more samples, or data.val_split_fraction=0");
  const auto wanted = static_cast<int64_t>(std::llround(static_cast<double>(samples) * share));
  BLIPFT_USER_CHECK(wanted > 0 && wanted < samples, location_of(loading, "data.val_split_fraction"),
                    ": data.val_split_fraction: ", share, " of the ", samples, " samples at ", loading.data.path,
                    " is ", wanted, ", which leaves no sample for ", wanted > 0 ? "training" : "validation",
                    "; expected between ", 1.0 / static_cast<double>(samples), " and 1");
  std::vector<int64_t> sizes;
  for (const int64_t group : groups) {
    if (group == static_cast<int64_t>(sizes.size())) sizes.push_back(0);
    ++sizes.at(static_cast<size_t>(group));
  }
  BLIPFT_USER_CHECK(sizes.size() >= 2, location_of(loading, "data.val_split_fraction"), ": data.val_split_fraction: all ", samples,
                    " samples at ", loading.data.path, " belong to one picture or prompt, which cannot be split. Use "
                    "data.val_path for validation samples, or data.val_split_fraction=0.");
  std::vector<int64_t> order(sizes.size());
  shuffle(order, static_cast<uint64_t>(loading.steps.seed), RandomOrder::split);
  std::vector<bool> validates(sizes.size());
  int64_t kept = 0;
  for (size_t i = 0; i + 1 < order.size() && kept < wanted; ++i) {
    const auto group = static_cast<size_t>(order[i]);
    const bool worse = kept + sizes[group] - wanted > wanted - kept;
    if (kept > 0 && worse) break;
    validates[group] = true;
    kept += sizes[group];
  }
  Split split;
  for (int64_t i = 0; i < samples; ++i)
    (validates[static_cast<size_t>(groups[static_cast<size_t>(i)])] ? split.validation : split.training).push_back(i);
  return split;
}

Split split_samples(const LoadingSettings& loading, const Dataset& dataset, int64_t threads) {
  constexpr int64_t kMaxPromptSamples = 64;  // data sets with several references for a prompt have fewer than that
  const int64_t samples = dataset.size();
  struct Group {
    size_t hash = 0;                         // hash of the name: the names of many prompts need much memory
    bool is_prompt = false, alone = false;
  };
  std::vector<Group> of_sample(static_cast<size_t>(samples));
  for_each_in_threads(samples, threads, [&](int64_t i) {
    const Dataset::SplitGroup group = dataset.split_group(i);
    of_sample[static_cast<size_t>(i)] = {std::hash<std::string>()(group.name), group.is_prompt, group.name.empty()};
  });
  std::unordered_map<size_t, int64_t> prompt_samples, numbers;
  for (const Group& group : of_sample)
    if (group.is_prompt) ++prompt_samples[group.hash];
  std::vector<int64_t> groups;
  int64_t count = 0;
  for (const Group& group : of_sample) {
    const int64_t same = group.is_prompt ? prompt_samples[group.hash] : 0;
    const bool alone = group.alone || same > kMaxPromptSamples || 2 * same > samples;
    const int64_t number = alone ? count : numbers.try_emplace(group.hash, count).first->second;
    count += number == count;
    groups.push_back(number);
  }
  return split_samples(loading, groups);
}

}  // namespace blipft
