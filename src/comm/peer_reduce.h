// PeerReduce: sums over the ranks of one machine by a kernel that reads the other GPUs' memory.
//
// In contrast to a ring it sends each byte once, adds the values of all ranks in f32 with one rounding, and occupies
// few multiprocessors: bulk copies (TMA) bring pieces of the ranks' tensors into shared memory, a few stages ahead.
// Ranks synchronize twice in each call, through counters in each other's memory: before the first read (all ranks have
// written their values and published their offsets) and after the last read (all ranks may write again).
#pragma once

#include <cstdint>
#include <memory>

#include "blipft/comm.h"
#include "comm/peer_memory.h"

namespace blipft {

class PeerReduce {
 public:
  /// Collective. Returns null if the ranks cannot address each other's GPUs or a GPU lacks bulk copies. `memory` must
  /// outlive the object and contain every tensor that is reduced. `blocks`: number of multiprocessors that a call uses.
  static std::unique_ptr<PeerReduce> make(const World& world, const PeerMemory& memory, int64_t blocks);
  ~PeerReduce();
  PeerReduce(const PeerReduce&) = delete;
  PeerReduce& operator=(const PeerReduce&) = delete;

  /// Unmaps the other ranks' counters. This rank's counters stay until the destructor, which must run only after all
  /// ranks have called close().
  void close() { signals_of_ranks_.close(); }

  /// Returns true if the kernel can reduce `full`: f32 or bf16, with a size and alignment that bulk copies can move.
  static bool suits(const Tensor& full, int64_t ranks);
  /// shard (+)= sum over ranks, in rank order, of their full[rank * shard.numel() ..]. `stream`: a cudaStream_t. All
  /// calls of this object must use one stream, in the same order on every rank.
  void reduce_scatter(const Tensor& full, const Tensor& shard, bool accumulate, void* stream);
  /// In place: each rank sums one part and writes the sum to all ranks.
  void all_reduce(const Tensor& tensor, void* stream);

 private:
  PeerReduce(const World& world, const PeerMemory& memory, int64_t blocks);
  struct Launch;
  void launch(const Launch& what, void* stream);

  const PeerMemory& memory_;
  PeerMemory signals_of_ranks_;
  void* signals_ = nullptr;                // this rank's counters, PeerSignals
  int64_t rank_, ranks_, blocks_;
};

}  // namespace blipft
