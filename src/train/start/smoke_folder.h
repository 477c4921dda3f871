// SmokeFolder: the temporary folder of a trial (--smoke), removed at its end.
#pragma once

#include <string>
#include <vector>

#include "blipft/comm.h"
#include "blipft/config.h"

namespace blipft {

/// A new folder beside output.path, on the disk that the run would write to. It goes at the end with all that is in it.
/// Made and destroyed by all ranks.
class SmokeFolder {
 public:
  /// Throws AgreedError where it cannot be made.
  SmokeFolder(const Config& config, const World& world);
  ~SmokeFolder();
  SmokeFolder(const SmokeFolder&) = delete;
  SmokeFolder& operator=(const SmokeFolder&) = delete;

  const std::string& path() const { return path_; }
  /// Removes it, from any rank, where no destructor will run. Only a folder with this trial's mark in it is. Never throws.
  void remove() const;

 private:
  void make(const std::string& place, const std::string& output);
  const World& world_;
  std::string path_, mark_;                // the mark: what its file .smoke says
  std::vector<std::string> made_;          // folders around it that were made for it, the innermost first; on rank 0
};

}  // namespace blipft
