// The orientation of a picture, from the metadata of its file.
#pragma once

#include <string>

#include "blipft/pictures.h"

namespace blipft {

/// Returns the orientation (1 to 8; 1: unchanged) from a file's metadata, as PIL reads it. `exif` is a TIFF directory,
/// with or without "Exif\0\0" before it. `xmp` is used if `exif` contains no orientation. Both may be empty. Metadata
/// that cannot be read counts as 1.
int picture_orientation(const std::string& exif, const std::string& xmp);

/// Returns the size of turned(image, orientation).
inline PictureSize turned_size(const Image& image, int orientation) {
  return orientation < 5 ? PictureSize{image.height, image.width} : PictureSize{image.width, image.height};
}
/// Returns the picture rotated or mirrored as by ImageOps.exif_transpose.
Image turned(Image image, int orientation);

}  // namespace blipft
