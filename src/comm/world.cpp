// Worlds: the MPI world of the process, and groups of its ranks.
#include <mpi.h>
#include <sched.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "blipft/comm.h"
#include "blipft/error.h"
#include "blipft/monitor.h"
#include "comm/communicator.h"
#include "comm/mpi_check.h"
#include "comm/mpi_wait.h"

namespace blipft {

namespace {

// Creates the communicator of the ranks that pass the same color, ordered by key.
std::unique_ptr<World::Communicator> split_mpi(MPI_Comm all, int64_t color, int64_t key) {
  BLIPFT_CHECK(color >= 0 && color <= INT_MAX && key >= INT_MIN && key <= INT_MAX, "color ", color, ", key ", key);
  MPI_Comm group = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(all, static_cast<int>(color), static_cast<int>(key), &group), "MPI_Comm_split");
  return std::make_unique<World::Communicator>(group);
}

int64_t rank_in(MPI_Comm group) {
  int rank = 0;
  check_mpi(MPI_Comm_rank(group, &rank), "MPI_Comm_rank");
  return rank;
}

int64_t size_of(MPI_Comm group) {
  int size = 1;
  check_mpi(MPI_Comm_size(group, &size), "MPI_Comm_size");
  return size;
}

// Returns the lowest rank on this rank's machine.
int64_t first_rank_here() {
  MPI_Comm here = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here), "MPI_Comm_split_type");
  const World::Communicator owner(here);
  int64_t first = rank_in(MPI_COMM_WORLD);
  check_mpi(MPI_Bcast(&first, 1, MPI_INT64_T, 0, here), "MPI_Bcast");
  return first;
}

// The machine and cores of a rank.
struct RankLocation {
  static constexpr int kSets = 8;                          // 8,192 cores: the kernel rejects masks that are too short
  int64_t machine;
  cpu_set_t cores[kSets];                                  // a scheduler may have bound each rank to different cores
};

// Reduces `value` over all ranks of `group`; returns the result on each of them.
template <class T>
T reduced(T value, MPI_Datatype type, MPI_Op op, MPI_Comm group) {
  T result = value;
  complete("MPI_Iallreduce", sizeof value, [&](MPI_Request* request) {
    return MPI_Iallreduce(&value, &result, 1, type, op, group, request);
  });
  return result;
}

}  // namespace

World::World(int* argc, char*** argv) {
  // By default MPI spins while it waits. If ranks have fewer cores than threads, as on a small machine or a shared
  // node, the computing threads then wait for a time slice at every collective. mpirun sets this variable if it knows
  // that; Slurm never does. With enough cores a yield returns at once. A value set by the user stays, unless ranks
  // sleep: then they never yield, because a sleeping rank does not use its core (mpi_wait.h).
  setenv("OMPI_MCA_mpi_yield_when_idle", ranks_sleep() ? "0" : "1", ranks_sleep());
  // For NCCL, set here because no other threads exist yet. Registering buffers while a collective is captured requires
  // that all ranks capture it, but each rank decides separately when to capture the step of a text shape. The arena's
  // memory is also no memory that registering would speed up.
  for (const char* name : {"NCCL_GRAPH_REGISTER", "NCCL_LOCAL_REGISTER"}) setenv(name, "0", 0);
  int provided = 0;
  check_mpi(MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  communicator_ = std::make_unique<Communicator>(MPI_COMM_WORLD);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);  // groups inherit the handler
  rank_ = rank_in(MPI_COMM_WORLD), size_ = size_of(MPI_COMM_WORLD);
  machine_ = first_rank_here();
  find_local_ranks();
}

World::World(std::unique_ptr<Communicator> communicator, int64_t machine, std::shared_ptr<Activity> activity)
    : activity_(std::move(activity)), communicator_(std::move(communicator)), rank_(rank_in(communicator_->mpi)),
      size_(size_of(communicator_->mpi)),
      machine_(machine) {
  find_local_ranks();
}

World::~World() = default;

std::unique_ptr<World> World::split(int64_t color, int64_t key) const {
  return std::unique_ptr<World>(new World(split_mpi(communicator_->mpi, color, key), machine_, activity_));
}

void World::find_local_ranks() {
  RankLocation mine{machine_, {}};
  if (sched_getaffinity(0, sizeof mine.cores, mine.cores) != 0) CPU_SET(0, mine.cores);
  std::vector<RankLocation> locations(static_cast<size_t>(size_));
  complete("MPI_Iallgather", static_cast<int64_t>(sizeof mine) * size_, [&](MPI_Request* request) {
    return MPI_Iallgather(&mine, sizeof mine, MPI_BYTE, locations.data(), sizeof mine, MPI_BYTE, communicator_->mpi, request);
  });
  local_rank_ = local_size_ = machine_order_ = 0;
  cpu_set_t cores[RankLocation::kSets] = {};
  for (int64_t r = 0; r < size_; ++r) {
    const RankLocation& of = locations[static_cast<size_t>(r)];
    machine_order_ += of.machine < machine_ || (of.machine == machine_ && r < rank_);
    if (of.machine != machine_) continue;
    ++local_size_;
    local_rank_ += r < rank_;
    CPU_OR_S(sizeof cores, cores, cores, of.cores);
  }
  local_cores_ = CPU_COUNT_S(sizeof cores, cores);
}

