// Comm: collectives between ranks. One rank: self. CPU: MPI. GPU: NCCL, started through MPI. They run in groups of
// ranks: see CommGroups.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "blipft/activity.h"
#include "blipft/device.h"
#include "blipft/error.h"
#include "blipft/tensor.h"

namespace blipft {

/// An error that every rank of a world has been told of: one rank prints it, all return.
class AgreedError : public UserError {
 public:
  using UserError::UserError;
};

/// A world of ranks, all of the process' MPI world or a group of them: host-side calls, for set-up and messages. All
/// calls concern the ranks of this world alone, but abort().
class World {
 public:
  /// All ranks. Starts MPI, and ends it when destroyed, after every group: one object, made by main(). A program that
  /// was not started by mpirun is a world of one rank.
  World(int* argc, char*** argv);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  /// The group of the ranks that give the same `color` (>= 0), in the order of their `key`s (of equal ones in rank
  /// order). Called by all ranks, in the same order as other splits.
  std::unique_ptr<World> split(int64_t color, int64_t key) const;
  int64_t rank() const { return rank_; }
  int64_t size() const { return size_; }
  int64_t local_rank() const { return local_rank_; }   ///< among this world's ranks of this machine
  int64_t local_size() const { return local_size_; }
  /// Cores that these ranks may run on, together: fewer than the machine's where mpirun or Slurm bound them.
  int64_t local_cores() const { return local_cores_; }
  int64_t machine() const { return machine_; }         ///< >= 0; the same on the ranks of one machine alone
  int64_t machine_order() const { return machine_order_; }  ///< this rank's place where the ranks of a machine are neighbours
  std::string host() const;
  /// What this rank is in; groups share it. Host collectives, and tensor collectives of CPUs, tell of themselves.
  Activity& activity() const { return *activity_; }
  void barrier() const;
  /// Copies `bytes` from rank `root` to all.
  void broadcast(void* data, int64_t bytes, int64_t root) const;
  /// The `text` of rank `root`, on all.
  std::string from_rank(int64_t root, std::string text) const;
  int64_t max(int64_t value) const;
  double max(double value) const;
  double sum(double value) const;
  /// Rank 0 gathers `bytes` from each rank, in rank order; `out` may be null on the others.
  void gather(const void* data, int64_t bytes, void* out) const;
  /// The bits that any rank gives.
  uint64_t any(uint64_t bits) const;
  /// Rank 0 gets the text of each rank, in rank order; the others get nothing.
  std::vector<std::string> gather_texts(const std::string& text) const;
  /// Prints `message` from this rank (the first rank that fails wins), ends all ranks of the process' MPI world with
  /// `code`. Does not return.
  [[noreturn]] void abort(const std::string& message, int code) const;
  /// Agreement on an error before anything collective: throws AgreedError on every rank when `message` is not empty on
  /// any; the lowest failing rank's message is the one thrown, behind that rank and its host unless every rank has the
  /// same one.
  void agree(const std::string& message) const;
  /// Runs `body` on every rank and agrees on the error it may throw.
  template <class Body>
  void together(Body body) const {
    std::string message;
    try {
      body();
    } catch (const AgreedError&) {
      throw;
    } catch (const std::exception& error) {
      message = *error.what() ? error.what() : "unknown error";
    }
    agree(message);
  }

  struct Communicator;                     ///< MPI's; src/comm/communicator.h
  const Communicator& communicator() const { return *communicator_; }

 protected:
  /// Of the ranks of `communicator`; this one is on `machine`. Called by all of them.
  World(std::unique_ptr<Communicator> communicator, int64_t machine, std::shared_ptr<Activity> activity);

