// Device: memory, streams, events and step capture of the machine that a rank computes on.
//
// Two implementations: cpu (every call completes before it returns; streams are names only) and cuda.
// The handles here are plain values; the Device owns what they stand for.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace blipft {

/// The host clock that trace times are told by: ns of Unix time. All ranks of a machine share it; machines are as close
/// as their NTP keeps them.
inline int64_t unix_ns() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

enum class DeviceKind { cpu, cuda, plan };

/// Where memory is: the device's own, or the host's, page-locked, which the device reads and writes over its link.
enum class Place { device, host };

/// A queue of work on a device. Not an owner.
struct Stream {
  void* handle = nullptr;
};

/// A point in a stream. Made by Device::create_event, owned by the device until it ends.
struct Event {
  void* handle = nullptr;
};

struct MemoryInfo {
  int64_t total = 0;       ///< bytes of the device's memory
  int64_t free = 0;        ///< bytes nobody uses, as the driver reports
  int64_t process = 0;     ///< bytes that this Device has allocated (allocate() minus free())
};

/// A captured piece of work that can be run again. On cpu it calls the captured function.
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
  /// The vendor's name, for people: "NVIDIA H200", "CPU, 8 threads".
  virtual std::string name() const = 0;
  /// Which of the program's code it runs, for people: "sm_90a code (wgmma)"; empty where there is but one.
  virtual std::string code() const { return ""; }

  /// Device memory, 256-byte aligned, content undefined. Throws Error naming the bytes asked for and free.
  virtual void* allocate(int64_t bytes) = 0;
  virtual void free(void* memory) = 0;
  /// Host memory that the device copies from at full speed, and that its kernels read and write at the same address
  /// (page-locked and mapped on cuda).
  virtual void* allocate_host(int64_t bytes) = 0;
  virtual void free_host(void* memory) = 0;
  virtual MemoryInfo memory() const = 0;

  virtual Stream compute_stream() const = 0;
  virtual Stream comm_stream() const = 0;   ///< collectives; higher priority than compute
  virtual Stream copy_stream() const = 0;   ///< host-device copies
  /// Work beside the compute stream's, of lower priority: what it leaves idle is used.
  virtual Stream side_stream() const { return compute_stream(); }
  /// Updates of parameters whose gradients are final, beside the rest of backward.
  virtual Stream update_stream() const { return compute_stream(); }
  /// Copies between devices, which need no compute unit and run beside collectives.
  virtual Stream gather_stream() const { return comm_stream(); }
  /// Tensors that backward needs again, on their way to the host and back.
  virtual Stream offload_stream() const { return copy_stream(); }
  /// Readings of the clock that tell of other streams' work, which does not wait for them.
  virtual Stream stamp_stream() const { return gather_stream(); }
  /// Readings of the clock that wait for no other work.
  virtual Stream clock_stream() const { return compute_stream(); }

  virtual Event create_event() = 0;
  virtual void record(Event event, Stream stream) = 0;
  virtual void wait(Stream stream, Event event) = 0;
  virtual bool reached(Event event) = 0;          ///< does not block
  virtual void synchronize(Event event) = 0;      ///< the host waits
  virtual void synchronize(Stream stream) = 0;    ///< the host waits
  virtual void synchronize() = 0;                 ///< the host waits for everything

  /// Copies between any two of host and device memory, ordered in `stream`.
  virtual void copy(void* destination, const void* source, int64_t bytes, Stream stream) = 0;
  /// Device memory, or host memory of allocate_host().
  virtual void zero(void* memory, int64_t bytes, Stream stream) = 0;
  /// Stores the device's clock, in ns, into `slot` (device memory) when `stream` reaches this point.
  virtual void timestamp(int64_t* slot, Stream stream) = 0;

  /// Runs `body`, which enqueues work that starts and ends in `stream` (other streams fork from and join it
  /// through events), and returns it as a Graph. On cuda the work is captured, not executed.
  virtual std::unique_ptr<Graph> capture(Stream stream, const std::function<void()>& body) = 0;

  /// Makes this device the calling thread's current one. Every thread that enqueues work calls it once.
  virtual void bind_thread() const = 0;
};

/// The CPU device; `threads` 0 takes OMP's default.
std::unique_ptr<Device> make_cpu_device(int threads);
/// GPU number `index` of this machine. Throws UserError in a build without CUDA, on a machine without that GPU, and
/// where the program has no code for it.
std::unique_ptr<Device> make_cuda_device(int index);
/// The errors of make_cuda_device that are the user's, without starting anything on the GPU.
void check_cuda_device(int index);
/// Number of GPUs this process sees; 0 in a build without CUDA.
int cuda_device_count();
/// Ranks take the GPUs of their machine in turn, rather than one each: NCCL_MULTI_RANK_GPU_ENABLE=1, by which NCCL (2.30 and
/// newer) allows it too. To try several ranks where one GPU is: each still moves and computes everything.
bool ranks_share_gpus();
/// The GPU of the `local_rank`-th rank of a machine; with more ranks than GPUs that do not share them, one that is not there.
int cuda_device_of(int64_t local_rank);
/// A device that only hands out addresses: nothing behind them may be read. For planning.
std::unique_ptr<Device> make_plan_device();

}  // namespace blipft