std::string World::host() const {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

void World::barrier() const {
  const Activity::Scope scope(*activity_, Activity::RankOperation::barrier);
  complete("MPI_Ibarrier", 0, [&](MPI_Request* request) {
    return MPI_Ibarrier(communicator_->mpi, request);
  });
}

void World::broadcast(void* data, int64_t bytes, int64_t root) const {
  const Activity::Scope scope(*activity_, Activity::RankOperation::broadcast);
  constexpr int64_t kPiece = int64_t{1} << 30;
  for (int64_t first = 0; first < bytes; first += kPiece) {
    const int64_t count = std::min(kPiece, bytes - first);
    complete("MPI_Ibcast", count, [&](MPI_Request* request) {
      return MPI_Ibcast(static_cast<char*>(data) + first, static_cast<int>(count), MPI_BYTE, static_cast<int>(root),
                        communicator_->mpi, request);
    });
  }
}

int64_t World::max(int64_t value) const {
  const Activity::Scope scope(*activity_, Activity::RankOperation::sum);
  return reduced(value, MPI_INT64_T, MPI_MAX, communicator_->mpi);
}

double World::max(double value) const {
  const Activity::Scope scope(*activity_, Activity::RankOperation::sum);
  return reduced(value, MPI_DOUBLE, MPI_MAX, communicator_->mpi);
}

double World::sum(double value) const {
  const Activity::Scope scope(*activity_, Activity::RankOperation::sum);
  return reduced(value, MPI_DOUBLE, MPI_SUM, communicator_->mpi);
}

void World::gather(const void* data, int64_t bytes, void* out) const {
  const Activity::Scope scope(*activity_, Activity::RankOperation::gather_on_host);
  const int count = static_cast<int>(bytes);
  complete("MPI_Igather", rank_ == 0 ? bytes * size_ : bytes, [&](MPI_Request* request) {
    return MPI_Igather(data, count, MPI_BYTE, out, count, MPI_BYTE, 0, communicator_->mpi, request);
  });
}

uint64_t World::any(uint64_t bits) const {
  return reduced(bits, MPI_UINT64_T, MPI_BOR, communicator_->mpi);
}

std::vector<std::string> World::gather_texts(const std::string& text) const {
  const auto ranks = static_cast<size_t>(size_);
  std::vector<int64_t> lengths(ranks);
  const auto length = static_cast<int64_t>(text.size());
  gather(&length, sizeof length, lengths.data());
  std::vector<int> counts(ranks), offsets(ranks);
  int64_t total = 0;
  for (size_t i = 0; i < ranks; ++i) {
    BLIPFT_CHECK(rank_ != 0 || total + lengths[i] <= INT_MAX, "texts of more than 2 GiB");
    offsets[i] = static_cast<int>(total), counts[i] = static_cast<int>(lengths[i]);
    total += lengths[i];
  }
  std::string all(rank_ == 0 ? static_cast<size_t>(total) : 0, ' ');
  complete("MPI_Igatherv", rank_ == 0 ? total : length, [&](MPI_Request* request) {
    return MPI_Igatherv(text.data(), static_cast<int>(length), MPI_BYTE, all.data(), counts.data(), offsets.data(),
                        MPI_BYTE, 0, communicator_->mpi, request);
  });
  std::vector<std::string> texts;
  for (size_t i = 0; rank_ == 0 && i < ranks; ++i)
    texts.push_back(all.substr(static_cast<size_t>(offsets[i]), static_cast<size_t>(counts[i])));
  return texts;
}

void World::abort(const std::string& message, int code) const {
  int rank = 0, ranks = 0;                 // in the world of all ranks, even if this is a group
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  std::fprintf(stderr, "\nblipft: rank %d on %s: %s\n", rank, host().c_str(), message.c_str());
  std::fflush(stdout);
  std::fflush(stderr);
  if (ranks > 1) MPI_Abort(MPI_COMM_WORLD, code);
  _exit(code);
}

std::string World::from_rank(int64_t root, std::string text) const {
  auto length = static_cast<int64_t>(text.size());
  broadcast(&length, sizeof length, root);
  text.resize(static_cast<size_t>(length));
  broadcast(text.data(), length, root);
  return text;
}

void World::agree(const std::string& message) const {
  const Activity::Scope scope(*activity_, Activity::RankOperation::agreement);
  const int64_t first = -max(message.empty() ? -size_ : -rank_);
  if (first == size_) return;
  const std::string text = from_rank(first, message);
  if (max(static_cast<int64_t>(message != text)) == 0) throw AgreedError(text);
  const auto others = static_cast<int64_t>(sum(message.empty() ? 0.0 : 1.0)) - 1;
  const std::string more = concat(" (", others, others == 1 ? " other rank fails too)" : " other ranks fail too)");
  const std::string speaker = from_rank(first, concat("rank ", rank_in(MPI_COMM_WORLD), " on ", host()));
  throw AgreedError(concat(speaker, others > 0 ? more : "", ": ", text));
}

}  // namespace blipft
