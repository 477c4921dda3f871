// Which part of a run the ranks write: the same on all, as rank 0 sees the output folder.
#include <doctest/doctest.h>

#include "blipft/comm.h"
#include "blipft/config.h"
#include "strategies/strategy_harness.h"
#include "support/error_message.h"
#include "support/temporary_directory.h"
#include "trace/trace_files.h"
#include "train/observers/run_trace.h"

using namespace blipft;
using namespace blipft::testing;

TEST_SUITE("mpi trace") {
  TEST_CASE("all ranks write the part that rank 0 finds to be the next") {
    const World& world = mpi_world();
    const TemporaryDirectory folder;   // each rank's own: as where ranks do not see the same files
    Config config;
    config.output.path = folder.path.string();
    CHECK(RunTrace::next_part(config, world) == 0);
    folder.write(trace_file_name(2 + world.rank(), 7), "");
    CHECK(RunTrace::next_part(config, world) == 3);
    CHECK(RunTrace::path(config, 3, 1) == folder / "trace.part0003.rank0001.h5");
    config.output.path = folder.write("file", "");
    const std::string message = message_of<AgreedError>([&] { RunTrace::next_part(config, world); });
    CHECK(message.find("cannot look for trace files") != std::string::npos);
  }
}
