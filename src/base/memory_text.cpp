// Formats an amount of memory; see memory_text.h.
#include "base/memory_text.h"

#include <cstdio>

namespace blipft {

std::string memory_text(int64_t bytes) {
  const MemoryUnit unit(bytes);
  char text[64];
  std::snprintf(text, sizeof text, "%.2f %s", unit(bytes), unit.name);
  return text;
}

}  // namespace blipft
