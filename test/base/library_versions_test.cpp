// The versions of libraries that the program accepts.
#include <doctest/doctest.h>

#include "blipft/comm.h"
#include "blipft/version.h"
#include "io/hdf5_handle.h"
#include "support/error_message.h"

using namespace blipft;
using namespace blipft::testing;

TEST_SUITE("version") {
  TEST_CASE("libraries of another version than the build's are refused, where the program needs the same") {
    check_libraries({{"MPI", "Open MPI 4.1.4", "Open MPI 4.2.0", 1}, {"HDF5", "1.10.8", "1.10.8", 3}});
    check_libraries({{"MPI", "MPICH 4.0.2", "Intel(R) MPI Library 2021.6", 0}, {"NCCL", "", "", 1}});
    const std::string mpi = message_of([] { check_libraries({{"MPI", "Open MPI 4.1.4", "Open MPI 5.0.1", 1}}); });
    CHECK(contains(mpi, "built with Open MPI 4.1.4"));
    CHECK(contains(mpi, "found Open MPI 5.0.1"));
    CHECK(contains(mpi, "LD_LIBRARY_PATH"));
    CHECK(contains(message_of([] { check_libraries({{"HDF5", "1.10.8", "1.10.10", 3}}); }), "found 1.10.10"));
  }

  TEST_CASE("this program's libraries are those of its build") {
    check_libraries({mpi_library(), io::hdf5_library(), nccl_library()});
    CHECK(mpi_library().same_parts == 1);
    CHECK(!io::hdf5_library().found.empty());
  }
}
