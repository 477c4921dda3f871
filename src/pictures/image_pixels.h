// What the decoders of pictures share.
#pragma once

#include <cstdint>
#include <string>

#include "blipft/pictures.h"

namespace blipft {

/// Throws the UserError of a picture that cannot be decoded.
[[noreturn]] void refuse_picture(const std::string& name, const std::string& what);

/// Takes a size over, or refuses one that no picture may have.
void set_picture_size(Image& image, int64_t width, int64_t height, const std::string& name);

/// PIL's Image.alpha_composite on opaque white, in its fixed point of 7 bits.
inline uint8_t on_white(uint32_t value, uint32_t alpha) {
  const uint32_t sum = ((value * alpha + 255 * (255 - alpha)) << 7) + (0x80 << 7);
  return static_cast<uint8_t>(((sum >> 8) + sum) >> 8 >> 7);
}

}  // namespace blipft
