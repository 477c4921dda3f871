// How memory is told: the unit and the digits.
#include <doctest/doctest.h>

#include "base/memory_text.h"

using namespace blipft;

TEST_SUITE("memory_text") {

TEST_CASE("an amount that stands alone takes GiB from one GiB on, else MiB") {
  CHECK(memory_text(0) == "0.00 MiB");
  CHECK(memory_text(3 << 19) == "1.50 MiB");
  CHECK(memory_text(int64_t{1023} << 20) == "1023.00 MiB");
  CHECK(memory_text(int64_t{1} << 30) == "1.00 GiB");
  CHECK(memory_text(int64_t{5} << 29) == "2.50 GiB");
}

TEST_CASE("amounts that are printed together share one unit") {
  const MemoryUnit large(int64_t{2} << 30), small(int64_t{200} << 20);
  CHECK(large(int64_t{1} << 29) == 0.5);
  CHECK(std::string(large.name) == "GiB");
  CHECK(small(int64_t{1} << 29) == 512);
  CHECK(std::string(small.name) == "MiB");
}

}  // TEST_SUITE
