// The cache of prepared samples.
#include <doctest/doctest.h>

#include "loading/sample_cache.h"

using namespace blipft;

TEST_SUITE("loader") {
  TEST_CASE("sample cache: bounded, drops what was used longest ago") {
    SampleCache cache(100);
    const auto sample = [](int64_t bytes) {
      return std::make_shared<PreparedSample>(PreparedSample{std::vector<uint8_t>(bytes), {}});
    };
    for (int64_t i = 0; i < 3; ++i) cache.insert(i, sample(30));
    CHECK(cache.find(0));
    cache.insert(3, sample(30));
    CHECK(cache.find(0));
    CHECK_FALSE(cache.find(1));
    CHECK(cache.bytes() == 90);
    cache.insert(4, sample(101));
    CHECK_FALSE(cache.find(4));
    CHECK(cache.bytes() == 90);
  }
}
