// CRC-32C with the processor's instruction (x86: SSE 4.2, which AVX2 implies; ARM: CRC32, which ARMv8.1 implies): about 8
// bytes in three cycles.
#include "io/crc32c.h"

#if defined(__aarch64__)
#include <arm_acle.h>
#else
#include <nmmintrin.h>
#endif

#include <array>
#include <cstring>

namespace blipft::io {

namespace {

#if defined(__aarch64__)
uint32_t add_word(uint32_t sum, uint64_t word) { return __crc32cd(sum, word); }
uint32_t add_byte(uint32_t sum, unsigned char byte) { return __crc32cb(sum, byte); }
#else
uint32_t add_word(uint32_t sum, uint64_t word) { return static_cast<uint32_t>(_mm_crc32_u64(sum, word)); }
uint32_t add_byte(uint32_t sum, unsigned char byte) { return _mm_crc32_u8(sum, byte); }
#endif

}  // namespace

uint32_t crc32c(const void* data, int64_t bytes, uint32_t before) {
  const auto* at = static_cast<const unsigned char*>(data);
  uint32_t sum = ~before;
  for (; bytes >= 8; bytes -= 8, at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, at, sizeof word);
    sum = add_word(sum, word);
  }
  for (; bytes > 0; --bytes, ++at) sum = add_byte(sum, *at);
  return ~sum;
}

// The CRC state is linear over GF(2). Appending zero bytes maps the first checksum by a 32x32 matrix over GF(2), whose
// columns are the images of the single bits. The matrix for 2^k zero bytes is the matrix for one zero byte, squared k
// times.
uint32_t crc32c_joined(uint32_t first, uint32_t second, int64_t second_bytes) {
  using Matrix = std::array<uint32_t, 32>;
  const auto times = [](const Matrix& matrix, uint32_t vector) {
    uint32_t sum = 0;
    for (size_t bit = 0; vector != 0; ++bit, vector >>= 1)
      if (vector & 1) sum ^= matrix[bit];
    return sum;
  };
  Matrix zeros{};                          // starts as the matrix for one zero byte
  for (size_t bit = 0; bit < zeros.size(); ++bit) zeros[bit] = add_byte(uint32_t{1} << bit, 0);
  for (; second_bytes > 0; second_bytes >>= 1) {
    if (second_bytes & 1) first = times(zeros, first);
    Matrix squared{};
    for (size_t bit = 0; bit < squared.size(); ++bit) squared[bit] = times(zeros, zeros[bit]);
    zeros = squared;
  }
  return first ^ second;
}

}  // namespace blipft::io
