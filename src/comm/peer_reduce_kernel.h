// The kernel that sums memory of several GPUs; PeerReduce fills in its arguments.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace blipft {

constexpr int kMaxPeers = 8;

/// Counters of one rank, zero at first. The other ranks write `offset`, `arrived` and `done`; the kernel of the rank
/// itself the rest.
struct PeerSignals {
  int64_t offset[kMaxPeers];               ///< where rank r's tensor of that call begins in its block
  unsigned arrived[kMaxPeers];             ///< the latest call that rank r has reached
  unsigned done[kMaxPeers];                ///< the latest call that rank r has read everything of
  unsigned call;                           ///< calls finished
  unsigned blocks;                         ///< blocks of the current call that are through
};

struct PeerReduceArguments {
  char* block[kMaxPeers];                  ///< of each rank, as this rank addresses it
  PeerSignals* signals[kMaxPeers];
  int64_t offset;                          ///< of this rank's tensor in its block; the others tell theirs
  int64_t part;                            ///< offset of the part that this rank sums, in every rank's tensor
  char* shard;                             ///< where the sum goes; null: to this part on every rank
  bool accumulate;                         ///< the shard is the last summand
  int rank, ranks;
  int64_t bytes;                           ///< of a part; a multiple of 16, as are all addresses
  int sources() const { return ranks + (accumulate ? 1 : 0); }
};

/// Whether the kernel is in the code that the current GPU runs (it takes bulk copies, of compute capability 9), and the
/// GPU has shared memory enough.
bool peer_reduce_runs_here();

/// Sum of one part of the ranks' tensors, in rank order, in f32 (elements bf16 or f32). Starts when all ranks have
/// called it and ends when all have read; on every rank in the same order and in one stream.
cudaError_t launch_peer_reduce(const PeerReduceArguments& args, bool bf16, int blocks, cudaStream_t stream);

}  // namespace blipft
