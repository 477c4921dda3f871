// Creates optimizers by name, and computes the learning-rate schedule.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "blipft/optimizer_names.h"
#include "optimizers/optimizers.h"

namespace blipft {

namespace {

struct Row {
  const char* name;
  std::unique_ptr<Optimizer> (*make)(const OptimizerSettings&, int64_t seed);
};
constexpr Row kTable[] = {{"adamw", make_adamw}, {"adamw8bit", make_adamw8bit}, {"lion", make_lion}, {"sgd", make_sgd}};

}  // namespace

std::vector<std::string> optimizer_names() {
  std::vector<std::string> names;
  for (const Row& row : kTable) names.push_back(row.name);
  return names;
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerSettings& settings, int64_t seed) {
  std::string known;
  for (const Row& row : kTable) {
    if (settings.optim == row.name) return row.make(settings, seed);
    known += concat(known.empty() ? "" : ", ", row.name);
  }
  throw UserError(concat("train.optim: found ", settings.optim, ", known are ", known));
}

double learning_rate(const LearningRateSettings& schedule, int64_t step, int64_t total) {
  const int64_t warmup = schedule.warmup_ratio > 0
                             ? static_cast<int64_t>(std::ceil(static_cast<double>(total) * schedule.warmup_ratio))
                             : schedule.warmup_steps;
  if (step < warmup) return schedule.lr * static_cast<double>(step) / static_cast<double>(warmup);
  const double span = static_cast<double>(std::max<int64_t>(1, total - warmup));
  const double progress = std::min(1.0, static_cast<double>(step - warmup) / span);
  switch (schedule.lr_schedule) {
    case LearningRateCurve::constant: return schedule.lr;
    case LearningRateCurve::linear: return schedule.lr * (1 - progress);
    case LearningRateCurve::cosine: return schedule.lr * 0.5 * (1 + std::cos(std::numbers::pi * progress));
  }
  return schedule.lr;
}

}  // namespace blipft
