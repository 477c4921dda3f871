// Decoding of WebP pictures.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "blipft/pictures.h"

namespace blipft {

/// Returns true if this program was built with libwebp.
bool reads_webp();
bool is_webp(const uint8_t* bytes, size_t size);
/// Decodes as decode_image() does; an animation gives its first frame. Throws UserError, also if reads_webp() is false.
Image decode_webp(const uint8_t* bytes, size_t size, const std::string& name, const DecodeSettings& settings);
PictureSize webp_size(const EncodedPicture& picture, const std::string& name, const DecodeSettings& settings);

}  // namespace blipft
