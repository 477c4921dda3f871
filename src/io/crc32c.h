// CRC-32C (Castagnoli, RFC 3720 appendix B.4): the checksum of checkpoints' bytes.
#pragma once

#include <cstdint>

namespace blipft::io {

/// Of `bytes` bytes; `before`: the checksum of what comes before them.
uint32_t crc32c(const void* data, int64_t bytes, uint32_t before = 0);

}  // namespace blipft::io
