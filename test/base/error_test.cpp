// Errors: what their messages say.
#include <doctest/doctest.h>

#include <string>

#include "blipft/error.h"

using namespace blipft;

TEST_SUITE("base") {
  TEST_CASE("a message with NUL characters is whole") {
    const std::string name("a\0b\0", 4);
    CHECK(std::string(UserError(name + ": is no file").what()) == "a\\0b\\0: is no file");
    CHECK(describe(Error(name)).starts_with("a\\0b\\0 ("));
  }
}
