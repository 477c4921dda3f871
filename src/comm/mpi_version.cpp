// Which MPI the program was built with, and which it runs with.
#include <mpi.h>

#include <string>

#include "blipft/comm.h"
#include "blipft/error.h"
#include "blipft/monitor.h"
#include "comm/mpi_check.h"

namespace blipft {

namespace {

/// "Open MPI 4.1.4" of "Open MPI v4.1.4"; "MPICH 4.0.2" of "MPICH Version:      4.0.2"; else the text.
std::string short_name(const std::string& text) {
  if (text.starts_with("Open MPI v")) return "Open MPI " + text.substr(10);
  if (text.starts_with("MPICH Version:")) return "MPICH " + text.substr(text.find_last_of(" \t") + 1);
  return text;
}

}  // namespace

// The library's version text is "Open MPI v4.1.4, package: ..., ident: ..." or has several lines.
std::string mpi_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  check_mpi(MPI_Get_library_version(text, &length), "MPI_Get_library_version");
  const std::string whole(text, static_cast<size_t>(length));
  return whole.substr(0, whole.find_first_of(",\n"));
}

LibraryVersion mpi_library() {
  const std::string found = short_name(mpi_version());
#if defined(OMPI_MAJOR_VERSION)
  const std::string built = concat("Open MPI ", OMPI_MAJOR_VERSION, ".", OMPI_MINOR_VERSION, ".", OMPI_RELEASE_VERSION);
#elif defined(MPICH_VERSION)
  const std::string built = "MPICH " MPICH_VERSION;
#else
  const std::string built = concat("MPI ", MPI_VERSION, ".", MPI_SUBVERSION);
#endif
  // MPIs that are built of MPICH name themselves, and have its binary interface.
  return {"MPI", built, found, built.substr(0, 5) == found.substr(0, 5) ? 1 : 0};
}

}  // namespace blipft
