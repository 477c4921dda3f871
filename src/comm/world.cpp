// The MPI world of the process.
#include <mpi.h>
#include <unistd.h>

#include <cstdio>
#include <vector>

#include "blipft/comm.h"
#include "blipft/error.h"
#include "blipft/monitor.h"
#include "comm/mpi_check.h"

namespace blipft {

World::World(int* argc, char*** argv) {
  int provided = 0;
  check_mpi(MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  int rank = 0, size = 1;
  check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  MPI_Comm local;
  check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &local),
            "MPI_Comm_split_type");
  int local_rank = 0, local_size = 1;
  MPI_Comm_rank(local, &local_rank);
  MPI_Comm_size(local, &local_size);
  MPI_Comm_free(&local);
  rank_ = rank, size_ = size, local_rank_ = local_rank, local_size_ = local_size;
}

World::~World() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (!finalized) MPI_Finalize();
}

std::string World::host() const {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

void World::barrier() const { check_mpi(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier"); }

void World::broadcast(void* data, int64_t bytes, int64_t root) const {
  constexpr int64_t kPiece = int64_t{1} << 30;
  for (int64_t first = 0; first < bytes; first += kPiece)
    check_mpi(MPI_Bcast(static_cast<char*>(data) + first, static_cast<int>(std::min(kPiece, bytes - first)), MPI_BYTE,
                        static_cast<int>(root), MPI_COMM_WORLD), "MPI_Bcast");
}

int64_t World::max(int64_t value) const {
  int64_t result = value;
  check_mpi(MPI_Allreduce(&value, &result, 1, MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD), "MPI_Allreduce");
  return result;
}

double World::max(double value) const {
  double result = value;
  check_mpi(MPI_Allreduce(&value, &result, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD), "MPI_Allreduce");
  return result;
}

double World::sum(double value) const {
  double result = value;
  check_mpi(MPI_Allreduce(&value, &result, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD), "MPI_Allreduce");
  return result;
}

void World::gather(const void* data, int64_t bytes, void* out) const {
  const int count = static_cast<int>(bytes);
  check_mpi(MPI_Gather(data, count, MPI_BYTE, out, count, MPI_BYTE, 0, MPI_COMM_WORLD), "MPI_Gather");
}

void World::abort(const std::string& message, int code) const {
  std::fprintf(stderr, "\nblipft: rank %lld on %s: %s\n", static_cast<long long>(rank_), host().c_str(),
               message.c_str());
  std::fflush(stdout);
  std::fflush(stderr);
  MPI_Abort(MPI_COMM_WORLD, code);
  _exit(code);
}

void World::agree(const std::string& message) const {
  const int64_t mine = message.empty() ? size_ : rank_;
  int64_t first = mine;
  check_mpi(MPI_Allreduce(&mine, &first, 1, MPI_INT64_T, MPI_MIN, MPI_COMM_WORLD), "MPI_Allreduce");
  if (first == size_) return;
  int64_t length = static_cast<int64_t>(message.size());
  broadcast(&length, sizeof length, first);
  std::string text = first == rank_ ? message : std::string(static_cast<size_t>(length), ' ');
  broadcast(text.data(), length, first);
  throw AgreedError(text);
}

// The library's text is "Open MPI v4.1.4, package: ..., ident: ..." or has several lines.
std::string mpi_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  check_mpi(MPI_Get_library_version(text, &length), "MPI_Get_library_version");
  const std::string whole(text, static_cast<size_t>(length));
  return whole.substr(0, whole.find_first_of(",\n"));
}

}  // namespace blipft
