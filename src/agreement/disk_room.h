// DiskRoom: whether the disks have room for what a run is going to write, before it begins.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "blipft/config.h"

namespace blipft {

/// Something that a run is going to write, or to remove.
struct FileToWrite {
  std::string what;                        ///< "model"
  int64_t bytes = 0;
  std::string folder;                      ///< that it lies in; need not be there yet
  bool needed = true;                      ///< false: the run goes on without it
};

/// Throws UserError, with all that is to be written, where a file system has no room for what is needed. Returns a
/// warning where it has none for the rest, "" where all fits. `reclaimed`: what goes before the space is needed.
std::string check_room(const Config& config, const std::vector<FileToWrite>& files,
                       const std::vector<FileToWrite>& reclaimed = {});

}  // namespace blipft
