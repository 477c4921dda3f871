// The table of a start's parts.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "blipft/error.h"
#include "strategies/strategy_harness.h"
#include "train/start/start_parts.h"

using namespace blipft;
using enum StartPart::Where;

namespace {

struct Start {
  const World& world = testing::mpi_world();
  StartTimes times;
  StartParts parts{world, times};
  std::vector<std::string> done;
  std::function<void()> note(const std::string& name) {
    return [this, name] { done.push_back(name); };
  }
  std::vector<std::string> timed() const {
    std::vector<std::string> names;
    for (const auto& [name, seconds] : times.parts()) names.push_back(name);
    return names;
  }
};

}  // namespace

TEST_SUITE("mpi start parts") {
  TEST_CASE("parts run in the order of the table, and a part waits for those beside it that it needs") {
    Start start;
    std::atomic<bool> slow_done{false};
    bool seen = false;
    start.parts.run({{"first", local, {}, start.note("first"), "one"},
                     {"slow", beside, {"first"},
                      [&] {
                        std::this_thread::sleep_for(std::chrono::milliseconds(50));
                        slow_done = true;
                      },
                      "slow"},
                     {"second", collective, {"first"}, start.note("second"), "two"},
                     {"skipped", collective, {"first"}, start.note("skipped"), "", [] { return false; }},
                     {"third", local, {"slow", "second"},
                      [&] {
                        seen = slow_done;
                        start.done.push_back("third");
                      },
                      "three"}});
    CHECK(start.done == std::vector<std::string>{"first", "second", "third"});
    CHECK(seen);
    CHECK(start.timed() == std::vector<std::string>{"launch", "one", "two", "three"});
    REQUIRE(start.times.background_parts().size() == 1);
    CHECK(start.times.background_parts()[0].first == "slow");
    CHECK(start.times.background_parts()[0].second >= 0.04);
  }

  TEST_CASE("a part beside the others that throws ends all ranks at the part that needs it") {
    Start start;
    CHECK_THROWS_AS(start.parts.run({{"reads", beside, {}, [] { throw UserError("data.jsonl: cannot be read"); }, "reads"},
                                     {"between", local, {}, start.note("between")},
                                     {"uses", local, {"reads"}, start.note("uses")}}),
                    AgreedError);
    CHECK(start.done == std::vector<std::string>{"between"});
  }

  TEST_CASE("a table that does not fit together is refused before anything runs") {
    Start start;
    const auto part = start.note("a");
    CHECK_THROWS_AS(start.parts.run({{"a", local, {"b"}, part}, {"b", local, {}, part}}), Error);
    CHECK_THROWS_AS(start.parts.run({{"a", beside, {}, part, "a"}}), Error);
    CHECK_THROWS_AS(start.parts.run({{"a", beside, {}, part}, {"b", local, {"a"}, part}}), Error);
    CHECK(start.done.empty());
  }
}
