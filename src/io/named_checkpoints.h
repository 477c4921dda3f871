// Entries of a folder that are named like checkpoints, and which of them this program has made.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace blipft::io {

/// An entry with a checkpoint's name: step-NNNNNNNN, optionally with the suffix .partial or .aside.
struct NamedCheckpoint {
  enum class End { none, partial, aside } end = End::none;
  std::string name;
  int64_t step = 0;
  bool own = false;                        ///< true if this program has made it and its name matches its state
  bool claims = false;                     ///< not own, but possibly a damaged checkpoint of this program
  std::string why;                         ///< if not own: description of the entry
  std::string run_id;                      ///< if own: id of the run that made it; "": written by an earlier version
  std::string foreign;                     ///< if own: name of the first foreign entry in it; "": none
  int64_t bytes = 0;                       ///< if own: bytes that its removal frees
  bool is_whole() const { return own && end == End::none; }
};

/// Returns all entries of `folder` with a checkpoint's name, sorted by step and name. `folder` may be a link. Returns
/// none if the folder cannot be read.
std::vector<NamedCheckpoint> named_checkpoints(const std::string& folder);
/// Returns the description of the entry `name` of `folder`.
NamedCheckpoint named_checkpoint(const std::string& folder, const std::string& name);

/// Removes a checkpoint of this program. A complete one is renamed first, so that it is never visible half removed.
/// Returns the path of an entry that had to stay, or "" if all is removed. Throws UserError.
std::string remove_checkpoint(const std::string& folder, const NamedCheckpoint& checkpoint);

/// Renames the own folder of `step` with the suffix .partial to the name without suffix. Replaces an own checkpoint of
/// that name. Throws UserError.
void publish_checkpoint(const std::string& folder, int64_t step);

std::string partial_name(int64_t step);

}  // namespace blipft::io
