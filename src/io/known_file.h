// KnownFile: whether a path still leads to the file or folder that it led to before.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <string>

namespace blipft::io {

class KnownFile {
 public:
  KnownFile() = default;
  /// Notes the file or folder that is at `path` now, behind all links.
  explicit KnownFile(const std::string& path) : path_(path), known_(::stat(path.c_str(), &first_) == 0) {}
  /// Returns true if it was removed, moved or replaced since.
  bool vanished() const {
    struct stat now{};
    return known_ && (::stat(path_.c_str(), &now) != 0 || !is_same(now));
  }
  /// Removes the file if `path` itself is still that file. Never throws: the caller does not need the removal.
  void remove() const {
    struct stat now{};
    if (known_ && ::lstat(path_.c_str(), &now) == 0 && is_same(now)) ::unlink(path_.c_str());
  }

 private:
  bool is_same(const struct stat& now) const { return now.st_dev == first_.st_dev && now.st_ino == first_.st_ino; }
  std::string path_;
  struct stat first_{};
  bool known_ = false;
};

}  // namespace blipft::io
