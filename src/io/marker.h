// Marker: blipft.json, a small file that identifies a folder as created by this program, and by which run. The marker
// is written before all other files of the folder. Libraries that read model folders (transformers, PEFT) ignore it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/file.h"

namespace blipft::io {

constexpr const char* kMarkerName = "blipft.json";

struct Marker {
  std::string what;                        ///< kCheckpoint, ...
  std::string run_id;                      ///< see run_id.h; "": unknown
  int64_t step = -1;                       ///< number of completed steps; -1: not applicable
  std::vector<std::string> files;          ///< for a complete model: all other files that were written to the folder

  static constexpr const char *kCheckpoint = "checkpoint", *kCheckpoints = "checkpoints", *kModel = "model",
                              *kAdapter = "adapter";
};

/// Writes `folder`/blipft.json atomically, replacing an older marker. Throws UserError on failure, or if a file of this
/// name exists that is not a marker of blipft.
void write_marker(const std::string& folder, const Marker& marker);

/// Returns the marker of an open folder, or none if the folder has no marker that this program has written. Does not
/// follow links.
std::optional<Marker> read_marker(const FileDescriptor& folder);
std::optional<Marker> read_marker(const std::string& folder);

/// Opens a folder for reading its entries. `follow`: also through a symbolic link. Returns an invalid descriptor if the
/// path is not a folder.
FileDescriptor open_folder(const std::string& path, bool follow = false);
FileDescriptor open_folder(const FileDescriptor& parent, const std::string& name);

/// Returns the first bytes of a regular file in an open folder, at most `max_bytes`; none if `name` is not a regular
/// file or cannot be read. Does not follow links and never blocks.
std::optional<std::string> read_beginning(const FileDescriptor& folder, const std::string& name, int64_t max_bytes);

}  // namespace blipft::io
