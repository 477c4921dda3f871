// HostActivations: what is put comes back, and the arena plans both memories.
#include "blipft/host_activations.h"

#include <doctest/doctest.h>

#include <cstring>
#include <random>

namespace blipft {
namespace {

Tensor filled(Arena& arena, int64_t rows, float value) {
  const Tensor tensor = arena.take(Owner::activations, "x", DType::f32, {rows, 3});
  if (value != 0) std::fill_n(tensor.as<float>(), tensor.numel(), value);
  return tensor;
}

// Puts tensors of such rows, two "micro-batches" of them, fetching each in between as a backward does. With `check`
// memory is real.
void run(Arena& arena, HostActivations& host, const std::vector<int64_t>& rows, bool check) {
  arena.begin_pass("step");
  for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
    for (size_t i = 0; i < rows.size(); ++i)
      host.put(filled(arena, rows[i], check ? static_cast<float>(100 * micro_batch + static_cast<int>(i) + 1) : 0));
    for (size_t i = rows.size(); i-- > 0;) {
      const Tensor back = host.fetch();
      host.prefetch();
      CHECK(back.shape == Shape{rows[i], 3});
      if (check)
        for (int64_t e = 0; e < back.numel(); ++e)
          CHECK(back.as<float>()[e] == static_cast<float>(100 * micro_batch + static_cast<int>(i) + 1));
      arena.give(back);
    }
    host.prefetch();                       // nothing left: nothing happens
  }
  arena.end_pass();
}

}  // namespace

TEST_SUITE("host activations") {
  TEST_CASE("what is put last is fetched first, whatever the sizes; the host takes the sum, the device a few") {
    std::mt19937 random(3);
    for (int round = 0; round < 20; ++round) {
      std::vector<int64_t> rows(1 + random() % 12);
      int64_t all = 0, largest = 0;
      for (int64_t& n : rows) {
        n = 1 + static_cast<int64_t>(random() % 500);
        const int64_t bytes = (n * 12 + 255) / 256 * 256;
        all += bytes;
        largest = std::max(largest, bytes);
      }
      const std::unique_ptr<Device> plan = make_plan_device(), device = make_cpu_device(1);
      Arena blueprint(*plan);
      HostActivations planned(*plan, blueprint);
      run(blueprint, planned, rows, false);
      blueprint.plan();
      CHECK(blueprint.host_bytes() == all);
      CHECK(blueprint.bytes_of_host_takes("step") == 2 * all);
      CHECK(blueprint.peak_live_bytes() <= 3 * largest);
      Arena arena(*device, blueprint);
      arena.commit();
      CHECK(arena.host_bytes() == all);
      HostActivations host(*device, arena);
      run(arena, host, rows, true);
      int64_t in_table = 0;
      for (const PlanEntry& entry : arena.peak_entries())
        if (entry.space == MemorySpace::host) in_table += entry.bytes;
      CHECK(in_table == all);
    }
  }

  TEST_CASE("host memory of a pass is a stack, and ends with it") {
    const std::unique_ptr<Device> device = make_plan_device();
    Arena arena(*device);
    arena.begin_pass("step");
    const Tensor first = arena.take_in_host(Owner::activations, "first", DType::bf16, {100});
    const Tensor second = arena.take_in_host(Owner::activations, "second", DType::bf16, {100});
    CHECK_THROWS_WITH_AS(arena.give_in_host(first), doctest::Contains("before second"), Error);
    arena.give_in_host(second);
    CHECK_THROWS_WITH_AS(arena.end_pass(), doctest::Contains("1 tensors in the host not given back"), Error);
    arena.give_in_host(first);
    CHECK_NOTHROW(arena.end_pass());
  }

  TEST_CASE("fetching what was never put is refused") {
    const std::unique_ptr<Device> device = make_plan_device();
    Arena arena(*device);
    HostActivations host(*device, arena);
    CHECK_THROWS_WITH_AS(host.fetch(), doctest::Contains("nothing was put"), Error);
  }
}

}  // namespace blipft
