// The kernel that sums memory of several GPUs; PeerReduce fills in its arguments.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace blipft {

constexpr int kMaxPeers = 8;

/// Counters of one rank, zero at first. The other ranks write `arrived` and `done`; the kernel of the rank itself the rest.
struct PeerSignals {
  unsigned arrived[kMaxPeers];             ///< the latest call that rank r has reached
  unsigned done[kMaxPeers];                ///< the latest call that rank r has read everything of
  unsigned call;                           ///< calls finished
  unsigned blocks;                         ///< blocks of the current call that are through
};

struct PeerReduceArguments {
  const char* source[kMaxPeers + 1];       ///< of each rank, in rank order; then, optionally, what is accumulated to
  char* target[kMaxPeers];
  PeerSignals* signals[kMaxPeers];
  int rank, ranks, sources, targets;
  int64_t bytes;                           ///< of one source; a multiple of 16, as are all addresses
};

/// Whether the current GPU has what the kernel is made of: bulk copies (compute capability 9) and shared memory enough.
bool peer_reduce_runs_here();

/// Every target = sum of the sources, in their order, in f32 (elements bf16 or f32). Starts when all ranks have called it
/// and ends when all have read; on every rank in the same order and in one stream.
cudaError_t launch_peer_reduce(const PeerReduceArguments& args, bool bf16, int blocks, cudaStream_t stream);

}  // namespace blipft
