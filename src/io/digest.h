// Digest: 64 bits of what was added, in order; they differ where that does, but by chance, and not against intent.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

namespace blipft::io {

class Digest {
 public:
  /// Eight bytes at a time, as a dataset has some hundred megabytes of names.
  void add(const void* data, size_t bytes) {
    const char* from = static_cast<const char*>(data);
    for (; bytes >= 8; bytes -= 8, from += 8) {
      uint64_t word = 0;
      std::memcpy(&word, from, 8);
      mix(word);
    }
    uint64_t rest = static_cast<uint64_t>(bytes) << 56;
    std::memcpy(&rest, from, bytes);
    mix(rest);                             // with the length, so that "ab" "c" is not "a" "bc"
  }
  void add(std::string_view text) { add(text.data(), text.size()); }
  void add(int64_t value) { mix(static_cast<uint64_t>(value)); }
  uint64_t value() const { return state_ ^ (state_ >> 29); }
  /// 16 hexadecimal digits.
  std::string text() const {
    char hex[17];
    std::snprintf(hex, sizeof hex, "%016llx", static_cast<unsigned long long>(value()));
    return hex;
  }

 private:
  void mix(uint64_t word) {
    state_ = (state_ ^ word) * 0x9e3779b97f4a7c15u;  // odd: no two states become one
    state_ ^= state_ >> 32;
  }
  uint64_t state_ = 0xcbf29ce484222325u;
};

}  // namespace blipft::io
