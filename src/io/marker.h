// Marker: blipft.json, a small file by which a folder is known as one that this program made, and whose it is. It is written
// before anything else of the folder. Libraries that read model folders (transformers, PEFT) ignore it.
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
  std::string run_id;                      ///< see run_id.h; "": not known
  int64_t step = -1;                       ///< steps done; -1: it has none
  std::vector<std::string> files;          ///< of a whole model: all that were written beside this one

  static constexpr const char *kCheckpoint = "checkpoint", *kCheckpoints = "checkpoints", *kModel = "model",
                              *kAdapter = "adapter";
};

/// Writes `folder`/blipft.json, whole or not at all, over another marker. Throws UserError where that cannot be done, and
/// where something else has its name.
void write_marker(const std::string& folder, const Marker& marker);

/// The marker of an open folder; none where there is none that this program has written. Follows no link.
std::optional<Marker> read_marker(const FileDescriptor& folder);
std::optional<Marker> read_marker(const std::string& folder);

/// A folder, opened for looking into it; `follow`: also through a link. No descriptor where it is no folder.
FileDescriptor open_folder(const std::string& path, bool follow = false);
FileDescriptor open_folder(const FileDescriptor& parent, const std::string& name);

/// The beginning of a regular file in an open folder, at most so many bytes; none where `name` is something else or cannot
/// be read. Follows no link, waits for nobody.
std::optional<std::string> read_beginning(const FileDescriptor& folder, const std::string& name, int64_t most_bytes);

}  // namespace blipft::io
