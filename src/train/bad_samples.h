// BadSamples: the samples that data.on_bad_sample: skip has left out of a run.
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

  /// Counts the unreadable samples of `batch`, and warns once of each on this rank. `when`: "step 7".
  void note(const HostBatch& batch, const std::string& when);
  /// Returns the number of unreadable samples and the faults of the first few of each rank; empty if there were none.
  /// Called by all ranks after the last step. `samples`: samples of all steps and ranks. Throws AgreedError if all were
  /// unreadable.
  std::string summary(int64_t samples) const;

 private:
  const Config& config_;
  const World& world_;
  int64_t count_ = 0;                      // empty slots on this rank, over all steps
  std::set<std::string> reported_;             // the fault of each sample
};

}  // namespace blipft
