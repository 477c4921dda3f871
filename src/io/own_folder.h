// OwnFolder: removes and replaces folders that this program has made, as proven by their content.
//
// A name proves nothing: other programs write models and step-N folders too. Removal works file by file, by the exact
// names that this program writes, through an open descriptor of the folder, and never through a link. Any other entry
// stays, and so does the folder that contains it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "io/file.h"
#include "io/marker.h"

namespace blipft::io {

/// Returns true if this program writes a file of this name. The name is relative to the folder: "file" or
/// "folder/file".
using IsOwnName = std::function<bool(const std::string&)>;

/// An entry of an open folder.
struct FolderEntry {
  std::string name;
  bool is_file = false;                    ///< a regular file: not a link, pipe, socket, device or folder
  int64_t bytes = 0;                       ///< bytes on the disk, for a file
};
std::vector<FolderEntry> entries_of(const FileDescriptor& folder);
bool name_in_use(const FileDescriptor& folder, const std::string& name);

/// The result of inspect(): what has the name in the parent folder, and its entries if it is a folder. Links are not
/// followed.
struct InspectedFolder {
  bool there = false;                      ///< something has the name
  bool is_folder = false;
  std::string why;                         ///< why it cannot be looked into; empty: the following is known
  FileDescriptor folder;
  std::vector<FolderEntry> entries;        ///< entries of an inner folder stand for it, as "folder/name"
  std::optional<Marker> marker;
  bool has(const IsOwnName& is_name) const;
  /// Returns true if the folder is empty but for the beginning of a marker.
  bool is_only_begun() const;
  /// Returns the first entry that is no file of an own name, and "" if there is none.
  std::string foreign(const IsOwnName& is_own) const;
  int64_t own_bytes(const IsOwnName& is_own) const;
};
InspectedFolder inspect(const FileDescriptor& parent, const std::string& name);

/// Removes the own files of the folder `name` in `parent`, the marker last, and then the folder. Returns the name of
/// the first entry that had to stay, or "". Throws UserError if a file cannot be removed; `path` is used only in its
/// message.
std::string remove_own_folder(const FileDescriptor& parent, const std::string& name, const IsOwnName& is_own,
                              const std::string& path);

/// Gives the folder `fresh` of `parent` the name `name`. The folder that has this name gets the name `fresh`, or `aside` if
/// the file system cannot exchange two names at once. Returns true if they were exchanged. Throws UserError that names
/// `path`; the names are as before then.
bool replace_folder(const FileDescriptor& parent, const std::string& fresh, const std::string& name,
                    const std::string& aside, const std::string& path);

}  // namespace blipft::io
