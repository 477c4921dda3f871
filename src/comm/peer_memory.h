// PeerMemory: one allocation of every rank of this machine, directly addressable.
#pragma once

#include <cstdint>
#include <vector>

#include "blipft/comm.h"

namespace blipft {

class PeerMemory {
 public:
  PeerMemory() = default;
  ~PeerMemory() { close(); }
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  /// Collective: each rank passes the start of a device allocation; all of them must have one size and layout. Returns
  /// false, and maps nothing, if a rank cannot open another's memory.
  bool open(const World& world, void* block, int64_t bytes);
  void close();
  bool any() const { return bytes_ > 0; }
  bool contains(const Tensor& tensor) const {
    const char* data = static_cast<const char*>(tensor.data);
    return data >= base_ && data + tensor.bytes() <= base_ + bytes_;
  }
  /// Return the start of the block of rank `r`, and the offset of the address `mine` in this rank's block.
  void* block(int64_t r) const { return addresses_[static_cast<size_t>(r)]; }
  int64_t offset(const void* mine) const { return static_cast<const char*>(mine) - base_; }
  /// Returns the address in the block of rank `r` at the offset of `mine`, an address in this rank's block.
  void* at(const void* mine, int64_t r) const { return static_cast<char*>(block(r)) + offset(mine); }

 private:
  std::vector<void*> addresses_;           // by rank, this rank's own included
  std::vector<bool> opened_;
  char* base_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace blipft
