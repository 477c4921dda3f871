// Removal and replacement of own folders; see own_folder.h.
#include "io/own_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>

#include "blipft/error.h"
#include "io/marker.h"

namespace blipft::io {

std::vector<FolderEntry> entries_of(const FileDescriptor& folder) {
  std::vector<FolderEntry> entries;
  const int copy = folder.get() < 0 ? -1 : ::openat(folder.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (copy < 0) return entries;
  const std::unique_ptr<DIR, int (*)(DIR*)> list(::fdopendir(copy), ::closedir);
  if (!list) {
    ::close(copy);
    return entries;
  }
  while (const dirent* item = ::readdir(list.get())) {
    FolderEntry entry{item->d_name, false, 0};
    if (entry.name == "." || entry.name == "..") continue;
    struct stat status{};
    if (::fstatat(folder.get(), item->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0) continue;  // removed in the meantime
    entry.is_file = S_ISREG(status.st_mode);
    if (entry.is_file) entry.bytes = int64_t{status.st_blocks} * 512;
    entries.push_back(std::move(entry));
  }
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return entries;
}

namespace {

// Removes a file by its name as files_of() returns it. Returns false on failure.
bool remove_file(const FileDescriptor& folder, const std::string& name) {
  const size_t slash = name.find('/');
  if (slash == std::string::npos) return ::unlinkat(folder.get(), name.c_str(), 0) == 0 || errno == ENOENT;
  const FileDescriptor inner = open_folder(folder, name.substr(0, slash));
  if (inner.get() < 0) return errno == ENOENT;
  return ::unlinkat(inner.get(), name.substr(slash + 1).c_str(), 0) == 0 || errno == ENOENT;
}

// The entries of a folder; those of an inner folder stand for it, unless it is empty or cannot be read.
std::vector<FolderEntry> files_of(const FileDescriptor& folder) {
  std::vector<FolderEntry> entries;
  for (const FolderEntry& entry : entries_of(folder)) {
    std::vector<FolderEntry> inside;
    if (!entry.is_file)
      if (const FileDescriptor inner = open_folder(folder, entry.name); inner.get() >= 0) inside = entries_of(inner);
    if (inside.empty()) entries.push_back(entry);
    for (const FolderEntry& one : inside) entries.push_back({entry.name + "/" + one.name, one.is_file, one.bytes});
  }
  return entries;
}

// Returns true for the name of a marker, and of one that was being written.
bool is_marker_name(const std::string& name) {
  const std::string begun = std::string(kMarkerName) + ".";  // followed by the run's id
  constexpr size_t kDigits = 32;
  return name == kMarkerName ||
         (name.starts_with(begun) && name.size() == begun.size() + kDigits &&
          name.find_first_not_of("0123456789abcdef", begun.size()) == std::string::npos);
}

bool is_own_file(const FolderEntry& entry, const IsOwnName& is_own) {
  return entry.is_file && (is_marker_name(entry.name) || is_own(entry.name));
}

}  // namespace

bool name_in_use(const FileDescriptor& folder, const std::string& name) {
  struct stat status{};
  return ::fstatat(folder.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0;
}

bool InspectedFolder::has(const IsOwnName& is_name) const {
  return std::any_of(entries.begin(), entries.end(), [&](const FolderEntry& entry) { return is_name(entry.name); });
}

bool InspectedFolder::is_only_begun() const {
  return std::all_of(entries.begin(), entries.end(), [](const FolderEntry& entry) {
    return entry.is_file && entry.name != kMarkerName && is_marker_name(entry.name);
  });
}

std::string InspectedFolder::foreign(const IsOwnName& is_own) const {
  for (const FolderEntry& entry : entries)
    if (!is_own_file(entry, is_own)) return entry.name;
  return "";
}

int64_t InspectedFolder::own_bytes(const IsOwnName& is_own) const {
  int64_t bytes = 0;
  for (const FolderEntry& entry : entries)
    if (is_own_file(entry, is_own)) bytes += entry.bytes;
  return bytes;
}

InspectedFolder inspect(const FileDescriptor& parent, const std::string& name) {
  InspectedFolder found;
  struct stat status{};
  found.there = ::fstatat(parent.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0;
  found.is_folder = found.there && S_ISDIR(status.st_mode);
  if (found.is_folder) found.folder = open_folder(parent, name);
  if (!found.is_folder) found.why = S_ISLNK(status.st_mode) ? "is a link" : "is not a folder";
  else if (found.folder.get() < 0) found.why = concat("cannot be read: ", errno_text());
  if (!found.why.empty()) return found;
  found.entries = files_of(found.folder);
  found.marker = read_marker(found.folder);
  return found;
}

std::string remove_own_folder(const FileDescriptor& parent, const std::string& name, const IsOwnName& is_own,
                              const std::string& path) {
  const FileDescriptor folder = open_folder(parent, name);
  BLIPFT_USER_CHECK(folder.get() >= 0, path, ": cannot be removed: ", errno_text());
  std::string left;
  for (const bool markers : {false, true})
    for (const FolderEntry& entry : files_of(folder)) {
      if (is_marker_name(entry.name) != markers) continue;
      if (!entry.is_file || !(markers || is_own(entry.name))) {
        if (left.empty()) left = entry.name;
        continue;
      }
      BLIPFT_USER_CHECK(remove_file(folder, entry.name), path, "/", entry.name, ": cannot be removed: ", errno_text());
      if (const size_t slash = entry.name.find('/'); slash != std::string::npos)  // with its last file
        ::unlinkat(folder.get(), entry.name.substr(0, slash).c_str(), AT_REMOVEDIR);
    }
  if (!left.empty()) return left;
  BLIPFT_USER_CHECK(::unlinkat(parent.get(), name.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT, path,
                    ": cannot be removed: ", errno_text());
  return "";
}

bool replace_folder(const FileDescriptor& parent, const std::string& fresh, const std::string& name,
                    const std::string& aside, const std::string& path) {
  const auto rename = [&](const std::string& from, const std::string& to, unsigned flags) {
    return ::renameat2(parent.get(), from.c_str(), parent.get(), to.c_str(), flags) == 0;
  };
  if (rename(fresh, name, RENAME_EXCHANGE)) return true;
  const bool older = name_in_use(parent, name);
  BLIPFT_USER_CHECK(!older || rename(name, aside, 0), path, ": cannot be renamed to ", aside, ": ", errno_text());
  if (rename(fresh, name, 0)) return false;
  const std::string why = errno_text();
  if (older) rename(aside, name, 0);
  throw UserError(concat(path, ": ", fresh, " beside it cannot be renamed to ", name, ": ", why));
}

}  // namespace blipft::io
