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
    if (::fstatat(folder.get(), item->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0) continue;  // gone meanwhile
    entry.is_file = S_ISREG(status.st_mode);
    if (entry.is_file) entry.bytes = int64_t{status.st_blocks} * 512;
    entries.push_back(std::move(entry));
  }
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return entries;
}

namespace {

// Removes a file by its name of an entry; false where that cannot be.
bool remove_file(const FileDescriptor& folder, const std::string& name) {
  const size_t slash = name.find('/');
  if (slash == std::string::npos) return ::unlinkat(folder.get(), name.c_str(), 0) == 0 || errno == ENOENT;
  const FileDescriptor inner = open_folder(folder, name.substr(0, slash));
  if (inner.get() < 0) return errno == ENOENT;
  return ::unlinkat(inner.get(), name.substr(slash + 1).c_str(), 0) == 0 || errno == ENOENT;
}

}  // namespace

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

bool is_marker_name(const std::string& name) {
  const std::string begun = std::string(kMarkerName) + ".";  // and the run's id
  constexpr size_t kDigits = 32;
  return name == kMarkerName ||
         (name.starts_with(begun) && name.size() == begun.size() + kDigits &&
          name.find_first_not_of("0123456789abcdef", begun.size()) == std::string::npos);
}

std::string foreign_in(const FileDescriptor& folder, const IsOwnName& is_own) {
  for (const FolderEntry& entry : files_of(folder))
    if (!entry.is_file || !(is_marker_name(entry.name) || is_own(entry.name))) return entry.name;
  return "";
}

int64_t own_bytes(const FileDescriptor& folder, const IsOwnName& is_own) {
  int64_t bytes = 0;
  for (const FolderEntry& entry : files_of(folder))
    if (entry.is_file && (is_marker_name(entry.name) || is_own(entry.name))) bytes += entry.bytes;
  return bytes;
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

bool exchange(const FileDescriptor& parent, const std::string& a, const std::string& b) {
  return ::renameat2(parent.get(), a.c_str(), parent.get(), b.c_str(), RENAME_EXCHANGE) == 0;
}

}  // namespace blipft::io
