// RAPL counters and energy texts; see energy.h.
#include "trace/energy.h"

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>

#include "blipft/error.h"

namespace blipft {

namespace {

namespace fs = std::filesystem;

std::optional<uint64_t> read_number(const std::string& file) {
  std::ifstream in(file);
  uint64_t value = 0;
  if (!(in >> value)) return std::nullopt;
  return value;
}

std::string first_word(const fs::path& file) {
  std::ifstream in(file);
  std::string word;
  in >> word;
  return word;
}

std::string kwh(double joules) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", joules / 3.6e6);
  return text;
}

}  // namespace

// A zone intel-rapl:N (of AMD's CPUs too) is a package or the whole platform. Its parts are intel-rapl:N:M, and
// intel-rapl-mmio:N counts the same package again.
PackageEnergy::PackageEnergy(const std::string& folder) {
  std::error_code error;
  for (const fs::directory_entry& zone : fs::directory_iterator(folder, error)) {
    const std::string name = zone.path().filename().string(), prefix = "intel-rapl:";
    if (!name.starts_with(prefix) || name.find(':', prefix.size()) != std::string::npos) continue;
    if (!first_word(zone.path() / "name").starts_with("package")) continue;
    Counter counter{.file = (zone.path() / "energy_uj").string()};
    for (const auto& [file, value] : {std::pair{counter.file, &counter.last},
                                      std::pair{(zone.path() / "max_energy_range_uj").string(), &counter.range}}) {
      errno = 0;
      if (const std::optional<uint64_t> number = read_number(file)) *value = *number;
      else if (unavailable_.empty()) unavailable_ = concat(file, ": ", errno ? std::strerror(errno) : "contains no number");
    }
    counters_.push_back(counter);
  }
  if (error) unavailable_ = concat(folder, ": ", error.message());
  else if (counters_.empty()) unavailable_ = concat(folder, ": contains no CPU package");
}

double PackageEnergy::joules() {
  if (!unavailable_.empty()) return std::numeric_limits<double>::quiet_NaN();
  for (Counter& counter : counters_) {
    const std::optional<uint64_t> now = read_number(counter.file);
    if (!now) {
      unavailable_ = concat(counter.file, ": can no longer be read");
      return std::numeric_limits<double>::quiet_NaN();
    }
    microjoules_ += *now - counter.last + (*now < counter.last ? counter.range : 0);
    counter.last = *now;
  }
  return static_cast<double>(microjoules_) * 1e-6;
}

std::string energy_text(const std::vector<DeviceEnergy>& devices, double samples, double tokens) {
  double joules = 0;
  int measured = 0;
  for (const DeviceEnergy& device : devices)
    if (!std::isnan(device.joules)) joules += device.joules, ++measured;
  std::string parts;
  for (const DeviceEnergy& device : devices)
    parts += concat(parts.empty() ? "" : measured < std::ssize(devices) ? "; " : ", ", device.name,
                    std::isnan(device.joules) ? concat(": ", measured > 0 ? "not available: " : "", device.unavailable)
                                              : " " + kwh(device.joules));
  if (measured == 0) return concat("not available (", parts, ")");
  char text[96];
  std::snprintf(text, sizeof text, ", %.4g J a sample, %.4g J a token", joules / samples, joules / tokens);
  return concat(kwh(joules), " kWh (", parts, ")", samples > 0 && tokens > 0 ? text : "");
}

}  // namespace blipft
