// Simulates several machines for a program that links MPI as a shared library, as a preloaded library:
//
//   mpicxx -shared -fPIC -o machines.so test/support/machines.cpp
//   MACHINES=0,0,1,1 LD_PRELOAD=machines.so blipft ...
//
// MACHINES has a number for each rank: ranks with equal numbers appear to share a machine.
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

extern "C" int MPI_Comm_split_type(MPI_Comm ranks, int type, int key, MPI_Info info, MPI_Comm* group) {
  const char* const text = std::getenv("MACHINES");
  if (!text || type != MPI_COMM_TYPE_SHARED) return PMPI_Comm_split_type(ranks, type, key, info, group);
  std::vector<int> machines;
  std::istringstream numbers(text);
  for (std::string number; std::getline(numbers, number, ',');) machines.push_back(std::atoi(number.c_str()));
  int rank = 0, size = 0;
  PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
  PMPI_Comm_size(MPI_COMM_WORLD, &size);
  if (static_cast<int>(machines.size()) != size) {
    std::fprintf(stderr, "machines.so: MACHINES: found \"%s\", expected %d numbers\n", text, size);
    return MPI_ERR_ARG;
  }
  return PMPI_Comm_split(ranks, machines[static_cast<size_t>(rank)], key, group);
}
