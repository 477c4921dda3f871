// Generated text on a terminal.
#include <doctest/doctest.h>

#include "base/standard_output.h"

using namespace blipft;

TEST_SUITE("base") {
  TEST_CASE("control characters of a generated text do not reach a terminal") {
    CHECK(printable("\x1b]0;x\a\n\tb\x7f\r", true) == "\\x1b]0;x\\x07\n\tb\\x7f\\x0d");
    CHECK(printable("\xc2\x9b" "31m caf\xc3\xa9 \xc2\xa0\xf0\x9f\x98\x80", true) == "\\u009b31m caf\xc3\xa9 \xc2\xa0\xf0\x9f\x98\x80");
    CHECK(printable("\x1b[31m\xc2\x9b", false) == "\x1b[31m\xc2\x9b");
  }
}
