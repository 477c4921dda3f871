// Names of trace files, and which part of a run is the next.
#include <doctest/doctest.h>
#include <hdf5.h>

#include <filesystem>

#include "blipft/error.h"
#include "blipft/trace.h"
#include "io/hdf5_handle.h"
#include "support/error_message.h"
#include "support/temporary_directory.h"
#include "trace/trace_files.h"

using namespace blipft;
using io::Hdf5Handle;
using testing::message_of;
using testing::TemporaryDirectory;

TEST_SUITE("trace") {

TEST_CASE("the files of a run's parts have names of their own") {
  CHECK(trace_file_name(0, 3) == "trace.rank0003.h5");
  CHECK(trace_file_name(1, 0) == "trace.part0001.rank0000.h5");
  CHECK(trace_file_name(12, 12345) == "trace.part0012.rank12345.h5");
}

TEST_CASE("the next part is one more than the highest of any rank") {
  const TemporaryDirectory folder;
  const std::string run = folder.path.string();
  CHECK(next_trace_part(run) == 0);
  CHECK(next_trace_part(run + "/not/there") == 0);
  for (const char* other : {"trace.part0007.h5", "trace.part0008.rank.h5", "trace.part0008rank0000.h5", "trace.h5",
                            "trace.part-9.rank0000.h5", "trace.part0009.rank0000.h5.old", "xtrace.part0009.rank0000.h5",
                            "trace.part99999999999.rank0000.h5", "trace.part99999999999999999999.rank0000.h5",
                            "trace."})
    folder.write(other, "");
  CHECK(next_trace_part(run) == 0);
  folder.write(trace_file_name(0, 1), "");
  CHECK(next_trace_part(run) == 1);
  folder.write(trace_file_name(10, 3), "");  // of a part that had more ranks
  folder.write(trace_file_name(9, 0), "");
  CHECK(next_trace_part(run) == 11);
  const auto found = find_trace_files(run);
  REQUIRE(found.size() == 3);
  CHECK((found[0].part == 0 && found[0].rank == 1));
  CHECK((found[1].part == 9 && found[1].rank == 0));
  CHECK((found[2].part == 10 && found[2].rank == 3));
  CHECK(found[2].path == folder / "trace.part0010.rank0003.h5");
  const std::string file = folder.write("file", "");
  CHECK(message_of([&] { next_trace_part(file); }).find(file + ": cannot look for trace files: ") == 0);
}

TEST_CASE("a trace tells its part and first step") {
  const TemporaryDirectory folder;
  const std::string path = folder / trace_file_name(2, 0);
  {
    const auto trace = open_trace(path);
    note_part(*trace, 2, int64_t{1} << 40);
    trace->close();
  }
  const Hdf5Handle file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose);
  REQUIRE(file.get() >= 0);
  for (const auto& [name, value] : {std::pair{"part", 2.0}, std::pair{"first_step", 1099511627776.0}}) {
    CAPTURE(name);
    const Hdf5Handle attribute(H5Aopen(file.get(), name, H5P_DEFAULT), H5Aclose);
    REQUIRE(attribute.get() >= 0);
    double got = 0;
    REQUIRE(H5Aread(attribute.get(), H5T_NATIVE_DOUBLE, &got) >= 0);
    CHECK(got == value);
  }
}

}  // TEST_SUITE
