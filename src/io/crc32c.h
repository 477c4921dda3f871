// CRC-32C (Castagnoli, RFC 3720 appendix B.4): the checksum that checkpoints use.
#pragma once

#include <cstdint>

namespace blipft::io {

/// Returns the checksum of `bytes` bytes at `data`. `before` is the checksum of the bytes that precede them.
uint32_t crc32c(const void* data, int64_t bytes, uint32_t before = 0);

/// Returns the checksum of two concatenated byte ranges from the checksum of each range and the size of the second.
uint32_t crc32c_joined(uint32_t first, uint32_t second, int64_t second_bytes);

}  // namespace blipft::io
