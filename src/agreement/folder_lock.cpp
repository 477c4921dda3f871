// Locks of output folders; see folder_lock.h.
#include "agreement/folder_lock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

#include "base/process_info.h"
#include "blipft/error.h"
#include "io/file.h"
#include "liveness/launcher.h"

namespace blipft {

namespace {

namespace fs = std::filesystem;

constexpr const char* kFirstLine = "blipft works in this folder; the file goes when the run ends";
constexpr size_t kMaxText = 4096, kMaxValue = 200;
constexpr std::pair<const char*, std::string LockOwner::*> kFields[] = {
    {"host", &LockOwner::host}, {"boot", &LockOwner::boot}, {"pid_namespace", &LockOwner::pid_namespace},
    {"pid", &LockOwner::pid}, {"process_start", &LockOwner::process_start}, {"launcher", &LockOwner::launcher},
    {"launcher_start", &LockOwner::launcher_start}, {"job", &LockOwner::job}, {"job_restarts", &LockOwner::job_restarts},
    {"started", &LockOwner::started}};

std::string environment(const char* name) {
  const char* text = std::getenv(name);
  return text ? text : "";
}

std::string now_text() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &utc);
  return text;
}

// Returns the text of the lock file, or nullopt if there is none. The call does not block on a fifo or a device, and it
// does not follow a link.
std::optional<std::string> read_lock(const std::string& path) {
  const io::FileDescriptor file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC));
  const int problem = errno;
  struct stat status{};
  const bool there = ::lstat(path.c_str(), &status) == 0;
  if (file.get() < 0 && (!there || problem == ENOENT)) return std::nullopt;
  BLIPFT_USER_CHECK(!there || S_ISREG(status.st_mode), path, ": is no file that blipft made, and is left as it is: it cannot ",
                    "be known whether a run works in this folder; remove it, or choose another folder");
  BLIPFT_USER_CHECK(file.get() >= 0, path, ": cannot be read (", std::strerror(problem), "), so that it cannot be ",
                    "known whether another run works in this folder");
  std::string text(kMaxText, '\0');
  const ssize_t bytes = ::read(file.get(), text.data(), text.size());
  if (bytes < 0 && errno == ESTALE) return std::nullopt;  // a network file system reports a removed file so
  BLIPFT_USER_CHECK(bytes >= 0, path, ": cannot be read: ", io::errno_text());
  text.resize(static_cast<size_t>(bytes));
  return text;
}

std::string create_advice(int problem) {
  if (problem == ENOSPC || problem == EDQUOT)
    return "the disk has no room for one more file (df, df -i and quota tell of bytes, files and your share); free some, or "
           "choose another folder (output.path, checkpoint.path)";
  return "choose a folder that you may write to (output.path, checkpoint.path)";
}

// Creates the lock file. Returns false if it exists already.
bool create_lock(const std::string& path, const std::string& text) {
  const io::FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (file.get() < 0 && errno == EEXIST) return false;
  BLIPFT_USER_CHECK(file.get() >= 0, path, ": cannot be created: ", io::errno_text(), "; ", create_advice(errno));
  try {
    io::write_at(file, 0, text.data(), static_cast<int64_t>(text.size()), path);
    io::sync_file(file, path);             // otherwise the lock could be empty after a crash of the machine
  } catch (...) {
    ::unlink(path.c_str());
    throw;
  }
  return true;
}

std::string described(const LockOwner& owner) {
  return concat("process ", owner.pid, " on ", owner.host, ", started ", owner.started);
}

[[noreturn]] void refuse(const std::string& path, const LockOwner& owner) {
  const std::string folder = fs::path(path).parent_path().string();
  const std::string run = described(owner);
  if (owner.pid.empty() || owner.host.empty())
    throw UserError(concat(folder, ": in use by another run, it seems: ", path, " is there, but does not say by ",
                           "which; if there is none, remove that file; or choose another folder"));
  if (owner.state() == LockOwner::State::orphaned)
    throw UserError(concat(folder, ": in use by another run: ", run, ", has lost its launcher (process ", owner.launcher,
                           ") but goes on (", path, "); end it (kill -9 ", owner.pid, "), or choose another folder"));
  if (owner.state() == LockOwner::State::lives)
    throw UserError(concat(folder, ": in use by another run: ", run, " (", path, "); wait for its end, or choose ",
                           "another folder"));
  throw UserError(concat(folder, ": in use by another run, says ", path, ": ", run, "; whether it still runs cannot ",
                         "be seen from ", host_name(), ". If it does not, remove that file; or choose another ",
                         "folder"));
}

