// FolderLock: allows one run at a time in an output folder, by means of a lock file that names its owner.
//
// Network file systems often have no working locks (flock, fcntl), and those of a machine that has gone may last; a
// file that is created with O_EXCL works everywhere. Such a file outlives its process, so it records the owner: host,
// boot, PID namespace, pid and start time show if that process still runs, has ended, or if another process now has
// its pid.
//
// A run takes one in output.path and one in its folder of checkpoints: whatever path, link or mount leads there, it is
// the same file. Reading a whole checkpoint of another folder (checkpoint.resume=PATH, --export) needs no lock: such a
// checkpoint never changes, and if it is removed during the read, an error names it.
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

/// The contents of a lock file, one "key: value" per line. Members are the texts of the values, "" for a missing key.
struct LockOwner {
  std::string host, boot, pid_namespace, pid, process_start, launcher, launcher_start, job, job_restarts, started;
  /// Returns the description of this process.
  static LockOwner self();
  /// Parses the text of a lock file. All members are empty if `text` is not one.
  static LockOwner parse(const std::string& text);
  std::string text() const;
  /// State of the owner: it runs (lives), it runs but its launcher does not (orphaned), it has ended (dead), or this
  /// process cannot find out (unknown).
  enum class State { lives, orphaned, dead, unknown };
  State state() const;
};

}  // namespace blipft
