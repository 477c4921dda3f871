// PeerReduce: sums over the ranks of one machine by a kernel that reads the other GPUs' memory.
//
// Against a ring it sends each byte once, adds all ranks' numbers in f32 and rounds once, and keeps few multiprocessors
// busy: bulk copies (the tensor memory accelerator's) bring the ranks' pieces into shared memory, a few stages ahead.
// Ranks meet twice in each call, through counters in each other's memory: before the first read (everybody's numbers
// are there, and everybody has told where) and after the last (everybody may write there again).
#pragma once

#include <cstdint>
#include <memory>

#include "blipft/comm.h"
#include "comm/peer_memory.h"

namespace blipft {

class PeerReduce {
 public:
  /// Collective. Null when the ranks cannot address each other's GPUs or a GPU lacks bulk copies. `memory` is kept and
  /// must hold every tensor that is reduced. `blocks`: multiprocessors that a call occupies.
  static std::unique_ptr<PeerReduce> make(const World& world, const PeerMemory& memory, int64_t blocks);
  ~PeerReduce();
  PeerReduce(const PeerReduce&) = delete;
  PeerReduce& operator=(const PeerReduce&) = delete;

  /// Gives the other ranks' memory up; their counters stay until the object ends,
  /// which is after all ranks have come here.
  void close() { signals_of_ranks_.close(); }

  /// Whether the kernel can do it: f32 or bf16, pieces that bulk copies can move.
  static bool suits(const Tensor& full, int64_t ranks);
  /// shard (+)= sum over ranks, in rank order, of their full[rank * shard.numel() ..]. `stream`: a cudaStream_t; all
  /// calls of this object come in one stream, in the same order on every rank.
  void reduce_scatter(const Tensor& full, const Tensor& shard, bool accumulate, void* stream);
  /// In place: each rank sums one part and writes it to everybody.
  void all_reduce(const Tensor& tensor, void* stream);

 private:
  PeerReduce(const World& world, const PeerMemory& memory, int64_t blocks);
  struct Launch;
  void launch(const Launch& what, void* stream);

  const PeerMemory& memory_;
  PeerMemory signals_of_ranks_;
  void* signals_ = nullptr;                // this rank's
  int64_t rank_, ranks_, blocks_;
};

}  // namespace blipft
