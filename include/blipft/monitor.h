// Monitor: what the driver tells about the device that a rank computes on, from outside of the program's own books:
// utilisation, power, clocks, memory of the process, every kernel.
//
// All of it is optional: a machine without a GPU, without NVML or without CUPTI still trains.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace blipft {

/// What could not be asked is NaN, unknown bytes are 0.
struct DeviceRecord {
  int64_t time_ns = 0;
  double utilization = 0, power_watts = 0, sm_mhz = 0, memory_mhz = 0, temperature_c = 0;
  int64_t memory_bytes = 0;                     ///< used on the device, by everybody
  int64_t host_rss_bytes = 0;
};

/// One kernel, copy or fill on the device.
struct KernelRecord {
  enum Kind : int32_t { kernel, copy, fill };
  int64_t step = 0;
  int64_t begin_ns = 0, end_ns = 0;
  int64_t bytes = 0;                            ///< of copies and fills
  int64_t graph_node = 0;                       ///< node of the captured graph that it belongs to, 0: none
  int32_t kind = kernel;
  int32_t stream = 0;                           ///< the driver's number
  int32_t device = 0;                           ///< number among the GPUs of this process
  std::string name;
};

/// Asks about one device. Needs no current device in the calling thread, and makes none.
class DeviceMonitor {
 public:
  virtual ~DeviceMonitor() = default;
  /// Fills the fields that the driver answers: everything but time_ns and host_rss_bytes. Never fails: what cannot be
  /// asked stays as it is.
  virtual void sample(DeviceRecord& record) const = 0;
  /// Bytes that this process holds on the device, as the driver tells; -1: unknown. For one thread at a time.
  virtual int64_t process_bytes() = 0;
  /// Where process_bytes() has its answer from, for people; empty before the first answer.
  virtual std::string process_bytes_source() const = 0;
};

/// `gpu`: number among the GPUs that this process sees, -1: none. To be called before make_cuda_device(): what others
/// hold on the device is measured here.
std::unique_ptr<DeviceMonitor> make_device_monitor(int gpu);
/// Answers nothing.
std::unique_ptr<DeviceMonitor> make_host_monitor();

/// Versions of what is loaded: cuda_runtime, cuda_driver, driver, cublaslt; empty in a build without CUDA.
std::map<std::string, std::string> cuda_versions();
/// The MPI library's name and version: "Open MPI v4.1.4". After MPI has started.
std::string mpi_version();

/// Records every kernel, copy and fill of this process between start() and stop(). One object at a time.
class KernelTracer {
 public:
  virtual ~KernelTracer() = default;
  /// The device must be idle.
  virtual void start() = 0;
  /// The device must be idle again. Times are ns of the machine's system clock (since 1970), steps are 0.
  virtual std::vector<KernelRecord> stop() = 0;
  /// Records that the latest stop() misses: lost, or without times.
  virtual int64_t lost() const = 0;
};

/// Loads CUPTI. To be called before anything is captured: graphs made earlier may not show their kernels. Throws
/// UserError that says why when kernels cannot be recorded: no CUDA, no GPU, no CUPTI.
std::unique_ptr<KernelTracer> make_kernel_tracer();

/// Resident memory of this process on the host, 0: unknown.
int64_t host_rss_bytes();

}  // namespace blipft
