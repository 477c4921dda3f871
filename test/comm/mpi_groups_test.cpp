// Groups of ranks: splits of the MPI world, and the communicators of a run's groups, against sums made here.
#include <doctest/doctest.h>

#include <numeric>
#include <vector>

#include "blipft/comm.h"
#include "blipft/device.h"
#include "comm/communicator.h"
#include "strategies/strategy_harness.h"

using namespace blipft;
using namespace blipft::testing;

namespace {

std::vector<int64_t> divisors(int64_t n) {
  std::vector<int64_t> list;
  for (int64_t d = 1; d <= n; ++d)
    if (n % d == 0) list.push_back(d);
  return list;
}

// All ranks, each `ranks` successive ones taken for a machine wherever they run: one machine then shows what several do.
class Machines : public World {
 public:
  explicit Machines(int64_t ranks)
      : World(all_ranks(), mpi_world().rank() / ranks, std::make_shared<Activity>()) {}

 private:
  static std::unique_ptr<Communicator> all_ranks() {
    MPI_Comm all = MPI_COMM_NULL;
    REQUIRE(MPI_Comm_dup(mpi_world().communicator().mpi, &all) == MPI_SUCCESS);
    return std::make_unique<Communicator>(all);
  }
};

// Which ranks are in this rank's group, in the group's order.
std::vector<int64_t> members(const World& group) {
  const int64_t mine = mpi_world().rank();
  std::vector<int64_t> ranks(static_cast<size_t>(group.size()));
  group.gather(&mine, sizeof mine, ranks.data());
  group.broadcast(ranks.data(), static_cast<int64_t>(ranks.size() * sizeof mine), 0);
  return ranks;
}

// Numbers that every rank knows of every rank; sums of a few in any order are exact in f32.
float value_of(int64_t rank, int64_t i) { return static_cast<float>(rank * 100 + i); }
std::vector<float> values_of(int64_t rank, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) values[static_cast<size_t>(i)] = value_of(rank, i);
  return values;
}
std::vector<float> sum_over(const std::vector<int64_t>& ranks, int64_t first, int64_t count) {
  std::vector<float> sums(static_cast<size_t>(count), 0.0f);
  for (int64_t rank : ranks)
    for (int64_t i = 0; i < count; ++i) sums[static_cast<size_t>(i)] += value_of(rank, first + i);
  return sums;
}

Tensor tensor(std::vector<float>& values) {
  return {values.data(), DType::f32, {static_cast<int64_t>(values.size())}};
}

}  // namespace

TEST_SUITE("mpi groups") {
  TEST_CASE("a split has the ranks of one color in the order of their keys, and agrees for itself") {
    const World& world = mpi_world();
    const int64_t rank = world.rank(), size = world.size();
    const auto parity = world.split(rank % 2, -rank);  // odd and even ranks, backwards
    std::vector<int64_t> expected;
    for (int64_t r = size - 1; r >= 0; --r)
      if (r % 2 == rank % 2) expected.push_back(r);
    CHECK(members(*parity) == expected);
    CHECK(expected[static_cast<size_t>(parity->rank())] == rank);
    CHECK(parity->max(rank) == expected.front());
    CHECK(parity->sum(1.0) == static_cast<double>(expected.size()));
    CHECK(parity->local_size() == parity->size());    // the tests run on one machine
    CHECK(parity->local_rank() == parity->rank());
    // Only the even ranks fail, and only they hear of it; the lowest of the group, which is the highest, speaks.
    std::string heard;
    try {
      parity->run_agreeing_on_errors([&] { BLIPFT_USER_CHECK(rank % 2 == 1, "rank ", rank, " fails"); });
    } catch (const AgreedError& error) {
      heard = error.what();
    }
    CHECK((rank % 2 == 1 ? heard == "" : heard.ends_with(concat("rank ", expected.front(), " fails"))));
    if (rank % 2 == 0 && expected.size() > 1)          // each has its own error
      CHECK(heard.starts_with(concat("rank ", expected.front(), " on ", world.host(), " (", expected.size() - 1)));
    const auto again = parity->split(0, rank);         // a group of a group
    CHECK(members(*again) == std::vector<int64_t>(expected.rbegin(), expected.rend()));
    world.barrier();
  }

  TEST_CASE("collectives of every grid of groups") {
    const World& world = mpi_world();
    const auto device = make_cpu_device(1);
    const Stream stream = device->compute_stream();
    for (int64_t shard_ranks : divisors(world.size())) {
      CAPTURE(shard_ranks);
      const GroupSizes sizes{shard_ranks, world.size() / shard_ranks};
      CommGroups owner(world, sizes, *device, [](const World& ranks, bool) { return make_mpi_comm(ranks); });
      const Groups groups = owner.groups();
      const int64_t group = world.rank() / shard_ranks, index = world.rank() % shard_ranks;
      CHECK(owner.shard_group() == group);
      CHECK(owner.replicate_group() == index);
      CHECK(groups.all->size() == world.size());
      CHECK(groups.shard->size() == shard_ranks);
      CHECK(groups.shard->rank() == index);
      CHECK(groups.replicate->size() == sizes.replicate);
      CHECK(groups.replicate->rank() == group);
      CHECK(groups.hybrid() == (shard_ranks < world.size()));
      std::vector<int64_t> here(static_cast<size_t>(shard_ranks)), everybody(static_cast<size_t>(world.size()));
      std::iota(here.begin(), here.end(), group * shard_ranks);
      std::iota(everybody.begin(), everybody.end(), 0);

      const int64_t count = 5;
      std::vector<float> full = values_of(world.rank(), shard_ranks * count), shard(static_cast<size_t>(count));
      groups.shard->reduce_scatter(tensor(full), tensor(shard), stream);
      CHECK(shard == sum_over(here, index * count, count));
      groups.replicate->all_reduce(tensor(shard), stream);
      CHECK(shard == sum_over(everybody, index * count, count));  // the sum over all ranks, of this rank's part
      groups.shard->all_gather(tensor(shard), tensor(full), stream);
      CHECK(full == sum_over(everybody, 0, shard_ranks * count));
      std::vector<float> one = values_of(world.rank(), 1);
      groups.all->all_reduce(tensor(one), stream);
      CHECK(one == sum_over(everybody, 0, 1));
    }
  }

  TEST_CASE("shard groups keep to machines, however ranks are dealt to them") {
    const World& world = mpi_world();
    if (world.size() % 2 != 0) return;
    const auto device = make_cpu_device(1);
    const int64_t half = world.size() / 2;
    // Ranks in the order 0, half, 1, half + 1, ...: with machines of `half` ranks they are dealt in turn.
    const auto dealt = Machines(half).split(0, world.rank() % half * 2 + world.rank() / half);
    CHECK(dealt->local_size() == half);
    CHECK(dealt->local_rank() == dealt->rank() / 2);
    CommGroups owner(*dealt, {half, 2}, *device, [](const World& ranks, bool) { return make_mpi_comm(ranks); });
    CHECK(owner.shard_group() == world.rank() / half);
    CHECK(owner.groups().shard->rank() == world.rank() % half);
    std::vector<float> one = values_of(world.rank(), 1);
    owner.groups().shard->all_reduce(tensor(one), device->compute_stream());
    std::vector<int64_t> machine(static_cast<size_t>(half));
    std::iota(machine.begin(), machine.end(), world.rank() / half * half);
    CHECK(one == sum_over(machine, 0, 1));
  }
}
