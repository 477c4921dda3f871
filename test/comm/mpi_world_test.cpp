// The MPI world: what it takes of the machine's cores.
#include <doctest/doctest.h>
#include <mpi.h>
#include <sched.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <thread>

#include "strategies/strategy_harness.h"

using namespace blipft;
using namespace blipft::testing;

namespace {

// One of MPI's parameters, -1: it has none of this name.
int mpi_parameter(const char* name) {
  int provided = 0, index = 0, count = 0, value = -1;
  MPI_T_init_thread(MPI_THREAD_SINGLE, &provided);
  MPI_T_cvar_handle handle;
  if (MPI_T_cvar_get_index(name, &index) == MPI_SUCCESS &&
      MPI_T_cvar_handle_alloc(index, nullptr, &handle, &count) == MPI_SUCCESS) {
    bool read = false;                                     // Open MPI's boolean is one byte
    if (MPI_T_cvar_read(handle, &read) == MPI_SUCCESS) value = read ? 1 : 0;
    MPI_T_cvar_handle_free(&handle);
  }
  MPI_T_finalize();
  return value;
}

bool sleeps() {
  const char* const policy = std::getenv("OMP_WAIT_POLICY");
  return policy && std::string(policy) == "passive";
}

// The time of this thread.
double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

TEST_SUITE("mpi world") {
  TEST_CASE("a rank that waits yields its core, unless it sleeps") {
    mpi_world();
    const bool is_open_mpi = mpi_library().found.starts_with("Open MPI");
    if (!is_open_mpi) return;              // the parameter is Open MPI's
    CHECK(mpi_parameter("mpi_yield_when_idle") == (sleeps() ? 0 : 1));
  }

  TEST_CASE("a rank that waits sleeps if OMP_WAIT_POLICY is passive") {
    const World& world = mpi_world();
    if (!sleeps()) {
      std::printf("SKIPPED: ranks that sleep (OMP_WAIT_POLICY is not passive)\n");
      return;
    }
    world.barrier();
    const double before = processor_seconds();
    if (world.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(500));
    world.barrier();
    CHECK(processor_seconds() - before < 0.15);
  }

  TEST_CASE("the cores of a machine's ranks are those that they are bound to, each counted once") {
    const World& world = mpi_world();
    cpu_set_t before;
    REQUIRE(sched_getaffinity(0, sizeof before, &before) == 0);
    std::vector<int> cores;
    for (int core = 0; core < CPU_SETSIZE; ++core)
      if (CPU_ISSET(core, &before)) cores.push_back(core);
    const auto count = static_cast<int64_t>(cores.size());
    CHECK(world.local_cores() == count);                   // nobody is bound
    const int64_t bound = std::min(count, world.size());
    cpu_set_t mine;
    CPU_ZERO(&mine);
    CPU_SET(cores[static_cast<size_t>(world.rank() % bound)], &mine);
    REQUIRE(sched_setaffinity(0, sizeof mine, &mine) == 0);
    CHECK(world.split(0, world.rank())->local_cores() == bound);
    sched_setaffinity(0, sizeof before, &before);
  }
}
