// Output to a pipe that nobody reads for a while.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "io/console_queue.h"

using namespace blipft;
using std::chrono::milliseconds;

namespace {

/// Standard output, replaced by a pipe.
class Piped {
 public:
  Piped() : before_(::dup(STDOUT_FILENO)) {
    REQUIRE(::pipe(ends_) == 0);
    REQUIRE(::dup2(ends_[1], STDOUT_FILENO) == STDOUT_FILENO);
  }
  ~Piped() {
    ::dup2(before_, STDOUT_FILENO);
    for (const int end : {before_, ends_[0], ends_[1]}) ::close(end);
  }
  std::string read_until(const std::string& last) {
    std::string text;
    char buffer[4096];
    while (text.find(last) == std::string::npos) {
      const ssize_t count = ::read(ends_[0], buffer, sizeof buffer);
      if (count <= 0) break;
      text.append(buffer, static_cast<size_t>(count));
    }
    return text;
  }

 private:
  int before_, ends_[2] = {};
};

}  // namespace

TEST_SUITE("io") {
  TEST_CASE("text for a reader that sleeps is dropped in whole lines, and counted") {
    constexpr int kLines = 20'000;
    const std::string rest(90, 'x');
    std::string text;
    bool finished_early = true, written = false;
    milliseconds added{};
    {                                        // what fails is reported on standard output, and so behind this block
      Piped pipe;
      io::ConsoleQueue queue(size_t{1} << 16);
      const auto begin = std::chrono::steady_clock::now();
      for (int i = 0; i < kLines; ++i) {     // in two pieces each: a line's begin and its end may meet another state
        queue.add(STDOUT_FILENO, "line " + std::to_string(i) + " ");
        queue.add(STDOUT_FILENO, rest + "\n");
      }
      added = std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - begin);
      finished_early = queue.wait_until_written(milliseconds(100));
      for (int i = 0; text.find("missing here") == std::string::npos && i < 1000; ++i) {
        queue.add(STDOUT_FILENO, "more\n");
        text += pipe.read_until("\n");
      }
      queue.add(STDOUT_FILENO, "the end\n");
      text += pipe.read_until("the end\n");
      written = queue.wait_until_written(milliseconds(2000));
    }
    CHECK(added < milliseconds(5000));
    CHECK(!finished_early);
    CHECK(written);
    int64_t shown = 0, missing = 0;
    for (size_t at = 0; at < text.size();) {
      const size_t end = text.find('\n', at);
      const std::string line = text.substr(at, end - at);
      CAPTURE(line);
      if (line.starts_with("[")) missing += std::stoll(line.substr(1));
      else if (!line.starts_with("more") && line != "the end") {
        ++shown;
        CHECK((line.starts_with("line ") && line.ends_with(" " + rest)));
      }
      at = end + 1;
    }
    CHECK(missing > 0);
    CHECK(shown + missing >= kLines);
    CHECK(shown >= (1 << 16) / 110);
  }

  TEST_CASE("text that is read comes whole and in order, and settle waits for it") {
    std::string text, expected;
    bool written = false;
    {
      Piped pipe;
      io::ConsoleQueue queue;
      for (int i = 0; i < 100; ++i) queue.add(STDOUT_FILENO, std::to_string(i) + "\n");
      written = queue.wait_until_written(milliseconds(2000));
      text = pipe.read_until("\n99\n");
    }
    for (int i = 0; i < 100; ++i) expected += std::to_string(i) + "\n";
    CHECK(written);
    CHECK(text == expected);
  }

  TEST_CASE("a line too long for the queue is cut, and the count of what is missing begins a line") {
    std::string text;
    {
      Piped pipe;
      io::ConsoleQueue queue(size_t{1} << 17);
      queue.add(STDOUT_FILENO, std::string(size_t{120} << 10, 'a'));   // more than a pipe takes: it stays in the queue
      queue.add(STDOUT_FILENO, std::string(size_t{20} << 10, 'b'));
      queue.add(STDOUT_FILENO, "still\nnext\n");
      text = pipe.read_until("aaaa");
      while (!queue.wait_until_written(milliseconds(20))) text += pipe.read_until("a");
      queue.add(STDOUT_FILENO, "the end\n");
      text += pipe.read_until("the end\n");
    }
    CHECK(text.find('b') == std::string::npos);
    CHECK(text.ends_with("a\n[1 line is missing here: the output was not read]\nnext\nthe end\n"));
  }
}
