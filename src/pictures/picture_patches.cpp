#include "pictures/picture_patches.h"

#include <algorithm>
#include <cmath>

#include "blipft/error.h"
#include "pictures/image_pixels.h"

namespace blipft {
namespace {

constexpr double max_aspect_ratio = 200;

/// Copies one patch of a picture to [3, patch, patch]; `in` points to its first pixel in rows of `row_bytes`.
void cut_patch(const uint8_t* in, int64_t row_bytes, int64_t patch, uint8_t* out) {
  uint8_t *const red = out, *const green = red + patch * patch, *const blue = green + patch * patch;
  for (int64_t y = 0, at = 0; y < patch; ++y, in += row_bytes)
    for (int64_t x = 0; x < patch; ++x, ++at)
      red[at] = in[3 * x], green[at] = in[3 * x + 1], blue[at] = in[3 * x + 2];
}

}  // namespace

PatchSettings with_limits(PatchSettings patches, int64_t min_pixels, int64_t max_pixels) {
  const int64_t block = patches.patch * patches.merge, smallest = block * block;
  if (min_pixels > 0) patches.min_pixels = min_pixels;
  if (max_pixels > 0) patches.max_pixels = max_pixels;
  BLIPFT_USER_CHECK(patches.max_pixels >= smallest, "data.max_pixels: found ", max_pixels, ", expected at least ",
                    smallest, ", the pixels of one row of the language model. Raise it.");
  BLIPFT_USER_CHECK(patches.min_pixels <= patches.max_pixels, max_pixels > 0 ? "data.max_pixels" : "data.min_pixels",
                    ": found ", max_pixels > 0 ? max_pixels : min_pixels, ", expected ",
                    max_pixels > 0 ? "at least " : "at most ", max_pixels > 0 ? patches.min_pixels : patches.max_pixels,
                    ", the other limit. Set data.min_pixels and data.max_pixels together.");
  return patches;
}

BLIPFT_NO_FMA PictureSize fitted_size(PictureSize size, const PatchSettings& patches, const std::string& name) {
  const auto height = static_cast<double>(size.height), width = static_cast<double>(size.width);
  BLIPFT_USER_CHECK(std::max(height, width) / std::min(height, width) <= max_aspect_ratio, "cannot use the picture ",
                    name, ": found ", size.width, " x ", size.height, " pixels, expected no side more than ",
                    max_aspect_ratio, " times as long as the other. Crop it or remove it from the dataset.");
  const int64_t factor = patches.patch * patches.merge;
  const auto unit = static_cast<double>(factor);
  // std::nearbyint rounds half to even, as Python's round() does.
  const auto nearest = [&](double side) { return static_cast<int64_t>(std::nearbyint(side / unit)) * factor; };
  PictureSize fitted = {nearest(height), nearest(width)};
  if (fitted.height * fitted.width > patches.max_pixels) {
    const double shrink = std::sqrt(height * width / static_cast<double>(patches.max_pixels));
    const auto below = [&](double side) {
      return std::max(factor, static_cast<int64_t>(std::floor(side / shrink / unit)) * factor);
    };
    fitted = {below(height), below(width)};
  } else if (fitted.height * fitted.width < patches.min_pixels) {
    const double grow = std::sqrt(static_cast<double>(patches.min_pixels) / (height * width));
    const auto above = [&](double side) { return static_cast<int64_t>(std::ceil(side * grow / unit)) * factor; };
    fitted = {above(height), above(width)};
  }
  return fitted;
}

void cut_patches(const Image& image, const PatchSettings& patches, uint8_t* out) {
  const int64_t patch = patches.patch, block = patch * patches.merge, row_bytes = image.width * 3;
  BLIPFT_CHECK(image.height % block == 0 && image.width % block == 0, image.width, " x ", image.height,
               " pixels in blocks of ", block);
  for (int64_t top = 0; top < image.height; top += block)
    for (int64_t left = 0; left < image.width; left += block)
      for (int64_t y = top; y < top + block; y += patch)
        for (int64_t x = left; x < left + block; x += patch, out += 3 * patch * patch)
          cut_patch(image.rgb.data() + y * row_bytes + x * 3, row_bytes, patch, out);
}

BLIPFT_NO_FMA PixelTable pixel_table(const PixelStatistics& statistics, PixelLibrary library) {
  PixelTable table;
  for (int c = 0; c < 3; ++c) {
    const float mean = statistics.mean[c], std = statistics.std[c];
    for (int pixel = 0; pixel < 256; ++pixel)
      table.values[c][pixel] = library == PixelLibrary::torchvision
                                   ? (static_cast<float>(pixel) - mean * 255.0f) / (std * 255.0f)
                                   : (static_cast<float>(pixel * (1.0 / 255)) - mean) / std;
  }
  return table;
}

void normalize_patches(const uint8_t* rows, int64_t count, const PatchSettings& patches, const PixelTable& table,
                       float* out) {
  const int64_t area = patches.patch * patches.patch;
  for (int64_t plane = 0; plane < count * 3; ++plane, rows += area, out += patches.time * area) {
    const float* const values = table.values[plane % 3];
    for (int64_t i = 0; i < area; ++i) out[i] = values[rows[i]];
    for (int64_t slice = 1; slice < patches.time; ++slice) std::copy_n(out, area, out + slice * area);
  }
}

}  // namespace blipft
