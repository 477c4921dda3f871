// Choices for ranks before CUDA starts.
#include "engine/placement.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <string>

#include "strategies/strategy_harness.h"
#include "support/choice_of.h"

using namespace blipft;
using namespace blipft::testing;

TEST_SUITE("mpi placement") {
  TEST_CASE("fsdp on several ranks asks for more queues to the GPU, others and where it was said do not") {
    constexpr const char* kName = "CUDA_DEVICE_MAX_CONNECTIONS";
    const char* found = std::getenv(kName);
    const std::string before = found ? found : "";
    const auto chosen = [&](const std::string& strategy) {
      Config config;
      config.parallel.strategy = choice_of<StrategyKind>(strategy);
      choose_gpu_queues(config, mpi_world());
      const char* value = std::getenv(kName);
      return std::string(value ? value : "");
    };
    (void)unsetenv(kName);
    CHECK(chosen("auto") == "");
    CHECK(chosen("ddp") == "");
    CHECK(chosen("fsdp") == (mpi_world().size() > 1 ? "16" : ""));
    (void)setenv(kName, "24", 1);
    CHECK(chosen("fsdp") == "24");
    if (found) (void)setenv(kName, before.c_str(), 1);
    else (void)unsetenv(kName);
  }
}
