// Base64; see base64.h.
#include "base/base64.h"

namespace blipft {

std::string base64_of(std::span<const uint8_t> bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t at = 0; at < bytes.size(); at += 3) {
    const size_t there = bytes.size() - at;
    const uint32_t three = uint32_t{bytes[at]} << 16 | (there > 1 ? uint32_t{bytes[at + 1]} << 8 : 0) |
                           (there > 2 ? uint32_t{bytes[at + 2]} : 0);
    text += {kDigits[three >> 18], kDigits[three >> 12 & 63], there > 1 ? kDigits[three >> 6 & 63] : '=',
             there > 2 ? kDigits[three & 63] : '='};
  }
  return text;
}

}  // namespace blipft
