// Monitor: measurements by the driver of the device that a rank computes on, independent of the program's own
// accounting: utilization, power, clocks, memory of the process, every kernel.
//
// All of it is optional: training also works without a GPU, NVML or CUPTI.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace blipft {

/// Values that could not be read are NaN; unknown byte counts are 0.
struct DeviceRecord {
  int64_t time_ns = 0;
  double utilization = 0, power_watts = 0, sm_mhz = 0, memory_mhz = 0, temperature_c = 0;
  int64_t memory_bytes = 0;                     ///< used on the device, by all processes
  int64_t host_rss_bytes = 0;
  double gpu_joules = 0, cpu_joules = 0;        ///< counters of energy; cpu: all CPU packages of the machine
};

/// One kernel, copy or fill on the device.
struct KernelRecord {
  enum Kind : int32_t { kernel, copy, fill };
  int64_t step = 0;
  int64_t begin_ns = 0, end_ns = 0;
  int64_t bytes = 0;                            ///< of copies and fills
  int64_t graph_node = 0;                       ///< node of the captured graph that launched it; 0: none
  int32_t kind = kernel;
  int32_t stream = 0;                           ///< the driver's stream number
  int32_t device = 0;                           ///< index among the GPUs of this process
  std::string name;
};

/// Queries one device. It neither needs nor creates a current device in the calling thread.
class DeviceMonitor {
 public:
  virtual ~DeviceMonitor() = default;
  /// Fills the fields that the driver provides: all but time_ns, host_rss_bytes and cpu_joules. It never fails: fields that cannot
  /// be read do not change.
  virtual void sample(DeviceRecord& record) const = 0;
  /// Returns the bytes that this process uses on the device, as the driver reports; -1: unknown. Not thread-safe.
  virtual int64_t process_bytes() = 0;
  /// The source of process_bytes(), for messages; empty before its first call.
  virtual std::string process_bytes_source() const = 0;
};

/// `gpu`: index among the GPUs that this process sees, -1: none. Call it before make_cuda_device(): it measures the
/// memory that other processes use on the device.
std::unique_ptr<DeviceMonitor> make_device_monitor(int gpu);
/// Returns a monitor that fills nothing.
std::unique_ptr<DeviceMonitor> make_host_monitor();

/// Returns the versions of the loaded cuda_runtime, cuda_driver, driver and cublaslt, and cuda_architectures, those that the
/// program was built for ("80 90a"); empty in a build without CUDA.
std::map<std::string, std::string> cuda_versions();
/// Returns the MPI library's name and version, "Open MPI v4.1.4".
std::string mpi_version();

/// Records every kernel, copy and memset of this process between start() and stop(). Only one object may exist at a
/// time.
class KernelTracer {
 public:
  virtual ~KernelTracer() = default;
  /// The device must be idle.
  virtual void start() = 0;
  /// The device must be idle again. Times are ns of the machine's system clock (since 1970); steps are 0.
  virtual std::vector<KernelRecord> stop() = 0;
  /// Returns the number of records that the latest stop() lacks: lost, or without times.
  virtual int64_t lost() const = 0;
};

/// Loads CUPTI. Call it before any capture: graphs that were captured earlier may not report their kernels. Throws
/// UserError with the reason if kernels cannot be recorded: no CUDA, no GPU, no CUPTI.
std::unique_ptr<KernelTracer> make_kernel_tracer();

/// Returns the resident host memory of this process in bytes; 0: unknown.
int64_t host_rss_bytes();

}  // namespace blipft
