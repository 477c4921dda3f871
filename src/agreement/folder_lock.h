// FolderLock: one run at a time in an output folder, by a file in it that says whose it is.
//
// Network file systems often have no working locks (flock, fcntl), and those of a machine that has gone may last; a
// file that is created with O_EXCL works everywhere. What it cannot do is to go with its process, so it names it: host,
// boot, PID namespace, pid and the process' start time tell a dead one from a living one and from another that
// has got its number.
//
// A run takes one in output.path and one in its folder of checkpoints: whatever path, link or mount leads there, it is
// the same file. Who reads a whole checkpoint of another folder (checkpoint.resume=PATH, --export) takes none: such a
// checkpoint is never changed, and one that goes meanwhile is an error by name.
#pragma once

#include <string>
#include <utility>

namespace blipft {

class FolderLock {
 public:
  static constexpr const char* kName = "run.lock";
  static constexpr double kWaitSeconds = 15;
  /// Creates `folder`/run.lock. One that a dead process left behind is taken over: of this machine's present boot, or
  /// of one before; or of a batch job that was requeued since (its job ID is ours, its restart count is smaller). One
  /// whose process lives, but has lost its launcher (mpirun was killed), is waited for, with a line that says so: such
  /// a process ends by itself.
  /// Throws UserError that names the other run's host, process and start when it lives, or when that cannot be known,
  /// with what to do. A file that is not of this program, or no regular one, is left as it is.
  /// The file lasts until remove(), which any rank may call.
  static FolderLock take(const std::string& folder, double wait_seconds = kWaitSeconds);
  /// Describes a lock that another rank has taken.
  FolderLock(std::string path, std::string text) : path_(std::move(path)), text_(std::move(text)) {}

  const std::string& path() const { return path_; }
  const std::string& text() const { return text_; }
  /// Returns true if this rank sees the file. Waits some seconds: a network file system may show it late.
  bool is_there() const;
  /// Returns true if the file is still this lock's. Never throws.
  bool is_held() const;
  /// Removes the file if it is still this lock's. Never throws.
  void remove() const;

 private:
  std::string path_, text_;
};

/// A lock that lasts as long as this object.
class ScopedFolderLock {
 public:
  explicit ScopedFolderLock(const std::string& folder, double wait_seconds = FolderLock::kWaitSeconds)
      : lock_(FolderLock::take(folder, wait_seconds)) {}
  ~ScopedFolderLock() { lock_.remove(); }
  ScopedFolderLock(const ScopedFolderLock&) = delete;
  ScopedFolderLock& operator=(const ScopedFolderLock&) = delete;

 private:
  FolderLock lock_;
};

/// What a lock's file says, "key: value" in each line; texts as they stand there, empty: not said.
struct LockOwner {
  std::string host, boot, pid_namespace, pid, process_start, launcher, launcher_start, job, job_restarts, started;
  /// Of this process, now.
  static LockOwner self();
  /// All empty where `text` is not a lock's.
  static LockOwner parse(const std::string& text);
  std::string text() const;
  /// Whether this process can tell what became of that one, and whether it lives; orphaned: its launcher does not.
  enum class State { lives, orphaned, dead, unknown };
  State state() const;
};

}  // namespace blipft
