// OwnFolder: the removal and the replacement of folders that this program has made, proven by what is in them.
//
// A name proves nothing: other programs have models and step-N folders too. What is removed is removed file by file, by
// the exact names that the program gives, under a descriptor of the folder and through no link; whatever else lies beside
// it stays, and so does the folder around it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "io/file.h"
#include "io/marker.h"

namespace blipft::io {

/// Of a name in a folder, or in a folder of it: whether the program writes a file of this name there.
using IsOwnName = std::function<bool(const std::string&)>;

/// Something in an open folder, sorted by name; "." and ".." are left out.
struct FolderEntry {
  std::string name;
  bool is_file = false;                    ///< a regular file: no link, pipe, socket, device, folder
  int64_t bytes = 0;                       ///< on the disk, of a file
};
std::vector<FolderEntry> entries_of(const FileDescriptor& folder);
bool is_taken(const FileDescriptor& folder, const std::string& name);

/// What has a name in a folder, and what is in it if it is a folder. Follows no link.
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

/// Removes the folder `name` of `parent` with its own files, the marker last. Returns what is left there, "": nothing.
/// Throws UserError that names `path`, which is told alone, where a file cannot be removed.
std::string remove_own_folder(const FileDescriptor& parent, const std::string& name, const IsOwnName& is_own,
                              const std::string& path);

/// Gives the folder `fresh` of `parent` the name `name`. The folder that has this name gets the name `fresh`, or `aside` if
/// the file system cannot exchange two names at once. Returns true if they were exchanged. Throws UserError that names
/// `path`; the names are as before then.
bool replace_folder(const FileDescriptor& parent, const std::string& fresh, const std::string& name,
                    const std::string& aside, const std::string& path);

}  // namespace blipft::io
