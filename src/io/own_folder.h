// OwnFolder: the removal and the replacement of folders that this program has made, proven by what is in them.
//
// A name proves nothing: other programs have models and step-N folders too. What is removed is removed file by file, by
// the exact names that the program gives, under a descriptor of the folder and through no link; whatever else lies beside
// it stays, and so does the folder around it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "io/file.h"

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
/// The same; what is in a folder of it stands for that, as "folder/name"; one that is empty, or cannot be read, for itself.
std::vector<FolderEntry> files_of(const FileDescriptor& folder);

/// Whether `name` is the marker's, or that of one which was being written.
bool is_marker_name(const std::string& name);

/// What does not belong to an own folder: the first entry that is no file of an own name; "": nothing.
std::string foreign_in(const FileDescriptor& folder, const IsOwnName& is_own);
int64_t own_bytes(const FileDescriptor& folder, const IsOwnName& is_own);

/// Removes the folder `name` of `parent` with its own files, the marker last. Returns what is left there, "": nothing.
/// Throws UserError that names `path`, which is told alone, where a file cannot be removed.
std::string remove_own_folder(const FileDescriptor& parent, const std::string& name, const IsOwnName& is_own,
                              const std::string& path);

/// Lets two names of one file system change their folders, at once. False where the file system cannot do that.
bool exchange(const FileDescriptor& parent, const std::string& a, const std::string& b);

}  // namespace blipft::io
