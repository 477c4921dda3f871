// The resize that the loader's workers call: straight into the memory where the pixels are needed.
#pragma once

#include <cstdint>

#include "blipft/pictures.h"

namespace blipft {

/// resize_bicubic into `out`, u8 [height, width, 3].
void resize_bicubic_into(const Image& image, int64_t width, int64_t height, uint8_t* out);

}  // namespace blipft
