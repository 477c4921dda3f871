// The shard of a unit on each rank, at the world size that mpirun gives.
#include "strategies/strategy_harness.h"

using namespace blipft;
using namespace blipft::testing;

TEST_SUITE("mpi shards") {
  TEST_CASE("the ranks' shards tile each unit") {
    const int64_t ranks = mpi_world().size();
    const TestRun run(make_job("blip2_odd"), {"fsdp"}, &mpi_world());
    ParameterStore& store = run.store();
    CHECK(store.shards() == ranks);
    for (const Unit* unit : run.model().units()) {
      const Shard& shard = store.shard(*unit);
      CAPTURE(unit->name());
      CHECK(shard.padded >= unit->numel());
      CHECK(shard.padded < unit->numel() + 64 * ranks);
      CHECK(shard.count * ranks == shard.padded);
      CHECK(shard.first == mpi_world().rank() * shard.count);
      CHECK(store.weights(*unit).numel() == shard.count);
      CHECK(store.gradient(*unit).numel() == shard.count);
      REQUIRE(store.state(*unit, 1).size() == 1);
      CHECK(store.state(*unit, 1)[0].state.tensor().numel() == shard.count);
    }
  }

  TEST_CASE("masters are kept in bf16-mixed for trainable units alone, and round to the parameters") {
    Job job = make_job("blip2_odd", Precision::bf16_mixed);
    job.config.model.freeze = {"vision"};
    job.config.steps.batch_size = 2;
    TestRun run(job, {"fsdp"}, &mpi_world());
    run.train();
    for (const Unit* unit : run.model().units()) {
      CAPTURE(unit->name());
      const Tensor master = run.store().masters(*unit), parameters = run.store().weights(*unit);
      CHECK(bool(master) == unit->trainable);
      CHECK(run.store().weight_dtype(*unit) == (unit->trainable ? DType::f32 : DType::bf16));
      if (!master) continue;
      bool equal = true;
      for (int64_t i = 0; i < master.numel(); ++i)
        equal = equal && parameters.as<uint16_t>()[i] == float_to_bf16(master.as<float>()[i]);
      CHECK(equal);
    }
  }

  TEST_CASE("the factory refuses what makes no sense") {
    const auto device = make_cpu_device(0);
    const auto comm = make_plan_comm(2), alone = make_plan_comm(1);
    Arena arena(*device);
    ParameterStore store({.device = device.get(), .arena = &arena});
    const Groups groups{comm.get(), comm.get(), alone.get()};
    const StrategyContext context{device.get(), nullptr, groups, &arena, &store, {}, nullptr};
    CHECK_THROWS_WITH_AS(make_strategy(StrategyKind::single, context, {}), doctest::Contains("2"), UserError);
  }
}
