// The kernel that sums memory of several GPUs. PeerReduce sets its arguments.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace blipft {

constexpr int kMaxPeers = 8;

/// Counters of one rank, initially zero. The other ranks write `offset`, `arrived` and `done`; the kernel of the rank
/// itself writes `call` and `blocks`.
struct PeerSignals {
  int64_t offset[kMaxPeers];               ///< offset of rank r's tensor in its block, in call `arrived[r]`
  unsigned arrived[kMaxPeers];             ///< the latest call that rank r has reached
  unsigned done[kMaxPeers];                ///< the latest call in which rank r has read everything
  unsigned call;                           ///< number of finished calls
  unsigned blocks;                         ///< number of finished thread blocks of the current call
};

struct PeerReduceArguments {
  char* block[kMaxPeers];                  ///< of each rank, as this rank addresses it
  PeerSignals* signals[kMaxPeers];
  int64_t offset;                          ///< of this rank's tensor in its block; signals hold the others' offsets
  int64_t part;                            ///< offset of the part that this rank sums, in every rank's tensor
  char* shard;                             ///< destination of the sum; null: this part on every rank
  bool accumulate;                         ///< true: the shard is the last summand
  int rank, ranks;
  int64_t bytes;                           ///< of a part; a multiple of 16, as are all addresses
  int sources() const { return ranks + (accumulate ? 1 : 0); }
};

/// Returns true if the loaded code contains the kernel (it needs bulk copies of compute capability 9) and the GPU has
/// enough shared memory.
bool peer_reduce_runs_here();

/// Sums one part of the ranks' tensors, in rank order, in f32 (elements bf16 or f32). Starts when all ranks have called
/// it and ends when all have read. Every rank must call it in the same order and in one stream.
cudaError_t launch_peer_reduce(const PeerReduceArguments& args, bool bf16, int blocks, cudaStream_t stream);

}  // namespace blipft
