// NVML, the driver's library about the device's state, loaded at run time: its header is not needed to build, and a
// machine without it only loses these figures.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace blipft {

class Nvml {
 public:
  /// Null when the library is absent, does not start, or knows no device at `pci_bus_id` ("0000:1b:00.0"). The bus id
  /// names the device whatever CUDA_VISIBLE_DEVICES makes of the numbers.
  static std::unique_ptr<Nvml> open(const std::string& pci_bus_id);
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  // Each answers false, and changes nothing, when the driver does not tell. Thread-safe.
  bool utilization(double& percent) const;
  bool power(double& watts) const;
  bool clocks(double& sm_mhz, double& memory_mhz) const;
  bool temperature(double& celsius) const;
  bool memory_used(int64_t& bytes) const;      ///< by everybody
  /// By this process. Not told in a container that does not share the machine's process numbers.
  bool process_memory(int64_t& bytes) const;
  std::string driver_version() const;          ///< "580.65.06", empty: not told

 private:
  struct Functions;
  Nvml(void* library, std::unique_ptr<Functions> functions);
  void* library_;
  std::unique_ptr<Functions> functions_;
  void* device_ = nullptr;
};

}  // namespace blipft
