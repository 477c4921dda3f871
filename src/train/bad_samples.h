// BadSamples: counts and reports the samples that could not be read and were skipped (data.on_bad_sample: skip). The
// loader decides what is skipped and leaves the slot empty (src/loading/loader.cpp); with `stop` its next() throws.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "blipft/batch.h"
#include "blipft/comm.h"
#include "blipft/config.h"

namespace blipft {

class BadSamples {
 public:
  BadSamples(const Config& config, const World& world) : config_(config), world_(world) {}

  /// Warns about the unreadable samples of `batch`, about each once on this rank. `when`: "step 7".
  void warn(const HostBatch& batch, const std::string& when);
  /// Counts the unreadable samples of a training batch. Unreadable samples of validations are only warned about.
  void count(const HostBatch& batch);
  /// Returns the number of counted samples and the faults of the first few of each rank; empty if there were none.
  /// Called by all ranks after the last step. `samples`: training samples of all steps and ranks since the start or the
  /// resume. Throws AgreedError if all were unreadable.
  std::string summary(int64_t samples) const;

 private:
  const Config& config_;
  const World& world_;
  int64_t count_ = 0;                      // skipped samples on this rank, over all training steps
  std::set<std::string> warned_;           // error messages, one for each sample that was warned about
  std::set<std::string> counted_;          // error messages of training samples
};

}  // namespace blipft
