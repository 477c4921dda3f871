// BestValidation: which validation had the least loss so far, and how many have come since: for
// checkpoint.keep_best, train.early_stopping_patience and output.save_best. It goes from part to part of a run in the
// checkpoints.
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
  explicit BestValidation(int64_t patience) : patience_(patience) {}
  /// A validation after `steps` steps. Whether it is the best so far: what is no number never is, and of equal ones the
  /// first is.
  bool note(int64_t steps, double loss);
  /// Whether there were as many validations in a row without a better one as train.early_stopping_patience says.
  bool out_of_patience() const { return patience_ > 0 && since_ >= patience_; }
  int64_t steps() const { return steps_; }   ///< of the best one; -1: there was none
  double loss() const { return loss_; }
  /// For checkpoints, and back from one.
  std::map<std::string, std::string> facts() const;
  void restore(const std::map<std::string, std::string>& facts);

 private:
  int64_t patience_, steps_ = -1, since_ = 0;
  double loss_ = 0;
};

inline bool BestValidation::note(int64_t steps, double loss) {
  const bool better = std::isfinite(loss) && (steps_ < 0 || loss < loss_);
  since_ = better ? 0 : since_ + 1;
  if (better) steps_ = steps, loss_ = loss;
  return better;
}

inline std::map<std::string, std::string> BestValidation::facts() const {
  char loss[64];
  std::snprintf(loss, sizeof loss, "%a", loss_);  // to the last bit
  return {{kBestStep, std::to_string(steps_)}, {"best_loss", loss},
          {"validations_since_best", std::to_string(since_)}};
}

inline void BestValidation::restore(const std::map<std::string, std::string>& facts) {
  const auto of = [&](const char* name) {
    const auto found = facts.find(name);
    return found == facts.end() ? std::string() : found->second;
  };
  if (of(kBestStep).empty()) return;
  steps_ = std::strtoll(of(kBestStep).c_str(), nullptr, 10);
  loss_ = std::strtod(of("best_loss").c_str(), nullptr);
  since_ = std::strtoll(of("validations_since_best").c_str(), nullptr, 10);
}

}  // namespace blipft
