// The host side of PeerReduce.
#include "comm/peer_reduce.h"

#include <algorithm>

#include "blipft/error.h"
#include "comm/peer_reduce_kernel.h"
#include "cuda/device/cuda_check.h"

namespace blipft {

namespace {

constexpr int64_t kGrain = 64;             // elements: parts of ranks start at multiples, which bulk copies can read

}  // namespace

struct PeerReduce::Launch {
  Tensor tensor;                           // this rank's tensor
  int64_t first, count;                    // elements of it that this rank sums
  Tensor shard;                            // destination of the sum; absent: the same elements on every rank
  bool accumulate = false;
};

PeerReduce::PeerReduce(const World& world, const PeerMemory& memory, int64_t blocks)
    : memory_(memory), rank_(world.rank()), ranks_(world.size()), blocks_(blocks) {
  BLIPFT_CUDA_CHECK(cudaMalloc(&signals_, sizeof(PeerSignals)));
  BLIPFT_CUDA_CHECK(cudaMemset(signals_, 0, sizeof(PeerSignals)));
  BLIPFT_CUDA_CHECK(cudaDeviceSynchronize());
}

PeerReduce::~PeerReduce() {
  signals_of_ranks_.close();
  (void)cudaFree(signals_);
}

std::unique_ptr<PeerReduce> PeerReduce::make(const World& world, const PeerMemory& memory, int64_t blocks) {
  if (world.size() > kMaxPeers || !memory.any()) return nullptr;
  if (world.max(int64_t{peer_reduce_runs_here() ? 0 : 1}) != 0) return nullptr;
  auto made = std::unique_ptr<PeerReduce>(new PeerReduce(world, memory, blocks));
  if (!made->signals_of_ranks_.open(world, made->signals_, sizeof(PeerSignals))) return nullptr;
  return made;
}

bool PeerReduce::suits(const Tensor& full, int64_t ranks) {
  const bool type = full.dtype == DType::bf16 || full.dtype == DType::f32;
  return type && full.numel() % kGrain == 0 && full.numel() >= kGrain * ranks &&
         reinterpret_cast<uintptr_t>(full.data) % 16 == 0;
}

void PeerReduce::launch(const Launch& what, void* stream) {
  PeerReduceArguments args{};
  for (int64_t r = 0; r < ranks_; ++r) {
    args.block[r] = static_cast<char*>(memory_.block(r));
    args.signals[r] = static_cast<PeerSignals*>(signals_of_ranks_.at(signals_, r));
  }
  args.offset = memory_.offset(what.tensor.data);
  args.part = what.first * dtype_size(what.tensor.dtype);
  args.shard = static_cast<char*>(what.shard.data);
  args.accumulate = what.accumulate;
  args.rank = static_cast<int>(rank_);
  args.ranks = static_cast<int>(ranks_);
  args.bytes = what.count * dtype_size(what.tensor.dtype);
  const int64_t blocks = std::clamp<int64_t>(args.bytes / 4096, 1, blocks_);
  BLIPFT_CUDA_CHECK(launch_peer_reduce(args, what.tensor.dtype == DType::bf16, static_cast<int>(blocks),
                                       static_cast<cudaStream_t>(stream)));
}

void PeerReduce::reduce_scatter(const Tensor& full, const Tensor& shard, bool accumulate, void* stream) {
  BLIPFT_CHECK(memory_.contains(full), "reduce_scatter of memory that the other ranks do not see");
  launch({full, rank_ * shard.numel(), shard.numel(), shard, accumulate}, stream);
}

void PeerReduce::all_reduce(const Tensor& tensor, void* stream) {
  BLIPFT_CHECK(memory_.contains(tensor), "all_reduce of memory that the other ranks do not see");
  const int64_t each = (tensor.numel() / kGrain + ranks_ - 1) / ranks_ * kGrain;
  const int64_t first = std::min(rank_ * each, tensor.numel()), count = std::min(each, tensor.numel() - first);
  launch({tensor, first, count, {}, false}, stream);
}

}  // namespace blipft
