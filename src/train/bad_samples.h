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

  /// Counts what `batch` had to do without, and warns, on this rank, of each sample once. `when`: "step 7".
  void note(const HostBatch& batch, const std::string& when);
  /// Called by all ranks after the last step: how many there were and what is wrong with the first few of each rank;
  /// empty: there were none. `samples`: of all steps and ranks. Throws AgreedError when none was left to learn from.
  std::string summary(int64_t samples) const;

 private:
  const Config& config_;
  const World& world_;
  int64_t count_ = 0;                      // times that a place stayed empty, on this rank
  std::set<std::string> reported_;             // what is wrong with each of the samples
};

}  // namespace blipft
