// Files that grow line by line: what they hold after a death, on a full disk, and how long adding takes then.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <iterator>

#include "blipft/error.h"
#include "io/line_file.h"
#include "support/temporary_directory.h"

using namespace blipft;
using namespace blipft::testing;

namespace {

io::FileDescriptor open_file(const std::string& path) {
  return io::FileDescriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
}

std::string content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::unique_ptr<io::LineFile> line_file(const std::string& path) {
  return std::make_unique<io::LineFile>(open_file(path), path, [](int64_t lost) { return concat(lost, " lost"); });
}

constexpr std::chrono::seconds kLong{60};

// No file of this process may grow beyond so many bytes, as on a disk that is full.
class MaxBytes {
 public:
  explicit MaxBytes(rlim_t bytes) {
    handler_ = std::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit now{bytes, before_.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &now) == 0);
  }
  ~MaxBytes() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int) = nullptr;
};

}  // namespace

TEST_CASE("lines are added behind whole ones, and what a killed process left of one goes") {
  const TemporaryDirectory folder;
  const std::string path = folder.write("lines", "one\ntwo\nhal");
  {
    const auto file = line_file(path);
    file->add("three");
    file->add("");
    REQUIRE(file->wait_until_written(kLong));
    CHECK(content(path) == "one\ntwo\nthree\n\n");   // before it is closed
    CHECK(file->failure() == "");
  }
  const std::string none = folder.write("none", std::string(200'000, 'x'));  // not one whole line
  line_file(none)->add("first");
  CHECK(content(none) == "first\n");
  line_file(folder / "new")->add("first");
  CHECK(content(folder / "new") == "first\n");
}

TEST_CASE("a full disk costs lines, leaves no half of one, and is reported once there is room") {
  const TemporaryDirectory folder;
  const std::string path = folder / "lines";
  const auto file = line_file(path);
  file->add("0123456789");
  REQUIRE(file->wait_until_written(kLong));
  {
    const MaxBytes limit(15);             // the next line ends in the middle
    for (int i = 0; i < 3; ++i) file->add("0123456789");
    REQUIRE(file->wait_until_written(kLong));
    CHECK(content(path) == "0123456789\n");
    CHECK(file->failure() == concat(path, ": File too large"));
    file->add("abc");                      // it would fit, but for what is to be told before
    REQUIRE(file->wait_until_written(kLong));
    CHECK(content(path) == "0123456789\n");
  }
  file->add("last");
  REQUIRE(file->wait_until_written(kLong));
  CHECK(content(path) == "0123456789\n4 lost\nlast\n");
}

TEST_CASE("a line that was written outlives its process") {
  const TemporaryDirectory folder;
  const std::string path = folder / "lines";
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const auto file = line_file(path);
    for (int i = 0; i < 100; ++i) file->add(std::to_string(i));
    const bool written = file->wait_until_written(kLong);
    ::kill(::getpid(), written ? SIGKILL : SIGTERM);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WTERMSIG(status) == SIGKILL);
  const std::string text = content(path);
  CHECK(text.starts_with("0\n1\n2\n"));
  CHECK(text.ends_with("98\n99\n"));
}