 private:
  void find_local_ranks();
  std::shared_ptr<Activity> activity_ = std::make_shared<Activity>();
  std::unique_ptr<Communicator> communicator_;
  int64_t rank_ = 0, size_ = 1, local_rank_ = 0, local_size_ = 1, local_cores_ = 1, machine_ = 0, machine_order_ = 0;
};

/// Tensor collectives over a group of ranks, in a stream. Same order of calls on every rank.
class Comm {
 public:
  virtual ~Comm() = default;
  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;
  virtual std::string name() const = 0;     ///< "self", "mpi", "nccl 2.28.3"
  /// full[r * shard.numel() ..] = shard of rank r; full has size() * shard.numel() elements. In place where the shard
  /// lies at its own place of `full`.
  virtual void all_gather(const Tensor& shard, const Tensor& full, Stream stream) = 0;
  /// shard (+)= sum over ranks of their full[rank() * shard.numel() ..]; summed in rank order on mpi, f32 inside.
  /// `accumulate` only where reduce_scatter_accumulates() says so.
  virtual void reduce_scatter(const Tensor& full, const Tensor& shard, Stream stream, bool accumulate = false) = 0;
  virtual bool reduce_scatter_accumulates(const Tensor& full) const {
    (void)full;
    return false;
  }
  /// In place sum over ranks.
  virtual void all_reduce(const Tensor& tensor, Stream stream) = 0;
  /// Lets the group's other ranks address `block` (the start of a device allocation, laid out alike on every rank)
  /// directly, if they are all of this machine and their GPUs reach each other. True when it worked. Called by all
  /// ranks of the group.
  /// `gathers`: all_gather of a shard inside the block is then a set of copies by copy engines, which occupy no compute
  /// unit and wait for nobody; shards lie at the same place on all ranks. Whoever changes the block must keep changes
  /// apart from such gathers of any rank by collectives. Gathers in place are none of them.
  /// `reductions`: reduce_scatter and all_reduce of large tensors inside the block are then one kernel on few compute
  /// units, which sums all ranks in rank order, in f32. These come in one stream;
  /// a tensor may lie elsewhere on each rank.
  virtual bool expose(const Tensor& block, bool gathers, bool reductions) {
    (void)block, (void)gathers, (void)reductions;
    return false;
  }
  /// Closes what expose() opened. Called by all ranks before any of them frees its block, with all work done.
  virtual void withdraw() {}
  /// Whether expose() worked, and for what.
  virtual bool direct_gathers() const { return false; }
  virtual bool direct_reductions() const { return false; }
  /// What has gone wrong behind the program's back, empty: nothing. May be asked on any thread.
  virtual std::string failure() const { return {}; }
  /// Device bytes that this communicator holds outside of the arena, for the plan (an estimate before start).
  virtual int64_t device_bytes() const = 0;
};

/// The groups that collectives run in, as this rank sees them.
struct Groups {
  Groups() = default;
  /// All of one rank.
  Groups(Comm* self) : Groups(self, self, self) {  // NOLINT: one rank needs no groups
    BLIPFT_CHECK(self->size() == 1, "groups of one rank, but there are ", self->size());
  }
  Groups(Comm* of_all, Comm* of_shard, Comm* of_replicate) : all(of_all), shard(of_shard), replicate(of_replicate) {}
  Comm* all = nullptr;                     ///< every rank
  Comm* shard = nullptr;                   ///< the ranks over which parameters are cut
  Comm* replicate = nullptr;               ///< those at the same place of each shard group: they hold the same shard
  bool hybrid() const { return replicate->size() > 1; }
};

/// How many ranks the groups have; every rank is in one of each kind.
struct GroupSizes {
  /// One shard group of all ranks, and nothing replicated.
  GroupSizes(int64_t ranks) : shard(ranks) {}  // NOLINT: a number of ranks is meant so wherever groups are not named
  GroupSizes(int64_t shard_ranks, int64_t replicas) : shard(shard_ranks), replicate(replicas) {}
  int64_t shard, replicate = 1;
  int64_t all() const { return shard * replicate; }
  bool hybrid() const { return replicate > 1; }
};

/// The groups of a run and their communicators. Ranks are taken in order, those of a machine one after the other, and
/// each sizes.shard of them are a shard group; the ranks at equal places of the shard groups are a replicate group.
/// Collectives of different groups of a rank must be ordered: in one stream, or by events.
class CommGroups {
 public:
  /// A communicator of the ranks of `world`, which outlives it; `scalars`: for a few numbers at a time.
  using MakeComm = std::function<std::unique_ptr<Comm>(const World& world, bool scalars)>;
  /// Called by all ranks of `world`, whose size is sizes.all(). A group of one rank gets a self comm.
  CommGroups(const World& world, const GroupSizes& sizes, Device& device, const MakeComm& make);
  Groups groups() const { return {all_.get(), shard_ ? shard_.get() : all_.get(), replicate_.get()}; }
  /// Which group of its kind this rank is in, from 0.
  int64_t shard_group() const { return shard_group_; }
  int64_t replicate_group() const { return replicate_group_; }
  /// Comm::expose() in the shard group, and reductions also in the replicate group. Nothing if `block` is absent.
  void expose(const Tensor& block, bool gathers, bool reductions);
  void withdraw();
  /// The first failure of a communicator; see Comm::failure().
  std::string failure() const;
  /// Device bytes of all communicators.
  int64_t device_bytes() const;

 private:
  std::unique_ptr<World> shard_world_, replicate_world_;
  std::unique_ptr<Comm> all_, shard_, replicate_;  // shard_: null where it is all_
  int64_t shard_group_ = 0, replicate_group_ = 0;
};

std::unique_ptr<Comm> make_self_comm(Device& device);
std::unique_ptr<Comm> make_mpi_comm(const World& world);
/// Rank 0 of a group of `size` that is not there: moves nothing, for planning.
std::unique_ptr<Comm> make_plan_comm(int64_t size);
/// All ranks of `world`, each with the GPU behind `device`. Throws UserError in a build without CUDA.
/// `max_ctas`: thread blocks that a collective may occupy, 0: as NCCL likes.
std::unique_ptr<Comm> make_nccl_comm(const World& world, Device& device, int64_t max_ctas);

}  // namespace blipft
