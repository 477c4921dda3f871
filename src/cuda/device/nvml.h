// NVML, the driver's device management library, loaded at run time: its header is not needed to build, and without the
// library only these measurements are missing.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace blipft {

class Nvml {
 public:
  /// Returns null if the library is absent or does not start, or if no device has `pci_bus_id` ("0000:1b:00.0"). The
  /// bus id identifies the device independently of CUDA_VISIBLE_DEVICES.
  static std::unique_ptr<Nvml> open(const std::string& pci_bus_id);
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  // Each returns false and changes nothing if the driver does not provide the value. Thread-safe.
  bool utilization(double& percent) const;
  bool power(double& watts) const;
  bool energy(double& joules) const;           ///< since the driver was loaded
  bool clocks(double& sm_mhz, double& memory_mhz) const;
  bool temperature(double& celsius) const;
  bool memory_used(int64_t& bytes) const;      ///< by all processes
  /// Memory used by this process. It is not available in a container with a separate process ID namespace.
  bool process_memory(int64_t& bytes) const;
  std::string driver_version() const;          ///< "580.65.06"; empty if not available

 private:
  struct Functions;
  Nvml(void* library, std::unique_ptr<Functions> functions);
  void* library_;
  std::unique_ptr<Functions> functions_;
  void* device_ = nullptr;
};

}  // namespace blipft
