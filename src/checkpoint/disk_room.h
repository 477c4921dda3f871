// DiskRoom: whether the disks have room for what a run is going to write, before it begins.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "blipft/config.h"
#include "checkpoint/saving.h"

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
/// The folders that a run saves at its end, if any, and the bytes of their tensors.
std::vector<FileToWrite> files_to_save(const Config& config, const Units& units, const ParameterStore& store);
/// What checkpoints of `bytes` each still take: the kept ones and one on its way, less what earlier ones of `run_id` hold
/// already, of which keeping removes some. A run that writes none but when it is stopped can do without.
FileToWrite checkpoints_to_write(const Config& config, int64_t bytes, const std::string& run_id);

}  // namespace blipft
