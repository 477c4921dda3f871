// Maps memory of the other ranks' GPUs through CUDA's inter-process handles.
#include "comm/peer_memory.h"

#include <cuda_runtime_api.h>

namespace blipft {

bool PeerMemory::open(const World& world, void* block, int64_t bytes) {
  close();
  cudaIpcMemHandle_t mine{};
  const int64_t maximum = world.max(bytes), minimum = -world.max(-bytes);  // every rank calls max() twice
  const bool alike = maximum == bytes && minimum == bytes;
  bool works = alike && world.local_size() == world.size() && cudaIpcGetMemHandle(&mine, block) == cudaSuccess;
  std::vector<cudaIpcMemHandle_t> handles(static_cast<size_t>(world.size()));
  world.gather(&mine, sizeof mine, handles.data());
  world.broadcast(handles.data(), static_cast<int64_t>(handles.size() * sizeof mine), 0);
  works = world.max(int64_t{works ? 0 : 1}) == 0;
  addresses_.assign(handles.size(), nullptr);
  opened_.assign(handles.size(), false);
  for (size_t r = 0; works && r < handles.size(); ++r) {
    if (static_cast<int64_t>(r) == world.rank()) {
      addresses_[r] = block;
      continue;
    }
    works = cudaIpcOpenMemHandle(&addresses_[r], handles[r], cudaIpcMemLazyEnablePeerAccess) == cudaSuccess;
    opened_[r] = works;
  }
  (void)cudaGetLastError();                // clears the error: a failure to open is reported by the return value
  works = world.max(int64_t{works ? 0 : 1}) == 0;
  if (!works) {
    close();
    return false;
  }
  bytes_ = bytes;
  base_ = static_cast<char*>(block);
  return true;
}

void PeerMemory::close() {
  for (size_t r = 0; r < addresses_.size(); ++r)
    if (opened_[r]) (void)cudaIpcCloseMemHandle(addresses_[r]);
  addresses_.clear();
  opened_.clear();
  base_ = nullptr;
  bytes_ = 0;
}

}  // namespace blipft
