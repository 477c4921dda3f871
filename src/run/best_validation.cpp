// The best validation; see best_validation.h.
#include "run/best_validation.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "checkpoint/checkpoints.h"

namespace blipft {

std::string deciding_metric(const Config& config) {
  return config.checkpoint.keep_best == "none" ? "loss" : config.checkpoint.keep_best;
}

BestValidation::BestValidation(std::string metric, bool higher_is_better, int64_t patience)
    : metric_(std::move(metric)), higher_(higher_is_better), patience_(patience) {}

bool BestValidation::note(int64_t steps, double value) {
  const bool better = std::isfinite(value) && (steps_ < 0 || (higher_ ? value > value_ : value < value_));
  since_ = better ? 0 : since_ + 1;
  if (better) steps_ = steps, value_ = value;
  return better;
}

std::map<std::string, std::string> BestValidation::facts() const {
  char value[64];
  std::snprintf(value, sizeof value, "%a", value_);  // to the last bit
  return {{"best_metric", metric_}, {kBestStep, std::to_string(steps_)}, {"best_value", value},
          {"validations_since_best", std::to_string(since_)}};
}

void BestValidation::restore(const std::map<std::string, std::string>& facts) {
  const auto of = [&](const char* name) {
    const auto found = facts.find(name);
    return found == facts.end() ? std::string() : found->second;
  };
  if (of("best_metric") != metric_ || of(kBestStep).empty()) return;
  steps_ = std::strtoll(of(kBestStep).c_str(), nullptr, 10);
  value_ = std::strtod(of("best_value").c_str(), nullptr);
  since_ = std::strtoll(of("validations_since_best").c_str(), nullptr, 10);
}

}  // namespace blipft
