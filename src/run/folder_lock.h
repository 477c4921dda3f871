// FolderLock: one run at a time in an output folder, by a file in it that says whose it is.
//
// Network file systems often have no working locks (flock, fcntl), and those of a machine that has gone may last; a
// file that is created with O_EXCL works everywhere. What it cannot do is to go with its process, so it names it: host,
// boot, PID namespace, pid and the process' start time tell a dead one from a living one and from another that
// has got its number.
#pragma once

#include <string>

namespace blipft {

class FolderLock {
 public:
  /// Creates `folder`/run.lock. One that a dead process left behind is taken over: of this machine's present boot, or
  /// of one before; or of a batch job that was requeued since (its job ID is ours, its restart count is smaller).
  /// Throws UserError that names the other run's host, process and start when it lives, or when that cannot be known,
  /// with what to do.
  explicit FolderLock(const std::string& folder);
  /// Removes the file, if it is still this lock's. Never throws.
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  const std::string& path() const { return path_; }
  const std::string& text() const { return text_; }
  /// Whether `path` holds `text`, for ranks of other machines: waits, since a network file system may show it late.
  static bool is_there(const std::string& path, const std::string& text);
  /// Removes `path` if it holds `text`: for other ranks, where the one that locked may no longer be able to.
  static void remove(const std::string& path, const std::string& text);

 private:
  std::string path_, text_;
};

/// What a lock's file says, "key: value" in each line; texts as they stand there, empty: not said.
struct LockOwner {
  std::string host, boot, pid_namespace, pid, process_start, job, job_restarts, started;
  /// Of this process, now.
  static LockOwner self();
  static LockOwner parse(const std::string& text);
  std::string text() const;
  /// Whether this process can tell what became of that one, and whether it lives.
  enum class State { lives, dead, unknown };
  State state() const;
};

}  // namespace blipft
