// Small JPEGs of pictures for HTML pages.
#pragma once

#include <cstdint>
#include <vector>

#include "blipft/pictures.h"

namespace blipft {

/// Returns `image` as a JPEG with no side longer than `max_side`; a smaller picture keeps its size. Returns an empty
/// vector if the JPEG cannot be written.
std::vector<uint8_t> thumbnail_jpeg(const Image& image, int64_t max_side);

}  // namespace blipft
