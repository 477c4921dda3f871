// BestValidation: which validation was the best so far by one metric, and how many have come since: for
// checkpoint.keep_best, train.early_stopping_patience and output.save_best. It goes from part to part of a run in the
// checkpoints.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "blipft/config.h"
#include "checkpoint/checkpoints.h"

namespace blipft {

/// The metric that decides: checkpoint.keep_best, else the loss.
std::string deciding_metric(const Config& config);

class BestValidation {
 public:
  BestValidation(std::string metric, bool higher_is_better, int64_t patience);
  /// A validation after `steps` steps. Whether it is the best so far: what is no number never is, and of equal ones the
  /// first is.
  bool note(int64_t steps, double value);
  /// Whether there were as many validations in a row without a better one as train.early_stopping_patience says.
  bool out_of_patience() const { return patience_ > 0 && since_ >= patience_; }
  int64_t steps() const { return steps_; }   ///< of the best one; -1: there was none
  double value() const { return value_; }
  const std::string& metric() const { return metric_; }
  /// For checkpoints, and back from one.
  std::map<std::string, std::string> facts() const;
  void restore(const std::map<std::string, std::string>& facts);

 private:
  std::string metric_;
  bool higher_;
  int64_t patience_, steps_ = -1, since_ = 0;
  double value_ = 0;
};

inline std::string deciding_metric(const Config& config) {
  return config.checkpoint.keep_best == "none" ? "loss" : config.checkpoint.keep_best;
}

inline BestValidation::BestValidation(std::string metric, bool higher_is_better, int64_t patience)
    : metric_(std::move(metric)), higher_(higher_is_better), patience_(patience) {}

inline bool BestValidation::note(int64_t steps, double value) {
  const bool better = std::isfinite(value) && (steps_ < 0 || (higher_ ? value > value_ : value < value_));
  since_ = better ? 0 : since_ + 1;
  if (better) steps_ = steps, value_ = value;
  return better;
}

inline std::map<std::string, std::string> BestValidation::facts() const {
  char value[64];
  std::snprintf(value, sizeof value, "%a", value_);  // to the last bit
  return {{"best_metric", metric_}, {kBestStep, std::to_string(steps_)}, {"best_value", value},
          {"validations_since_best", std::to_string(since_)}};
}

inline void BestValidation::restore(const std::map<std::string, std::string>& facts) {
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
