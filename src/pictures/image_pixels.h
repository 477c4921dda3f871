// Functions shared by the picture decoders.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "blipft/pictures.h"

namespace blipft {

// Contraction to fused multiply-adds would change the last bit of a result, and therefore a few pixels.
#define BLIPFT_NO_FMA __attribute__((optimize("fp-contract=off")))

/// Throws the UserError for a picture that cannot be decoded.
[[noreturn]] void refuse_picture(const std::string& name, const std::string& what);

enum class PictureFormat { jpeg, png, webp };
/// Returns the format of a file from its first 12 bytes, or refuses the picture.
PictureFormat picture_format(const uint8_t* bytes, size_t size, const std::string& name);

/// The size after rotation of a JPEG, or of a PNG of which the chunks with pixels may be absent. Refuses what cannot be
/// decoded, as far as the header shows it.
PictureSize jpeg_size(const uint8_t* bytes, size_t size, const std::string& name, const DecodeSettings& settings);
PictureSize png_size(const uint8_t* bytes, size_t size, const std::string& name, const DecodeSettings& settings);

/// Sets the size of `image`, or refuses a size beyond the limits for pictures.
void set_picture_size(Image& image, int64_t width, int64_t height, const std::string& name);

/// PIL's Image.alpha_composite on opaque white, with its 7 fixed-point bits.
inline uint8_t on_white(uint32_t value, uint32_t alpha) {
  const uint32_t sum = ((value * alpha + 255 * (255 - alpha)) << 7) + (0x80 << 7);
  return static_cast<uint8_t>(((sum >> 8) + sum) >> 8 >> 7);
}

}  // namespace blipft
