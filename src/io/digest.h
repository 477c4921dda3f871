// Digest: a 64-bit hash of the added values, in order. Different inputs collide only by chance, but the hash is not
// cryptographic: collisions can be constructed.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

namespace blipft::io {

class Digest {
 public:
  /// Adds eight bytes at a time for speed, because a data set has some hundred megabytes of names.
  void add(const void* data, size_t bytes) {
    const char* from = static_cast<const char*>(data);
    for (; bytes >= 8; bytes -= 8, from += 8) {
      uint64_t word = 0;
      std::memcpy(&word, from, 8);
      mix(word);
    }
    uint64_t rest = static_cast<uint64_t>(bytes) << 56;
    std::memcpy(&rest, from, bytes);
    mix(rest);                             // includes the length, so that "ab", "c" differs from "a", "bc"
  }
  void add(std::string_view text) { add(text.data(), text.size()); }
  void add(int64_t value) { mix(static_cast<uint64_t>(value)); }
  uint64_t value() const { return state_ ^ (state_ >> 29); }
  /// Returns value() as 16 hexadecimal digits.
  std::string text() const {
    char hex[17];
    std::snprintf(hex, sizeof hex, "%016llx", static_cast<unsigned long long>(value()));
    return hex;
  }

 private:
  void mix(uint64_t word) {
    state_ = (state_ ^ word) * 0x9e3779b97f4a7c15u;  // the factor is odd, so the map is one-to-one
    state_ ^= state_ >> 32;
  }
  uint64_t state_ = 0xcbf29ce484222325u;
};

}  // namespace blipft::io
