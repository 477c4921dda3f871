// Waits for MPI collectives.
#pragma once

#include <mpi.h>

#include <cstdint>

#include "comm/mpi_check.h"

namespace blipft {

/// True if OMP_WAIT_POLICY is passive: ranks then sleep while they wait for each other, as threads do.
bool ranks_sleep();

/// Waits until `request`, a collective `what` in which this rank receives `bytes`, is done. Throws Error if it fails.
void finish(MPI_Request request, int64_t bytes, const char* what);

/// Runs the collective `what`, in which this rank receives `bytes`: begin(&request) starts it. Waits until it is done;
/// throws Error if it fails.
///
/// A rank that waits yields its core (see World), because another rank may compute there. But if other programs need
/// the core too, a rank that has yielded gets it back only a time slice later, at every collective. With
/// OMP_WAIT_POLICY=passive a rank sleeps instead: for an eighth of the time that it has waited, limited to 50 to 200
/// us. The scheduler prefers a thread that has slept to one that has computed.
template <class Begin>
void complete(const char* what, int64_t bytes, Begin begin) {
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(begin(&request), what);
  finish(request, bytes, what);
}

}  // namespace blipft
