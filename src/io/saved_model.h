// The folder of a saved model or adapter: whether this program has saved it, its replacement, and what a replacement that
// was interrupted has left.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/marker.h"

namespace blipft::io {

struct SavedModel {
  bool there = false;                      ///< something has the name, be it a link that leads nowhere
  bool own = false;                        ///< this program has saved it, and nothing else lies in it
  bool whole = false;                      ///< own: its saving came to its end, and all its files are there
  std::string why;                         ///< not own: what it is
  Marker marker;                           ///< own
  int64_t bytes = 0;                       ///< own: what its removal frees
};

/// Of `directory`, which is no link.
SavedModel saved_model(const std::string& directory);

/// Throws UserError unless a model may be saved as `directory`: nothing is there, an empty folder, or an own model. The
/// same of directory.partial and directory.old, which saving needs.
void check_saving(const std::string& directory);

/// Returns `directory`, or, if something that is not a model of this program occupies one of the names that saving needs, the
/// first of directory-2, directory-3, ... that is free.
std::string free_saved_name(const std::string& directory);

/// Returns the names of the folders in `parent` that `name`, name-2, name-3, ... are taken by, sorted by their number.
std::vector<std::string> saved_names(const std::string& parent, const std::string& name);

/// Returns the path of the saved model that the newest step made, of those in saved_names() that contain `file`. Folders
/// without a marker come last. Empty if there is none.
std::string newest_saved(const std::string& parent, const std::string& name, const std::string& file);

/// Removes an own one; what is not own stays. Throws UserError.
void remove_saved(const std::string& directory);

/// Gives directory.partial, which is whole, the name `directory`; an own model that had it goes. At every moment one of the
/// two has the name, or (on file systems without an exchange of names) restore_saved() finds both. Returns the name that the
/// model got: if something that is not a model of this program has the name, that stays, and the model gets the next
/// free_saved_name(). Throws UserError.
std::string replace_saved(const std::string& directory);

/// After a replacement that was interrupted between two names: gives the whole new one its name, or the older one its name
/// back, and removes an older one that was left over. Returns what was done, "" where nothing was to be. Throws UserError.
std::string restore_saved(const std::string& directory);

/// "run 0123abcd..., 200 steps": for messages.
std::string origin_text(const Marker& marker);

}  // namespace blipft::io
