// Energy of a run: counters of CPU packages, and the text of the totals.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace blipft {

/// The energy that all CPU packages of this machine have used since the object was made, by the RAPL counters of Linux'
/// powercap interface. The counters wrap around, after minutes at the earliest: read them more often.
class PackageEnergy {
 public:
  explicit PackageEnergy(const std::string& folder = "/sys/class/powercap");
  /// Returns NaN if a counter cannot be read. Not thread-safe.
  double joules();
  /// The reason why there is no measurement; "" if there is one.
  const std::string& unavailable() const { return unavailable_; }

 private:
  struct Counter {
    std::string file;
    uint64_t range = 0, last = 0;          // microjoules; range: value at which the counter starts again at 0
  };
  std::vector<Counter> counters_;
  uint64_t microjoules_ = 0;
  std::string unavailable_;
};

/// Energy of one kind of device on all machines. NaN: not measured.
struct DeviceEnergy {
  std::string name;                        ///< "GPUs"
  double joules = std::numeric_limits<double>::quiet_NaN();
  std::string unavailable;                 ///< the reason if it was not measured
};

/// "0.0123 kWh (GPUs 0.0100, CPUs 0.0023), 12.3 J a sample, 0.12 J a token"; devices without a measurement are named with
/// the reason.
std::string energy_text(const std::vector<DeviceEnergy>& devices, double samples, double tokens);

}  // namespace blipft
