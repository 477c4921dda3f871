// CRC-32C (Castagnoli, RFC 3720 appendix B.4): the checksum of checkpoints' bytes.
#pragma once

#include <cstdint>

namespace blipft::io {

/// Of `bytes` bytes; `before`: the checksum of what comes before them.
uint32_t crc32c(const void* data, int64_t bytes, uint32_t before = 0);

/// Of two pieces, one after the other, by the checksums of both and the bytes of the second.
uint32_t crc32c_joined(uint32_t first, uint32_t second, int64_t second_bytes);

}  // namespace blipft::io
