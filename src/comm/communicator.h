// The MPI communicator behind a World.
#pragma once

#include <mpi.h>

#include "blipft/comm.h"

namespace blipft {

/// Owns a communicator. The destructor of the one with all ranks, MPI_COMM_WORLD, ends MPI.
struct World::Communicator {
  explicit Communicator(MPI_Comm owned) : mpi(owned) {}
  ~Communicator() {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (finalized) return;
    if (mpi == MPI_COMM_WORLD) MPI_Finalize();
    else MPI_Comm_free(&mpi);
  }
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  MPI_Comm mpi;
};

}  // namespace blipft
