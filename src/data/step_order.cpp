// Which samples come in which step of a run; see step_order.h.
#include "data/step_order.h"

#include <algorithm>
#include <limits>

#include "blipft/error.h"

namespace blipft {

Sampler::Settings sampler_settings(const Config& config, int64_t rank, int64_t world, int64_t samples,
                                   int64_t epoch_samples) {
  Sampler::Settings settings;
  settings.dataset_size = samples;
  settings.num_train_samples = epoch_samples;
  settings.batch_size = config.train.batch_size;
  settings.micro_batches = config.train.accumulate_grad_batches;
  settings.world = world;
  settings.rank = rank;
  settings.seed = static_cast<uint64_t>(config.train.seed);
  settings.shuffle = config.data.shuffle;
  settings.limit_train_batches = config.train.limit_train_batches;
  return settings;
}

int64_t count_steps(const TrainSection& train, int64_t steps_per_epoch) {
  int64_t steps = train.max_epochs > 0 ? train.max_epochs * steps_per_epoch : std::numeric_limits<int64_t>::max();
  if (train.max_steps >= 0) steps = std::min(steps, train.max_steps);
  BLIPFT_USER_CHECK(steps < std::numeric_limits<int64_t>::max(), "neither train.max_epochs (", train.max_epochs,
                    ") nor train.max_steps (",
                    train.max_steps, ") says when to stop; set one of them");
  return steps;
}

}  // namespace blipft
