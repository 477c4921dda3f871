// Resources for timing candidates of GemmPlanner (buffers with random numbers, a stream), and the lock that allows only
// one process at a time to search.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "cuda/device/cuda_check.h"
#include "cuda/gemm/planner.h"

namespace blipft {

/// Owns device memory for one timing.
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
  std::vector<GemmBuffers> sets;  ///< together larger than the L2 cache, if memory suffices
  void* workspace = nullptr;
  /// Returns nothing if the device has too little free memory.
  static std::optional<TimingBuffers> allocate(const GemmProblem& problem);
};

struct GemmPlanner::Timing {
  cudaStream_t stream = nullptr;
  Timing();
  ~Timing();
  Timing(const Timing&) = delete;
  Timing& operator=(const Timing&) = delete;
};

/// Lock of the cache file between processes, held from construction to destruction. If the file system has no locks, or
/// another process holds the lock for a minute, the process continues without it: ranks may then choose differently,
/// and their results may differ in the last bits.
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
