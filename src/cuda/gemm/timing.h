// What GemmPlanner times candidates with: buffers filled with random numbers and a stream of its own; and the lock that
// lets one process at a time search.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "cuda/device/cuda_check.h"
#include "cuda/gemm/planner.h"

namespace blipft {

/// Device memory for one timing; freed when it ends.
class TimingMemory {
 public:
  TimingMemory() = default;
  explicit TimingMemory(void* memory) : memory_(memory) {}
  TimingMemory(TimingMemory&& other) noexcept : memory_(std::exchange(other.memory_, nullptr)) {}
  TimingMemory& operator=(TimingMemory&& other) noexcept {
    std::swap(memory_, other.memory_);
    return *this;
  }
  ~TimingMemory() { (void)cudaFree(memory_); }
  char* get() const { return static_cast<char*>(memory_); }

 private:
  void* memory_ = nullptr;
};

struct GemmPlanner::TimingBuffers {
  TimingMemory memory;
  std::vector<GemmBuffers> sets;  ///< together larger than the L2 cache, where memory allows
  void* workspace = nullptr;
  /// Nothing when the device has too little free memory.
  static std::optional<TimingBuffers> allocate(const GemmProblem& problem);
};

struct GemmPlanner::Timing {
  cudaStream_t stream = nullptr;
  Timing();
  ~Timing();
  Timing(const Timing&) = delete;
  Timing& operator=(const Timing&) = delete;
};

/// The cache file's lock between processes, held from construction to destruction. Where the file system has no
/// locks, or another process holds it for a minute, work goes on without it: then ranks may choose for themselves, and
/// differ in their last bits.
class CacheLock {
 public:
  explicit CacheLock(const std::string& cache_path);
  ~CacheLock();
  CacheLock(const CacheLock&) = delete;
  CacheLock& operator=(const CacheLock&) = delete;

 private:
  int file_ = -1;
};

}  // namespace blipft
