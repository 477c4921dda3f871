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
  explicit FolderLock(const std::string& folder, double wait_seconds = kWaitSeconds);
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
