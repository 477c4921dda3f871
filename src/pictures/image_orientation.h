// How a picture is to be turned, as its file says.
#pragma once

#include <string>

#include "blipft/pictures.h"

namespace blipft {

/// The orientation (1 to 8, 1: as it is) in a file's metadata, as PIL reads it: `exif` is a TIFF directory, behind
/// "Exif\0\0" or not; `xmp` counts where that names none. Empty: there is none. What cannot be read counts as 1.
int picture_orientation(const std::string& exif, const std::string& xmp);

/// The picture as ImageOps.exif_transpose turns it.
Image turned(Image image, int orientation);

}  // namespace blipft
