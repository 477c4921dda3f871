// Formats amounts of memory for messages.
#pragma once

#include <cstdint>
#include <string>

namespace blipft {

/// The common unit for a group of amounts: GiB, or MiB if their total is less than one GiB.
struct MemoryUnit {
  explicit MemoryUnit(int64_t all) : MemoryUnit(all >= int64_t{1} << 30) {}
  /// Returns `bytes` in this unit.
  double operator()(int64_t bytes) const { return static_cast<double>(bytes) / size; }

  double size;                             // bytes
  const char* name;

 private:
  explicit MemoryUnit(bool large) : size(large ? 0x1p30 : 0x1p20), name(large ? "GiB" : "MiB") {}
};

/// Returns a single amount with its own unit: "1.50 GiB", "12.00 MiB".
std::string memory_text(int64_t bytes);

}  // namespace blipft
