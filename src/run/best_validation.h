// BestValidation: which validation was the best so far by one metric, and how many have come since: for
// checkpoint.keep_best, train.early_stopping_patience and output.save_best. It goes from part to part of a run in the
// checkpoints.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "blipft/config.h"

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

}  // namespace blipft
