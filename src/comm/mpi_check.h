// Error check for MPI calls.
#pragma once

#include <mpi.h>

#include <string>

#include "blipft/error.h"

namespace blipft {

/// Throws Error with MPI's message for `code`, unless `code` is MPI_SUCCESS.
inline void check_mpi(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw Error(concat(what, ": ", std::string(text, static_cast<size_t>(length))));
}

}  // namespace blipft
