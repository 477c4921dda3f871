// Traces whose files cannot be written.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "blipft/error.h"
#include "blipft/trace.h"
#include "support/error_message.h"
#include "support/temporary_directory.h"

using namespace blipft;
using testing::message_of;
using testing::TemporaryDirectory;
namespace fs = std::filesystem;

TEST_SUITE("trace") {

TEST_CASE("a file that cannot be written is a user's error") {
  const TemporaryDirectory folder;
  std::ofstream(folder / "file") << "x";
  const std::string path = folder / "file/t.h5";   // refused even for root
  const std::string text = message_of([&] { open_trace(path); });
  CHECK(text.find(path) != std::string::npos);
  CHECK(text.find("creating the trace file") != std::string::npos);
}

// A process of its own, that the next case starts: exit handlers of this one would end what other cases began, such as MPI.
TEST_CASE("writer: what a process does whose disk is full" * doctest::skip()) {
  const char* const path = std::getenv("BLIPFT_TEST_TRACE");
  if (!path) return;
  ::alarm(60);
  ::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{1 << 20, 1 << 20};   // no file grows over 1 MiB: writes fail as on a full disk
  ::setrlimit(RLIMIT_FSIZE, &limit);
  int answer = 1;
  try {
    const auto trace = open_trace(path);
    trace->add(std::vector<SpanRecord>(50'000));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    trace->add(StepRecord{}, {});   // training goes on
    trace->close();
  } catch (const UserError& error) {
    answer = std::string(error.what()).find(path) != std::string::npos ? 42 : 2;
  } catch (...) {
    answer = 3;
  }
  std::exit(answer);   // with exit handlers: HDF5 tidies up there as well
}

TEST_CASE("a full disk ends in an error that names the file, and not in a crash or a hang") {
  const TemporaryDirectory folder;
  const std::string path = folder / "t.h5";
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::setenv("BLIPFT_TEST_TRACE", path.c_str(), 1);
    ::execl("/proc/self/exe", "tests", "--no-skip", "-tc=writer: what a process does whose disk is full", nullptr);
    ::_exit(1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 42);
}

TEST_CASE("a file that is removed while it is written is reported within seconds, and at the end") {
  const TemporaryDirectory directory;
  for (const bool at_once : {true, false}) {
    const auto trace = open_trace(directory / "run/trace.h5");
    trace->add(StepRecord{}, {});
    std::this_thread::sleep_for(std::chrono::milliseconds(600));
    CHECK(trace->failure() == "");
    fs::remove_all(directory / "run");
    for (int i = 0; at_once && i < 50 && trace->failure().empty(); ++i) {
      trace->add(StepRecord{}, {});
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    if (at_once) CHECK(trace->failure().find("run/trace.h5: the trace file is gone") != std::string::npos);
    CHECK(message_of<Error>([&] { trace->close(); }).find("the trace file is gone") != std::string::npos);
  }
}

}
