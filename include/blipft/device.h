// Device: memory, streams, events and graph capture of the processor that a rank computes on.
//
// It has two implementations: cpu (every call completes before it returns; streams are only names) and cuda.
// The handles in this file are plain values; the Device owns the objects behind them.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace blipft {

/// The host clock of trace times: ns of Unix time. All ranks of a machine share it; between machines it is as accurate
/// as their NTP synchronization.
inline int64_t unix_ns() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

enum class DeviceKind { cpu, cuda, plan };

/// Location of memory: the device's own memory, or page-locked host memory, which the device accesses over its link.
enum class MemorySpace { device, host };

/// A queue of work on a device (non-owning).
struct Stream {
  void* handle = nullptr;
};

/// A point in a stream. It is created by Device::create_event and owned by the device until the device is destroyed.
struct Event {
  void* handle = nullptr;
};

struct MemoryInfo {
  int64_t total = 0;       ///< bytes of the device's memory
  int64_t free = 0;        ///< unused bytes, as the driver reports
  int64_t process = 0;     ///< bytes that this Device has allocated (allocate() minus free())
};

/// Captured work that can be run repeatedly. On cpu it calls the captured function.
class Graph {
 public:
  virtual ~Graph() = default;
  virtual void launch(Stream stream) = 0;
  /// Number of nodes (kernels, copies, events); 0 on cpu.
  virtual int64_t nodes() const = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;
  /// The vendor's name, for messages: "NVIDIA H200", "CPU, 8 threads".
  virtual std::string name() const = 0;
  /// The compiled code that this device runs, for messages: "sm_90a code (wgmma)"; empty if there is only one.
  virtual std::string code() const { return ""; }

  /// Returns device memory, 256-byte aligned, uninitialized. Throws Error that reports the requested and the free
  /// bytes.
  virtual void* allocate(int64_t bytes) = 0;
  virtual void free(void* memory) = 0;
  /// Returns page-locked host memory: the device copies from it at full speed, and on cuda it is mapped, so that
  /// kernels access it at the same address.
  virtual void* allocate_host(int64_t bytes) = 0;
  virtual void free_host(void* memory) = 0;
  virtual MemoryInfo memory() const = 0;

  virtual Stream compute_stream() const = 0;
  virtual Stream comm_stream() const = 0;   ///< collectives; higher priority than compute
  virtual Stream copy_stream() const = 0;   ///< host-device copies
  /// Work that runs concurrently with the compute stream at lower priority.
  virtual Stream side_stream() const { return compute_stream(); }
  /// Updates of parameters whose gradients are final, concurrent with the rest of backward.
  virtual Stream update_stream() const { return compute_stream(); }
  /// Copies between devices; they need no multiprocessor and run concurrently with collectives.
  virtual Stream gather_stream() const { return comm_stream(); }
  /// Copies of activations to the host in forward and back in backward.
  virtual Stream offload_stream() const { return copy_stream(); }
  /// Timestamps of other streams' work; they do not delay that work.
  virtual Stream stamp_stream() const { return gather_stream(); }
  /// Timestamps that do not wait for other work.
  virtual Stream clock_stream() const { return compute_stream(); }

  virtual Event create_event() = 0;
  virtual void record(Event event, Stream stream) = 0;
  virtual void wait(Stream stream, Event event) = 0;
  virtual bool reached(Event event) = 0;          ///< does not block
  virtual void synchronize(Event event) = 0;      ///< blocks the host
  virtual void synchronize(Stream stream) = 0;    ///< blocks the host
  virtual void synchronize() = 0;                 ///< blocks the host until all streams are idle

  /// Copies between device and host memory in either direction or within one of them, in the order of `stream`.
  virtual void copy(void* destination, const void* source, int64_t bytes, Stream stream) = 0;
  /// `memory` is device memory or allocate_host() memory.
  virtual void zero(void* memory, int64_t bytes, Stream stream) = 0;
  /// Stores the device clock, in ns, into `slot` (device memory) when `stream` reaches this point.
  virtual void timestamp(int64_t* slot, Stream stream) = 0;

  /// Runs `body`, which enqueues work that starts and ends in `stream` (other streams fork from and join it through
  /// events), and returns this work as a Graph. On cuda the work is captured, not executed.
  virtual std::unique_ptr<Graph> capture(Stream stream, const std::function<void()>& body) = 0;

  /// Makes this device the calling thread's current device. Every thread that enqueues work calls it once.
  virtual void bind_thread() const = 0;
};

/// Returns the CPU device; `threads` = 0 uses the default of OpenMP.
std::unique_ptr<Device> make_cpu_device(int threads);
/// Returns GPU number `index` of this machine. Throws UserError if the build has no CUDA, if the GPU does not exist, or
/// if the program contains no code for it.
std::unique_ptr<Device> make_cuda_device(int index);
/// Throws the UserErrors of make_cuda_device without starting anything on the GPU.
void check_cuda_device(int index);
/// Returns the number of GPUs that this process sees; 0 in a build without CUDA.
int cuda_device_count();
/// True if NCCL_MULTI_RANK_GPU_ENABLE=1: ranks then use the GPUs of their machine in turn, several ranks may share a
/// GPU, and NCCL 2.30 or newer allows it. This is for tests of several ranks on one GPU.
bool ranks_share_gpus();
/// Returns the GPU index of a machine's `local_rank`-th rank; it may exceed the number of GPUs unless ranks share them.
int cuda_device_of(int64_t local_rank);
/// Returns a device for planning: it only returns addresses, and no memory behind them may be accessed.
std::unique_ptr<Device> make_plan_device();

}  // namespace blipft
