// RAII owner of page-locked host memory.
#pragma once

#include <cstdint>
#include <utility>

#include "blipft/device.h"
#include "ops/quietly.h"

namespace blipft {

/// Owns memory from Device::allocate_host(). It is movable but not copyable; the device must outlive it.
class HostMemory {
 public:
  HostMemory(Device& device, int64_t bytes) : device_(&device), memory_(device.allocate_host(bytes)) {}
  ~HostMemory() {
    if (memory_) quietly([&] { device_->free_host(memory_); });
  }
  HostMemory(HostMemory&& other) noexcept : device_(other.device_), memory_(std::exchange(other.memory_, nullptr)) {}
  HostMemory& operator=(HostMemory&&) = delete;
  char* get() const { return static_cast<char*>(memory_); }

 private:
  Device* device_;
  void* memory_;
};

}  // namespace blipft
