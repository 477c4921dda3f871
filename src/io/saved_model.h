// The folder of a saved model or adapter: checks that this program has saved it, replaces it, and repairs the state
// after an interrupted replacement.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/marker.h"

namespace blipft::io {

struct SavedModel {
  bool there = false;                      ///< true if the name exists, even as a dangling link
  bool own = false;                        ///< true if this program has saved it and it contains nothing else
  bool whole = false;                      ///< if own: true if its saving has finished and all its files exist
  std::string why;                         ///< if not own: description of what exists
  Marker marker;                           ///< only if own
  int64_t bytes = 0;                       ///< if own: bytes that its removal frees
};

/// Returns the description of the folder `directory`, which must not be a link.
SavedModel saved_model(const std::string& directory);

/// Throws UserError unless a model may be saved as `directory`: the name is free, an empty folder, or an own model. The
/// names directory.partial and directory.old, which saving needs, are checked in the same way.
void check_saving(const std::string& directory);

/// Returns `directory`, unless one of the names that saving needs is used by something other than a model of this
/// program. Then returns the first free name of directory-2, directory-3, ...
std::string free_saved_name(const std::string& directory);

/// Returns the names of the entries `name`, name-2, name-3, ... that exist in `parent`, sorted by their number.
std::vector<std::string> saved_names(const std::string& parent, const std::string& name);

/// Returns the path of the saved model with the largest step, among the folders of saved_names() that contain `file`.
/// Folders without a marker have the lowest priority. Returns "" if there is none.
std::string newest_saved(const std::string& parent, const std::string& name, const std::string& file);

/// Removes a model of this program; anything else stays. Throws UserError.
void remove_saved(const std::string& directory);

/// Renames the complete directory.partial to `directory` and removes an own model that had this name. At every moment
/// one of the two models has the name, or (on file systems without an exchange of names) restore_saved() finds both. If
/// something other than a model of this program has the name, it stays, and the new model gets the next
/// free_saved_name(). Returns the name that the new model got. Throws UserError.
std::string replace_saved(const std::string& directory);

/// Repairs an interrupted replacement: renames the complete new model to its final name, or gives the older model its
/// name back, and removes an older model that was left over. Returns a description of what was done, or "" if nothing
/// was necessary. Throws UserError.
std::string restore_saved(const std::string& directory);

/// Returns "run 0123abcd..., 200 steps" for messages.
std::string origin_text(const Marker& marker);

}  // namespace blipft::io
