// KnownFolder: whether a path is still the folder that a run began with.
#pragma once

#include <sys/stat.h>

#include <string>

namespace blipft {

class KnownFolder {
 public:
  KnownFolder() = default;
  explicit KnownFolder(const std::string& path) : path_(path) { known_ = ::stat(path.c_str(), &first_) == 0; }
  /// Whether it was removed, moved or replaced since.
  bool vanished() const {
    struct stat now{};
    return known_ && (::stat(path_.c_str(), &now) != 0 || now.st_dev != first_.st_dev || now.st_ino != first_.st_ino);
  }

 private:
  std::string path_;
  bool known_ = false;
  struct stat first_{};
};

}  // namespace blipft
