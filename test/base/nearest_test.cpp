// Names that are near to a wrong one.
#include <doctest/doctest.h>

#include "base/nearest.h"

using namespace blipft;

TEST_SUITE("config") {
  TEST_CASE("nearest names") {
    CHECK(name_distance("batch_size", "batchsize") == 0);
    CHECK(name_distance("abc", "acb") == 1);
    CHECK(name_distance("kitten", "sitting") == 3);
    CHECK(name_distance("", "abc") == 3);
    CHECK(nearest_name("strateggy", {"devices", "strategy"}) == "strategy");
    CHECK(nearest_name("xx", {"lr", "seed"}).empty());
    CHECK(nearest_name(std::string(100000, 'a'), {"lr"}).empty());
    CHECK(join_names({}).empty());
    CHECK(join_names({"a"}) == "a");
    CHECK(join_names({"a", "b", "c"}) == "a, b or c");
  }
}