// Removes a lock that a dead process left behind. Another run may have read the same lock and may have replaced it by
// its own in the meantime. So the file is renamed first; if it then has another text than `text`, it is put back.
void take_away(const std::string& path, const std::string& text) {
  const std::string aside = concat(path, ".", host_name(), ".", getpid());
  if (::rename(path.c_str(), aside.c_str()) != 0) {
    BLIPFT_USER_CHECK(errno == ENOENT, path, ": left behind by a run that is gone, cannot be removed: ",
                      io::errno_text());
    return;
  }
  if (read_lock(aside) != text && ::link(aside.c_str(), path.c_str()) != 0 && errno != EEXIST)
    ::rename(aside.c_str(), path.c_str());
  ::unlink(aside.c_str());
}

}  // namespace

LockOwner LockOwner::self() {
  const std::string pid = concat(getpid());
  const Launcher& launcher = Launcher::own();
  const char* const jobs[] = {"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"};
  std::string job;
  for (const char* name : jobs)
    if (job.empty()) job = environment(name);
  return {.host = host_name(), .boot = first_line("/proc/sys/kernel/random/boot_id"),
          .pid_namespace = link_target("/proc/self/ns/pid"), .pid = pid, .process_start = process_stat(getpid()).start,
          .launcher = launcher.pid == 0 ? "" : concat(launcher.pid), .launcher_start = launcher.start, .job = job,
          .job_restarts = environment("SLURM_RESTART_COUNT"), .started = now_text()};
}

std::string LockOwner::text() const {
  std::string text = kFirstLine;
  for (const auto& [name, value] : kFields) text += concat("\n", name, ": ", this->*value);
  return text + "\n";
}

LockOwner LockOwner::parse(const std::string& text) {
  LockOwner owner;
  if (!text.starts_with(kFirstLine)) return owner;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);)
    for (const auto& [name, value] : kFields)
      if (const std::string front = concat(name, ": "); line.starts_with(front)) owner.*value = line.substr(front.size(), kMaxValue);
  return owner;
}

LockOwner::State LockOwner::state() const {
  const LockOwner me = self();
  // A batch job is only requeued after its processes have ended, on whatever machine they ran.
  if (!job.empty() && job == me.job && whole_number(me.job_restarts).value_or(0) > whole_number(job_restarts).value_or(0))
    return State::dead;
  if (host == me.host && !boot.empty() && boot != me.boot) return State::dead;  // the machine was rebooted since
  if (host != me.host || boot.empty() || pid_namespace != me.pid_namespace) return State::unknown;
  const std::optional<int64_t> process = whole_number(pid);
  if (!process || *process <= 0 || *process > INT_MAX) return State::unknown;
  if (::kill(static_cast<pid_t>(*process), 0) != 0 && errno == ESRCH) return State::dead;
  const ProcessStat stat = process_stat(*process);
  if (stat.start.empty()) return State::lives;  // a process of another user, whose details are hidden
  if (stat.ended() || stat.start != process_start) return State::dead;
  const bool lost = Launcher{.pid = whole_number(launcher).value_or(0), .start = launcher_start, .name = ""}.gone();
  return lost ? State::orphaned : State::lives;
}

FolderLock FolderLock::take(const std::string& folder, double wait_seconds) {
  FolderLock lock((fs::path(folder) / kName).string(), LockOwner::self().text());
  const std::string& path = lock.path_;
  using Clock = std::chrono::steady_clock;
  constexpr int kTries = 20;
  const auto last = Clock::now() + std::chrono::duration<double>(wait_seconds);
  bool printed = false;
  for (int i = 0; i < kTries; ++i) {
    if (create_lock(path, lock.text_)) return lock;
    const std::optional<std::string> found = read_lock(path);
    if (!found) continue;                  // it was removed in the meantime
    if (*found == "" && i + 1 < kTries) {  // its owner is writing it
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      continue;
    }
    const LockOwner owner = LockOwner::parse(*found);
    const LockOwner::State state = owner.state();
    if (state == LockOwner::State::orphaned && Clock::now() < last) {
      if (!std::exchange(printed, true))
        std::fprintf(stderr, "note: %s: the run of %s, has lost its launcher and ends; waiting for that, %g s at most\n",
                     folder.c_str(), described(owner).c_str(), wait_seconds);
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      --i;
      continue;
    }
    if (state != LockOwner::State::dead) refuse(path, owner);
    take_away(path, *found);
  }
  throw UserError(concat(path, ": other runs take this folder and leave it again and again; choose another folder"));
}

bool FolderLock::is_there() const {
  constexpr int kTries = 100;              // 10 s
  for (int i = 0; i < kTries; ++i) {
    if (i > 0) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    if (i % 10 == 1) {                     // a new file makes a network file system read the folder again
      const std::string look = concat(path_, ".look.", host_name(), ".", getpid());
      const io::FileDescriptor file(::open(look.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
      ::unlink(look.c_str());
    }
    if (read_lock(path_) == text_) return true;
  }
  return false;
}

bool FolderLock::is_held() const {
  try {
    return read_lock(path_) == text_;
  } catch (const std::exception&) {        // the file cannot be read, so it is not known to be this lock
    return false;
  }
}

void FolderLock::remove() const {
  if (is_held()) ::unlink(path_.c_str());
}

}  // namespace blipft
