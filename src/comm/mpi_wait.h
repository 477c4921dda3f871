// Waiting for other ranks.
#pragma once

#include <mpi.h>

#include <cstdint>

#include "comm/mpi_check.h"

namespace blipft {

/// True if OMP_WAIT_POLICY is passive: ranks then sleep while they wait for each other, as threads do.
bool ranks_sleep();

/// Waits until `request`, that of a collective `what` in which this rank receives `bytes`, is done. Throws Error where it fails.
void finish(MPI_Request request, int64_t bytes, const char* what);

/// The collective `what`, in which this rank receives `bytes`, from begin(&request), which calls it, to its end. Throws Error where
/// it fails.
///
/// A rank that waits yields its core (World), since another rank may compute there. But if other programs need the core too,
/// a rank that has yielded gets it back a time slice later, at every collective. With OMP_WAIT_POLICY=passive in the environment
/// a rank sleeps instead: for an eighth of the time that it has waited, 50 to 200 us at a time. The scheduler prefers a thread
/// that has slept to one that has computed.
template <class Begin>
void complete(const char* what, int64_t bytes, Begin begin) {
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(begin(&request), what);
  finish(request, bytes, what);
}

}  // namespace blipft
