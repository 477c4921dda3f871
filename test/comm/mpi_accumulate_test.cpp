// A communicator that cannot add to what a shard holds says so, and refuses to be asked.
#include <doctest/doctest.h>

#include <vector>

#include "blipft/comm.h"
#include "strategies/strategy_harness.h"

using namespace blipft;
using namespace blipft::testing;

TEST_SUITE("mpi accumulate") {
  TEST_CASE("reduce_scatter adds to the shard only where it says so") {
    const auto device = make_cpu_device(1);
    const auto over_mpi = make_mpi_comm(mpi_world()), alone = make_self_comm(*device), planned = make_plan_comm(3);
    for (Comm* comm : {over_mpi.get(), alone.get(), planned.get()}) {
      CAPTURE(comm->name());
      std::vector<float> full(static_cast<size_t>(comm->size() * 2), 1.0f), mine(2, 5.0f);
      const Tensor from{full.data(), DType::f32, {static_cast<int64_t>(full.size())}};
      const Tensor to{mine.data(), DType::f32, {2}};
      REQUIRE_FALSE(comm->reduce_scatter_accumulates(from));
      CHECK_THROWS_WITH_AS(comm->reduce_scatter(from, to, device->comm_stream(), true),
                           doctest::Contains("does not add"), Error);
      CHECK(mine == std::vector<float>{5, 5});
      if (comm == planned.get()) continue;
      comm->reduce_scatter(from, to, device->comm_stream());
      CHECK(mine == std::vector<float>(2, static_cast<float>(comm->size())));
    }
  }
}
