// FolderLock: allows one run at a time in an output folder, by means of a lock file that names its owner.
//
// Network file systems often have no working locks (flock, fcntl), and locks of a crashed machine may remain. A file
// that is created with O_EXCL works everywhere. Such a file outlives its process, so it records the owner: host, boot,
// PID namespace, pid and start time show whether that process still runs, has ended, or whether another process now has
// its pid.
//
// A run creates one lock in output.path and one in its folder of checkpoints. The lock is in the folder itself, so
// every path, link or mount to the folder leads to the same lock. Reading a complete checkpoint of another folder
// (checkpoint.resume=PATH, --export) needs no lock: such a checkpoint never changes, and if it is removed during the
// read, an error names it.
#pragma once

#include <string>
#include <utility>

namespace blipft {

class FolderLock {
 public:
  static constexpr const char* kName = "run.lock";
  static constexpr double kWaitSeconds = 15;
  /// Creates `folder`/run.lock. If the file exists, the state of the process that created it decides
  /// (LockOwner::State):
  ///   dead      it ran on this machine and has ended, or its batch job was requeued since: the lock is replaced
  ///   orphaned  it runs, but its launcher (mpirun) was killed, so it will end by itself: prints a note and waits for
  ///             at most `wait_seconds`
  ///   lives, unknown, or still orphaned after the wait: throws UserError with host, process, start and a remedy
  /// A file that blipft did not write, or that is no regular file, is a UserError too and is not changed. The lock
  /// lasts until remove(), which any rank may call.
  static FolderLock take(const std::string& folder, double wait_seconds = kWaitSeconds);
  /// Describes a lock that another rank has taken.
  FolderLock(std::string path, std::string text) : path_(std::move(path)), text_(std::move(text)) {}

  const std::string& path() const { return path_; }
  const std::string& text() const { return text_; }
  /// Returns true if this rank sees the file. Waits up to 10 seconds, because a network file system may show it late.
  bool is_there() const;
  /// Returns true if the file still has the text of this lock. Never throws.
  bool is_held() const;
  /// Removes the file if is_held(). Never throws.
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
