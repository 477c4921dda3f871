// WebP pictures.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "blipft/pictures.h"

namespace blipft {

/// Whether this program was built with libwebp.
bool reads_webp();
bool is_webp(const uint8_t* bytes, size_t size);
/// See decode_image(). Of an animation the first frame. Throws UserError, also where reads_webp() is false.
Image decode_webp(const uint8_t* bytes, size_t size, const std::string& name, const DecodeSettings& settings);

}  // namespace blipft
