// Small JPEGs of pictures, for pages.
#pragma once

#include <cstdint>
#include <vector>

#include "blipft/pictures.h"

namespace blipft {

/// `image` as a JPEG with no side longer than `most_side`; a smaller one as it is. Empty where there is no memory for it.
std::vector<uint8_t> thumbnail_jpeg(const Image& image, int64_t most_side);

}  // namespace blipft
