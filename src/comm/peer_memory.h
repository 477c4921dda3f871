// PeerMemory: the same allocation of every rank of this machine, addressed directly.
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

  /// Collective: each rank brings the start of a device allocation, all of them laid out alike. False, and nothing
  /// kept, when a rank cannot open another's memory.
  bool open(const World& world, void* block, int64_t bytes);
  void close();
  bool any() const { return bytes_ > 0; }
  bool contains(const Tensor& tensor) const {
    const char* data = static_cast<const char*>(tensor.data);
    return data >= base_ && data + tensor.bytes() <= base_ + bytes_;
  }
  /// Where the block of rank `r` begins, and how far behind its begin `mine`, an address in this rank's block, lies.
  void* block(int64_t r) const { return addresses_[static_cast<size_t>(r)]; }
  int64_t offset(const void* mine) const { return static_cast<const char*>(mine) - base_; }
  /// The place of `mine`, an address in this rank's block, in the block of rank `r`.
  void* at(const void* mine, int64_t r) const { return static_cast<char*>(block(r)) + offset(mine); }

 private:
  std::vector<void*> addresses_;           // by rank; this rank's own among them
  std::vector<bool> opened_;
  char* base_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace blipft
