// The alignment of all tensors in an arena.
#pragma once

#include <algorithm>
#include <cstdint>

namespace blipft {

constexpr int64_t kArenaAlignment = 256;  // bytes

/// Returns the bytes that a tensor of `bytes` bytes occupies.
inline int64_t arena_aligned(int64_t bytes) {
  return std::max(kArenaAlignment, (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment);
}

}  // namespace blipft
