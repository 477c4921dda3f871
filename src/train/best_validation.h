// BestValidation: the best validation so far and the number of validations since. Used by checkpoint.keep_best,
// train.early_stopping_patience and output.save_best; checkpoints store it.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "checkpoint/checkpoints.h"

namespace blipft {

class BestValidation {
 public:
  /// `metric`: "loss", or the score by which validations are compared. `highest`: a higher value is better.
  BestValidation(int64_t patience, std::string metric, bool highest)
      : patience_(patience), metric_(std::move(metric)), highest_(highest) {}
  /// Records a validation after `steps` steps. Returns true if it is the best so far. NaN and infinity are never
  /// the best; the first of equal values counts.
  bool note(int64_t steps, double value);
  /// Returns true after train.early_stopping_patience validations in a row without a better one.
  bool out_of_patience() const { return patience_ > 0 && since_ >= patience_; }
  int64_t steps() const { return steps_; }   ///< steps before the best validation; -1 if there was none
  double value() const { return value_; }
  const std::string& metric() const { return metric_; }
  bool of_loss() const { return metric_ == "loss"; }
  bool highest() const { return highest_; }
  /// The state as a checkpoint stores it, and its restoration.
  std::map<std::string, std::string> facts() const;
  void restore(const std::map<std::string, std::string>& facts);

 private:
  int64_t patience_, steps_ = -1, since_ = 0;
  std::string metric_;
  bool highest_;
  double value_ = 0;
};

inline bool BestValidation::note(int64_t steps, double value) {
  const bool better = std::isfinite(value) && (steps_ < 0 || (highest_ ? value > value_ : value < value_));
  since_ = better ? 0 : since_ + 1;
  if (better) steps_ = steps, value_ = value;
  return better;
}

inline std::map<std::string, std::string> BestValidation::facts() const {
  char value[64];
  std::snprintf(value, sizeof value, "%a", value_);  // %a keeps every bit
  return {{kBestStep, std::to_string(steps_)}, {"best_" + metric_, value},
          {"validations_since_best", std::to_string(since_)}};
}

inline void BestValidation::restore(const std::map<std::string, std::string>& facts) {
  const auto of = [&](const std::string& name) {
    const auto found = facts.find(name);
    return found == facts.end() ? std::string() : found->second;
  };
  if (of(kBestStep).empty() || of("best_" + metric_).empty()) return;  // the checkpoint has no best validation of this metric
  steps_ = std::strtoll(of(kBestStep).c_str(), nullptr, 10);
  value_ = std::strtod(of("best_" + metric_).c_str(), nullptr);
  since_ = std::strtoll(of("validations_since_best").c_str(), nullptr, 10);
}

}  // namespace blipft
