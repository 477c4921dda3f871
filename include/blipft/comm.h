// Comm: collectives between ranks. Implementations: self for one rank, MPI for CPUs, NCCL (started through MPI) for
// GPUs. Collectives run in groups of ranks: see CommGroups.
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
#include "blipft/version.h"

namespace blipft {

/// An error that all ranks of a world agree on: one rank prints it, all return.
class AgreedError : public UserError {
 public:
  using UserError::UserError;
};

/// Returns the MPI of the build and the loaded one. MPI need not run yet.
LibraryVersion mpi_library();
/// Returns the NCCL of the build and the loaded one; texts are empty where the program has no CUDA.
LibraryVersion nccl_library();

/// A world of ranks, either all ranks of the process' MPI world or a group of them. Its host-side calls serve set-up
/// and messages. All calls except abort() involve only the ranks of this world.
class World {
 public:
  /// Creates the world of all ranks. Starts MPI; the destructor, which must run after those of all groups, ends MPI.
  /// main() creates the only such object. A program that was not started by mpirun has a world of one rank.
  World(int* argc, char*** argv);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  /// Returns the group of the ranks that pass the same `color` (>= 0), ordered by `key` (equal keys in rank order). All
  /// ranks must call it, in the same order as other splits.
  std::unique_ptr<World> split(int64_t color, int64_t key) const;
  int64_t rank() const { return rank_; }
  int64_t size() const { return size_; }
  int64_t local_rank() const { return local_rank_; }   ///< among this world's ranks of this machine
  int64_t local_size() const { return local_size_; }
  /// Returns the number of cores on which these ranks together may run, which mpirun or Slurm may limit.
  int64_t local_cores() const { return local_cores_; }
  int64_t machine() const { return machine_; }         ///< >= 0; equal on two ranks only if they share a machine
  int64_t machine_order() const { return machine_order_; }  ///< this rank's index in the order by machine, then rank
  std::string host() const;
  /// Returns the current activity of this rank, which its groups share. Host collectives and CPU collectives set it.
  Activity& activity() const { return *activity_; }
  void barrier() const;
  /// Copies `bytes` bytes from rank `root` to all ranks.
  void broadcast(void* data, int64_t bytes, int64_t root) const;
  /// Returns the `text` of rank `root` on all ranks.
  std::string from_rank(int64_t root, std::string text) const;
  int64_t max(int64_t value) const;
  double max(double value) const;
  double sum(double value) const;
  /// Gathers `bytes` bytes from each rank into `out` on rank 0, in rank order; `out` may be null on other ranks.
  void gather(const void* data, int64_t bytes, void* out) const;
  /// Returns the bitwise OR of `bits` over all ranks.
  uint64_t any(uint64_t bits) const;
  /// Returns the texts of all ranks in rank order on rank 0, and nothing on the other ranks.
  std::vector<std::string> gather_texts(const std::string& text) const;
  /// Prints `message` from this rank (the first rank that fails wins) and ends all ranks of the process' MPI world with
  /// exit status `code`. Does not return.
  [[noreturn]] void abort(const std::string& message, int code) const;
  /// Makes all ranks fail if one fails: throws AgreedError on every rank if `message` is not empty on any rank. The
  /// error contains the message of the lowest failing rank, after the number and host of that rank unless every rank
  /// has the same message.
  void agree(const std::string& message) const;
  /// Runs `body` on every rank and calls agree() with the message of the exception that it may throw.
  template <class Body>
  void run_agreeing_on_errors(Body body) const {
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

  struct Communicator;                     ///< the MPI communicator; src/comm/communicator.h
  const Communicator& communicator() const { return *communicator_; }

 protected:
  /// Creates the world of the ranks of `communicator`; this rank runs on `machine`. All of these ranks must call it.
  World(std::unique_ptr<Communicator> communicator, int64_t machine, std::shared_ptr<Activity> activity);

 private:
  void find_local_ranks();
  std::shared_ptr<Activity> activity_ = std::make_shared<Activity>();
  std::unique_ptr<Communicator> communicator_;
  int64_t rank_ = 0, size_ = 1, local_rank_ = 0, local_size_ = 1, local_cores_ = 1, machine_ = 0, machine_order_ = 0;
};

/// Tensor collectives over a group of ranks, in a stream. Every rank must call them in the same order.
class Comm {
 public:
  virtual ~Comm() = default;
  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;
  virtual std::string name() const = 0;     ///< "self", "mpi", "nccl 2.28.3"
  /// full[r * shard.numel() ..] = shard of rank r; full has size() * shard.numel() elements. In place if the shard is
  /// already at its position in `full`.
  virtual void all_gather(const Tensor& shard, const Tensor& full, Stream stream) = 0;
  /// shard (+)= sum over ranks of their full[rank() * shard.numel() ..]; mpi sums in rank order and in f32.
  /// `accumulate` requires that reduce_scatter_accumulates() returns true.
  virtual void reduce_scatter(const Tensor& full, const Tensor& shard, Stream stream, bool accumulate = false) = 0;
  virtual bool reduce_scatter_accumulates(const Tensor& full) const {
    (void)full;
    return false;
  }
  /// Replaces `tensor` by its sum over ranks.
  virtual void all_reduce(const Tensor& tensor, Stream stream) = 0;
  /// Lets the group's other ranks address `block` (the start of a device allocation, with the same layout on every
  /// rank) directly, if all ranks are on this machine and their GPUs can access each other. Returns true on success.
  /// All ranks of the group must call it.
  /// `gathers`: all_gather of a shard inside the block then consists of copies by copy engines, which occupy no compute
  /// unit and do not wait for other ranks; shards must have the same offset on all ranks. Collectives must order all
  /// changes of the block before or after such gathers of any rank. In-place gathers do not use these copies.
  /// `reductions`: reduce_scatter and all_reduce of large tensors inside the block are then one kernel on few compute
  /// units, which sums all ranks in rank order, in f32. These calls must use one stream; a tensor may have a different
  /// offset on each rank.
  virtual bool expose(const Tensor& block, bool gathers, bool reductions) {
    (void)block, (void)gathers, (void)reductions;
    return false;
  }
  /// Closes what expose() opened. All ranks must call it, with all work done, before any of them frees its block.
  virtual void withdraw() {}
  /// Return true if expose() succeeded with `gathers`, and with `reductions`.
  virtual bool direct_gathers() const { return false; }
  virtual bool direct_reductions() const { return false; }
  /// Returns an asynchronous error of the communicator, or an empty string. Any thread may call it.
  virtual std::string failure() const { return {}; }
  /// Returns the device bytes that this communicator allocates outside of the arena (an estimate before the start).
  virtual int64_t device_bytes() const = 0;
};

/// The groups in which this rank runs collectives.
struct Groups {
  Groups() = default;
  /// Groups of a run with one rank.
  Groups(Comm* self) : Groups(self, self, self) {  // NOLINT: one rank needs no groups
    BLIPFT_CHECK(self->size() == 1, "groups of one rank, but there are ", self->size());
  }
  Groups(Comm* of_all, Comm* of_shard, Comm* of_replicate) : all(of_all), shard(of_shard), replicate(of_replicate) {}
  Comm* all = nullptr;                     ///< every rank
  Comm* shard = nullptr;                   ///< the ranks over which parameters are sharded
  Comm* replicate = nullptr;               ///< the ranks with this rank's position in each shard group: same shard
  bool hybrid() const { return replicate->size() > 1; }
};

/// The number of ranks of the groups; every rank is in one group of each kind.
struct GroupSizes {
  /// One shard group of all ranks, without replicas.
  GroupSizes(int64_t ranks) : shard(ranks) {}  // NOLINT: a number of ranks is meant so wherever groups are not named
  GroupSizes(int64_t shard_ranks, int64_t replicas) : shard(shard_ranks), replicate(replicas) {}
  int64_t shard, replicate = 1;
  int64_t all() const { return shard * replicate; }
  bool hybrid() const { return replicate > 1; }
};

/// The groups of a run and their communicators. Ranks are ordered by machine, then rank. Each sizes.shard consecutive
/// ranks are a shard group; the ranks with equal positions in the shard groups are a replicate group. Collectives of
/// different groups of a rank must be ordered: in one stream, or by events.
class CommGroups {
 public:
  /// Creates a communicator of the ranks of `world`, which must outlive it; `scalars`: only for few numbers at once.
  using MakeComm = std::function<std::unique_ptr<Comm>(const World& world, bool scalars)>;
  /// All ranks of `world`, whose size is sizes.all(), must call it. A group of one rank gets a self comm.
  CommGroups(const World& world, const GroupSizes& sizes, Device& device, const MakeComm& make);
  Groups groups() const { return {all_.get(), shard_ ? shard_.get() : all_.get(), replicate_.get()}; }
  /// Return the index of this rank's shard group and of its replicate group, from 0.
  int64_t shard_group() const { return shard_group_; }
  int64_t replicate_group() const { return replicate_group_; }
  /// Calls Comm::expose() in the shard group, and for reductions in the replicate group too. Ignores an absent `block`.
  void expose(const Tensor& block, bool gathers, bool reductions);
  void withdraw();
  /// Returns the first failure of a communicator; see Comm::failure().
  std::string failure() const;
  /// Returns the device bytes of all communicators.
  int64_t device_bytes() const;

 private:
  std::unique_ptr<World> shard_world_, replicate_world_;
  std::unique_ptr<Comm> all_, shard_, replicate_;  // shard_: null if it equals all_
  int64_t shard_group_ = 0, replicate_group_ = 0;
};

std::unique_ptr<Comm> make_self_comm(Device& device);
std::unique_ptr<Comm> make_mpi_comm(const World& world);
/// Returns the comm of rank 0 of an imaginary group of `size` ranks, for planning: it moves no data.
std::unique_ptr<Comm> make_plan_comm(int64_t size);
/// Returns the comm of all ranks of `world`, each with its own `device`. Throws UserError in a build without CUDA.
/// `max_ctas`: maximum number of thread blocks of a collective; 0: the default.
std::unique_ptr<Comm> make_nccl_comm(const World& world, Device& device, int64_t max_ctas);

}  // namespace blipft
