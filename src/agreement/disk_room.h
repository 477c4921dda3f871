// DiskRoom: checks before a run begins that the disks have space for the files that it will write.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "blipft/key_locations.h"

namespace blipft {

/// A file, or group of files, that a run will write or remove.
struct FileToWrite {
  std::string what;                        ///< "model"
  int64_t bytes = 0;
  std::string folder;                      ///< folder of the files; it may not exist yet
  bool needed = true;                      ///< false: the run continues if it cannot be written
};

/// Throws UserError, which lists all files to write, if a file system has no space for the needed ones. Returns a
/// warning if the others do not fit, "" if all fit. `reclaimed`: files that are removed before the space is needed.
std::string check_room(const KeyLocations& places, const std::vector<FileToWrite>& files,
                       const std::vector<FileToWrite>& reclaimed = {});

}  // namespace blipft
