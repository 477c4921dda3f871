// Comm: collectives between ranks. One rank: self. CPU: MPI. GPU: NCCL, started through MPI.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "blipft/device.h"
#include "blipft/error.h"
#include "blipft/tensor.h"

namespace blipft {

/// An error that every rank of the world has been told of: one rank prints it, all return.
class AgreedError : public UserError {
 public:
  using UserError::UserError;
};

/// The MPI world of this process: host-side calls, for set-up and messages. One object, made by main().
class World {
 public:
  /// Starts MPI; a program that was not started by mpirun is a world of one rank.
  World(int* argc, char*** argv);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  int64_t rank() const { return rank_; }
  int64_t size() const { return size_; }
  int64_t local_rank() const { return local_rank_; }   ///< among the ranks of this machine
  int64_t local_size() const { return local_size_; }
  std::string host() const;
  void barrier() const;
  /// Copies `bytes` from rank `root` to all.
  void broadcast(void* data, int64_t bytes, int64_t root) const;
  int64_t max(int64_t value) const;
  double max(double value) const;
  double sum(double value) const;
  /// Rank 0 gathers `bytes` from each rank, in rank order; `out` may be null on the others.
  void gather(const void* data, int64_t bytes, void* out) const;
  /// Prints `message` from this rank (the first rank that fails wins), ends all ranks with `code`. Does not return.
  [[noreturn]] void abort(const std::string& message, int code) const;
  /// Agreement on an error before anything collective: throws AgreedError on every rank when `message` is not empty on
  /// any; the lowest failing rank's message is the one thrown.
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

 private:
  int64_t rank_ = 0, size_ = 1, local_rank_ = 0, local_size_ = 1;
};

/// Tensor collectives over a group of ranks, in a stream. Same order of calls on every rank.
class Comm {
 public:
  virtual ~Comm() = default;
  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;
  virtual std::string name() const = 0;     ///< "self", "mpi", "nccl 2.28.3"
  /// full[r * shard.numel() ..] = shard of rank r; full has size() * shard.numel() elements.
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
  /// Lets the other ranks address `block` (the start of a device allocation, laid out alike on every rank) directly, if
  /// they are all of this machine and their GPUs reach each other. True when it worked. Called by all ranks.
  /// `gathers`: all_gather of a shard inside the block is then a set of copies by copy engines, which occupy no compute
  /// unit and wait for nobody; shards lie at the same place on all ranks. Whoever changes the block must keep changes
  /// apart from such gathers of any rank by collectives.
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
  /// Device bytes that this communicator holds outside of the arena, for the plan (an estimate before start).
  virtual int64_t device_bytes() const = 0;
};

std::unique_ptr<Comm> make_self_comm(Device& device);
std::unique_ptr<Comm> make_mpi_comm(const World& world);
/// A rank of a world of `size` that is not there: moves nothing, for planning.
std::unique_ptr<Comm> make_plan_comm(int64_t size);
/// All ranks of `world`, each with the GPU behind `device`. Throws UserError in a build without CUDA.
/// `max_ctas`: thread blocks that a collective may occupy, 0: as NCCL likes.
std::unique_ptr<Comm> make_nccl_comm(const World& world, Device& device, int64_t max_ctas);

}  // namespace blipft
