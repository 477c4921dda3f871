// Locks of output folders: one run at a time, and none that outlives its process on the same machine.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "agreement/folder_lock.h"
#include "base/process_info.h"
#include "blipft/checkpoint.h"
#include "support/error_message.h"
#include "support/temporary_directory.h"

using namespace blipft;
using namespace blipft::testing;

namespace {

// A lock that lasts as long as this object.
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

std::string refusal(const TemporaryDirectory& folder) {
  return message_of([&] { ScopedFolderLock lock(folder.path.string()); });
}

void write_owner(const TemporaryDirectory& folder, const LockOwner& owner) { folder.write("run.lock", owner.text()); }


// A child that holds the folder until it is killed.
pid_t start_holder(const TemporaryDirectory& folder) {
  int ready[2];
  REQUIRE(pipe(ready) == 0);
  const pid_t child = fork();
  if (child == 0) {
    const ScopedFolderLock lock(folder.path.string());
    [[maybe_unused]] const auto written = write(ready[1], "x", 1);
    for (;;) pause();
  }
  char byte = 0;
  REQUIRE(read(ready[0], &byte, 1) == 1);
  close(ready[0]), close(ready[1]);
  return child;
}

}  // namespace

TEST_CASE("a folder has one lock at a time, which goes with its object") {
  const TemporaryDirectory folder;
  {
    const ScopedFolderLock lock(folder.path.string());
    CHECK(contains(read_text_file(folder / "run.lock"), concat("\npid: ", getpid(), "\n")));
    const std::string second = refusal(folder);
    CHECK_MESSAGE(contains(second, concat("in use by another run: process ", getpid(), " on ", LockOwner::self().host)),
                  second);
    CHECK(contains(second, "wait for its end, or choose another folder"));
  }
  CHECK(std::filesystem::is_empty(folder.path));
  CHECK(refusal(folder) == "");
}

TEST_CASE("a lock whose process was killed does not stand in the way, nor does one whose number another process has") {
  const TemporaryDirectory folder;
  const pid_t child = start_holder(folder);
  CHECK(contains(refusal(folder), concat("process ", child)));
  kill(child, SIGKILL);
  siginfo_t info;
  REQUIRE(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT) == 0);
  CHECK(std::filesystem::exists(folder / "run.lock"));
  CHECK(refusal(folder) == "");            // a zombie still
  waitpid(child, nullptr, 0);

  LockOwner owner = LockOwner::self();
  owner.pid = concat(child);
  write_owner(folder, owner);
  CHECK(refusal(folder) == "");            // gone
  owner = LockOwner::self();
  owner.process_start = "1";
  write_owner(folder, owner);
  CHECK(refusal(folder) == "");            // this process' number, at another time
  owner = LockOwner::self();
  owner.boot = "before";
  write_owner(folder, owner);
  CHECK(refusal(folder) == "");
  CHECK(std::filesystem::is_empty(folder.path));
}

TEST_CASE("another machine's lock is reported with a remedy, but not after its job was requeued") {
  const TemporaryDirectory folder;
  LockOwner owner = LockOwner::self();
  owner.host = "node7", owner.boot = "another", owner.job = "4711", owner.job_restarts = "";
  write_owner(folder, owner);
  const std::string text = refusal(folder);
  CHECK_MESSAGE(contains(text, concat("process ", getpid(), " on node7, started ")), text);
  CHECK(contains(text, "cannot be seen from " + LockOwner::self().host));
  CHECK(contains(text, "remove that file"));
  CHECK(contains(text, folder / "run.lock"));
  setenv("SLURM_JOB_ID", "4711", 1);
  CHECK(refusal(folder) == text);          // another step of the same job
  setenv("SLURM_RESTART_COUNT", "1", 1);
  CHECK(refusal(folder) == "");
  unsetenv("SLURM_JOB_ID"), unsetenv("SLURM_RESTART_COUNT");

  owner = LockOwner::self();
  owner.pid_namespace = "pid:[1]";         // another container of this machine
  write_owner(folder, owner);
  CHECK(contains(refusal(folder), "cannot be seen from"));
  folder.write("run.lock", "");
  CHECK(contains(refusal(folder), "does not say by which; if there is none, remove that file"));
  folder.write("run.lock", std::string(100000, 'x'));
  CHECK(contains(refusal(folder), "does not say by which"));
  CHECK(read_text_file(folder / "run.lock").size() == 100000);
}

TEST_CASE("a lock whose process has lost its launcher is waited for, and no longer than the limit") {
  const TemporaryDirectory folder;
  const auto start_process = [] {
    const pid_t child = fork();
    if (child == 0)
      for (;;) pause();
    return child;
  };
  const pid_t launcher = start_process(), holder = start_process();
  LockOwner owner = LockOwner::self();
  const auto start_of = [](pid_t pid) { return process_stat(pid).start; };
  owner.pid = concat(holder), owner.process_start = start_of(holder);
  owner.launcher = concat(launcher), owner.launcher_start = start_of(launcher);
  CHECK(LockOwner::parse(owner.text()).text() == owner.text());
  CHECK(owner.state() == LockOwner::State::lives);
  kill(launcher, SIGKILL);
  waitpid(launcher, nullptr, 0);
  CHECK(owner.state() == LockOwner::State::orphaned);
  write_owner(folder, owner);
  const std::string text = message_of([&] { ScopedFolderLock lock(folder.path.string(), 0.2); });
  CHECK_MESSAGE(contains(text, concat("process ", holder, " on ")), text);
  CHECK_MESSAGE(contains(text, concat("has lost its launcher (process ", launcher, ") but goes on")), text);
  std::thread ends([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    kill(holder, SIGKILL);
    waitpid(holder, nullptr, 0);
  });
  CHECK(message_of([&] { ScopedFolderLock lock(folder.path.string(), 600); }) == "");
  ends.join();
  CHECK(std::filesystem::is_empty(folder.path));
}

TEST_CASE("what blipft did not make is no lock of its own, whatever it says") {
  const TemporaryDirectory folder;
  LockOwner dead = LockOwner::self();
  dead.boot = "before";
  const std::string foreign = "another program's\n" + dead.text();
  folder.write("run.lock", foreign);
  CHECK(contains(refusal(folder), "does not say by which"));
  CHECK(read_text_file(folder / "run.lock") == foreign);
  std::filesystem::remove(folder / "run.lock");
  folder.write("elsewhere", dead.text());
  for (const bool link : {true, false}) {
    if (link) std::filesystem::create_symlink(folder / "elsewhere", folder / "run.lock");
    else REQUIRE(mkfifo((folder / "run.lock").c_str(), 0600) == 0);
    CHECK(contains(refusal(folder), "is no file that blipft made"));
    FolderLock(folder / "run.lock", dead.text()).remove();
    CHECK(std::filesystem::exists(std::filesystem::symlink_status(folder / "run.lock")));
    std::filesystem::remove(folder / "run.lock");
  }
}

TEST_CASE("a lock that another run has taken over is not removed") {
  const TemporaryDirectory folder;
  LockOwner owner = LockOwner::self();
  owner.host = "node7";
  {
    const ScopedFolderLock lock(folder.path.string());
    write_owner(folder, owner);
  }
  CHECK(read_text_file(folder / "run.lock") == owner.text());
  FolderLock(folder / "run.lock", owner.text()).remove();
  CHECK(std::filesystem::is_empty(folder.path));
}
