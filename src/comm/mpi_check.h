// The check behind every MPI call.
#pragma once

#include <mpi.h>

#include <string>

#include "blipft/error.h"

namespace blipft {

/// Throws Error with MPI's text for `code`, unless it is success.
inline void check_mpi(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw Error(concat(what, ": ", std::string(text, static_cast<size_t>(length))));
}

}  // namespace blipft
