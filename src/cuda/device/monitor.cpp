// Monitor of a GPU: uses NVML if available, else CUDA's memory information.
#include "blipft/monitor.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "blipft/error.h"
#include "cuda/device/loaded_code.h"
#include "cuda/device/nvml.h"

namespace blipft {

namespace {

class GpuMonitor final : public DeviceMonitor {
 public:
  GpuMonitor(int gpu, const std::string& bus_id) : gpu_(gpu), nvml_(Nvml::open(bus_id)) {
    if (nvml_) nvml_->memory_used(used_before_);
  }

  void sample(DeviceRecord& record) const override {
    if (!nvml_) return;
    nvml_->utilization(record.utilization);
    nvml_->power(record.power_watts);
    nvml_->energy(record.gpu_joules);
    nvml_->clocks(record.sm_mhz, record.memory_mhz);
    nvml_->temperature(record.temperature_c);
    nvml_->memory_used(record.memory_bytes);
  }

  // The first source that answers is kept, so that all values of a run have the same meaning.
  int64_t process_bytes() override {
    int64_t bytes = -1;
    if (way_ == Way::none || way_ == Way::process) {
      if (nvml_ && nvml_->process_memory(bytes)) return way_ = Way::process, bytes;
      if (way_ == Way::process) return -1;
    }
    if (way_ == Way::none || way_ == Way::device) {
      if (nvml_ && nvml_->memory_used(bytes)) return way_ = Way::device, bytes - used_before_;
      if (way_ == Way::device) return -1;
    }
    int current = -1;
    size_t free_bytes = 0, total = 0;
    // Only in a thread whose current device this is: no context is created for a measurement.
    if (cudaGetDevice(&current) != cudaSuccess || current != gpu_ ||
        cudaMemGetInfo(&free_bytes, &total) != cudaSuccess) {
      (void)cudaGetLastError();
      return -1;
    }
    way_ = Way::cuda;
    return static_cast<int64_t>(total - free_bytes);
  }

  std::string process_bytes_source() const override {
    switch (way_) {
      case Way::process: return "NVML, this process";
      case Way::device: return "NVML, the device's use beyond that before the run";
      case Way::cuda: return "CUDA, all use of the device";
      case Way::none: break;
    }
    return "";
  }

 private:
  enum class Way { none, process, device, cuda };
  int gpu_;
  std::unique_ptr<Nvml> nvml_;
  int64_t used_before_ = 0;
  Way way_ = Way::none;
};

std::string bus_id_of(int gpu) {
  char text[32] = "";
  if (cudaDeviceGetPCIBusId(text, sizeof text, gpu) == cudaSuccess) return text;
  (void)cudaGetLastError();
  return "";
}

}  // namespace

std::unique_ptr<DeviceMonitor> make_device_monitor(int gpu) {
  if (gpu < 0) return make_host_monitor();
  return std::make_unique<GpuMonitor>(gpu, bus_id_of(gpu));
}

std::map<std::string, std::string> cuda_versions() {
  std::map<std::string, std::string> versions;
  const auto dotted = [](int version) { return concat(version / 1000, ".", version % 1000 / 10); };
  for (const Architecture& built : built_architectures())
    versions["cuda_architectures"] += (versions["cuda_architectures"].empty() ? "" : " ") + built.text();
  int version = 0;
  if (cudaRuntimeGetVersion(&version) == cudaSuccess) versions["cuda_runtime"] = dotted(version);
  if (cudaDriverGetVersion(&version) == cudaSuccess && version > 0) versions["cuda_driver"] = dotted(version);
  const size_t blas = cublasLtGetVersion();    // 130002 means 13.0.2
  versions["cublaslt"] = concat(blas / 10000, ".", blas / 100 % 100, ".", blas % 100);
  if (const std::unique_ptr<Nvml> nvml = Nvml::open(bus_id_of(0))) {
    const std::string driver = nvml->driver_version();
    if (!driver.empty()) versions["driver"] = driver;
  }
  (void)cudaGetLastError();
  return versions;
}

}  // namespace blipft
