// Pictures as rows of patches and as normalized values, bit-identical to the image processors of transformers.
#pragma once

#include <cstdint>
#include <string>

#include "blipft/pictures.h"

namespace blipft {

/// Returns `patches` with the limits of data.min_pixels and data.max_pixels; 0 keeps the limit of the model's folder.
/// Throws UserError naming the key if the minimum exceeds the maximum.
PatchSettings with_limits(PatchSettings patches, int64_t min_pixels, int64_t max_pixels);

/// Returns the size to which a picture is resized before it is cut into patches ("smart_resize"): multiples of
/// patch * merge, with an area between min_pixels and max_pixels where the aspect ratio permits it. Throws UserError
/// naming the picture if one side is more than 200 times as long as the other.
PictureSize fitted_size(PictureSize size, const PatchSettings& patches, const std::string& name);

/// Cuts a picture whose sides are multiples of patch * merge into `out`, u8 [rows, 3, patch, patch]. Rows are in block
/// order: the merge * merge patches that become one row of the language model are neighbours.
void cut_patches(const Image& image, const PatchSettings& patches, uint8_t* out);

/// The normalized value of each of the 256 values of a color.
struct PixelTable {
  float values[3][256];
};
PixelTable pixel_table(const PixelStatistics& statistics, PixelLibrary library);

/// Normalizes the u8 patches of cut_patches() into `out`, f32 [rows, 3, time, patch, patch], with equal time slices.
void normalize_patches(const uint8_t* rows, int64_t count, const PatchSettings& patches, const PixelTable& table,
                       float* out);

}  // namespace blipft
