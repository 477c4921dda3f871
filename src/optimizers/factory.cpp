// The table of optimizers, and the learning-rate schedule.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "optimizers/optimizers.h"

namespace blipft {

std::unique_ptr<Optimizer> make_optimizer(const TrainSection& train) {
  struct Row {
    const char* name;
    std::unique_ptr<Optimizer> (*make)(const TrainSection&);
  };
  static constexpr Row kTable[] = {
      {"adamw", make_adamw}, {"adamw8bit", make_adamw8bit}, {"lion", make_lion}, {"sgd", make_sgd}};
  std::string known;
  for (const Row& row : kTable) {
    if (train.optim == row.name) return row.make(train);
    known += concat(known.empty() ? "" : ", ", row.name);
  }
  throw UserError(concat("train.optim: found ", train.optim, ", known are ", known));
}

double learning_rate(const TrainSection& train, int64_t step, int64_t total) {
  const int64_t warmup = train.warmup_ratio > 0
                             ? static_cast<int64_t>(std::ceil(static_cast<double>(total) * train.warmup_ratio))
                             : train.warmup_steps;
  if (step < warmup) return train.lr * static_cast<double>(step) / static_cast<double>(warmup);
  const double span = static_cast<double>(std::max<int64_t>(1, total - warmup));
  const double progress = std::min(1.0, static_cast<double>(step - warmup) / span);
  if (train.lr_schedule == "linear") return train.lr * (1 - progress);
  if (train.lr_schedule == "cosine") return train.lr * 0.5 * (1 + std::cos(std::numbers::pi * progress));
  return train.lr;
}

}  // namespace blipft
