// Output to a terminal, and to a reader that takes nothing.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <chrono>

#include "base/standard_output.h"

using namespace blipft;

TEST_SUITE("base") {
  TEST_CASE("control characters of a generated text do not reach a terminal") {
    CHECK(printable("\x1b]0;x\a\n\tb\x7f\r", true) == "\\x1b]0;x\\x07\n\tb\\x7f\\x0d");
    CHECK(printable("\xc2\x9b" "31m caf\xc3\xa9 \xc2\xa0\xf0\x9f\x98\x80", true) == "\\u009b31m caf\xc3\xa9 \xc2\xa0\xf0\x9f\x98\x80");
    CHECK(printable("\x1b[31m\xc2\x9b", false) == "\x1b[31m\xc2\x9b");
  }

  TEST_CASE("last words do not wait for a reader that takes nothing") {
    int ends[2] = {};
    REQUIRE(::pipe(ends) == 0);
    const int before = ::dup(STDERR_FILENO), flags = ::fcntl(ends[1], F_GETFL);
    ::fcntl(ends[1], F_SETFL, flags | O_NONBLOCK);
    while (::write(ends[1], "x", 1) == 1) {}
    ::fcntl(ends[1], F_SETFL, flags);
    ::dup2(ends[1], STDERR_FILENO);
    const auto begin = std::chrono::steady_clock::now();
    write_error_now("rank 1 does not answer\n");
    const auto seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    ::dup2(before, STDERR_FILENO);
    for (const int file : {before, ends[0], ends[1]}) ::close(file);
    CHECK(seconds >= 0.9);                   // a reader that is late has a second
    CHECK(seconds < 20);
  }
}
