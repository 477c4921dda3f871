// What GemmPlanner times candidates with: buffers filled with random numbers, a stream and two events of its own.
#pragma once

#include <optional>
#include <utility>

#include "cuda/cuda_check.h"
#include "cuda/gemm_planner.h"

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
  GemmBuffers views;
  void* workspace = nullptr;
  /// Nothing when the device has too little free memory.
  static std::optional<TimingBuffers> allocate(const GemmProblem& problem);
};

struct GemmPlanner::Timing {
  cudaStream_t stream = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;
  Timing();
  ~Timing();
  Timing(const Timing&) = delete;
  Timing& operator=(const Timing&) = delete;
};

}  // namespace blipft
