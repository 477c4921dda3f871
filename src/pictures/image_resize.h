// The resize function of the loader's workers, which writes directly into the destination memory.
#pragma once

#include <cstdint>

#include "blipft/pictures.h"

namespace blipft {

/// Does the same as resize_picture, but writes into `out`, u8 [height, width, 3].
void resize_picture_into(const Image& image, int64_t width, int64_t height, ResizeMethod method, uint8_t* out);

}  // namespace blipft
