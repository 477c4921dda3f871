// Pictures of any size against the image processors of transformers: the golden set "pixels".
#include <doctest/doctest.h>
#include <zlib.h>

#include <bit>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "blipft/pictures.h"
#include "pictures/picture_patches.h"
#include "support/error_message.h"
#include "support/golden_files.h"
#include "support/temporary_directory.h"

using namespace blipft;
using nlohmann::json;

namespace {

constexpr uint64_t golden_ratio = 0x9E3779B97F4A7C15;

uint64_t mixed(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

std::string big_endian(uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16), static_cast<char>(value >> 8),
          static_cast<char>(value)};
}

std::string png_chunk(const std::string& kind, const std::string& body) {
  const std::string content = kind + body;
  const auto crc = ::crc32(0, reinterpret_cast<const uint8_t*>(content.data()), static_cast<uInt>(content.size()));
  return big_endian(static_cast<uint32_t>(body.size())) + content + big_endian(static_cast<uint32_t>(crc));
}

/// The PNG of a case: the same pixels as numbers() of tools/blipft_golden/pixels.py.
std::string png_of(const json& picture) {
  const uint64_t number = picture["number"], height = picture["height"], width = picture["width"],
                 channels = picture["channels"];
  std::string rows;
  uint64_t index = (number + 1) << 32;
  for (uint64_t y = 0; y < height; ++y) {
    rows += '\0';
    for (uint64_t x = 0; x < width; ++x)
      for (uint64_t c = 0; c < channels; ++c) {
        const uint64_t noise = mixed(index++ * golden_ratio);
        rows += static_cast<char>(number % 2 ? noise >> 56 : 3 * x + 5 * y + 40 * c + (noise >> 60));
      }
  }
  uLongf packed_size = compressBound(rows.size());
  std::string packed(packed_size, '\0');
  compress2(reinterpret_cast<uint8_t*>(packed.data()), &packed_size, reinterpret_cast<const uint8_t*>(rows.data()),
            rows.size(), 1);
  const char color_types[] = {0, 0, 4, 2, 6};
  std::string png = "\x89PNG\r\n\x1a\n";
  png += png_chunk("IHDR", big_endian(static_cast<uint32_t>(width)) + big_endian(static_cast<uint32_t>(height)) + '\x08' +
                               color_types[channels] + std::string(3, '\0'));
  const auto orientation = picture["orientation"].get<char>();
  if (orientation > 1)
    png += png_chunk("eXIf", std::string("II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0", 18) + orientation +
                                 std::string(7, '\0'));
  return png + png_chunk("IDAT", packed.substr(0, packed_size)) + png_chunk("IEND", "");
}

uint64_t checksum(const std::vector<float>& values) {
  uint64_t sum = 0, weight = 0;
  for (const float value : values) sum += std::bit_cast<uint32_t>(value) * (weight += golden_ratio);
  return sum;
}

/// The settings that the processors of a case had.
ImageProcessor processor_of(const json& picture, PixelLibrary library) {
  const int64_t patch = picture["patch"];
  ImageProcessor processor;
  processor.resize.library = library;
  processor.patches = {patch, 2, 2, picture["min_pixels"], picture["max_pixels"]};
  if (patch != 14) processor.statistics = {{0.5f, 0.5f, 0.5f}, {0.5f, 0.5f, 0.5f}};
  if (patch == 896) processor.patches.merge = processor.patches.time = 1, processor.resize.filter = ResizeFilter::bilinear;
  return processor;
}

std::vector<float> pixel_values(const Image& image, PictureSize size, const ImageProcessor& processor) {
  const PatchSettings& patches = processor.patches;
  const Image resized = resize_picture(image, size.width, size.height, processor.resize);
  std::vector<uint8_t> rows(resized.rgb.size());
  cut_patches(resized, patches, rows.data());
  std::vector<float> values(rows.size() * static_cast<size_t>(patches.time));
  normalize_patches(rows.data(), static_cast<int64_t>(rows.size()) / (3 * patches.patch * patches.patch), patches,
                    pixel_table(processor.statistics, processor.resize.library), values.data());
  return values;
}

}  // namespace

TEST_SUITE("picture patches") {
  TEST_CASE("pixel values are transformers', bit for bit [slow]") {
    std::ifstream in(testing::golden_path("pixels/index.json"));
    const json pictures = json::parse(in);
    REQUIRE(pictures.size() == 500);
    for (const json& picture : pictures) {
      CAPTURE(picture.dump());
      const std::string png = png_of(picture);
      const Image image = decode_image(reinterpret_cast<const uint8_t*>(png.data()), png.size(), "drawn.png");
      for (const auto& [name, library] : {std::pair{"pillow", PixelLibrary::pillow},
                                          std::pair{"torchvision", PixelLibrary::torchvision}}) {
        const ImageProcessor processor = processor_of(picture, library);
        const int64_t patch = processor.patches.patch;
        const PictureSize size =
            patch == 896 ? PictureSize{896, 896} : fitted_size({image.height, image.width}, processor.patches, "drawn.png");
        CHECK(size == PictureSize{picture["grid"][0].get<int64_t>() * patch, picture["grid"][1].get<int64_t>() * patch});
        CHECK(checksum(pixel_values(image, size, processor)) == picture[name].get<uint64_t>());
      }
    }
  }

  TEST_CASE("fitted sizes round half to even, and reach the limits") {
    const auto fitted = [](int64_t height, int64_t width, const PatchSettings& patches) {
      return fitted_size({height, width}, patches, "a.png");
    };
    const PatchSettings wide = {16, 2, 2, 65536, 16777216}, narrow = {14, 2, 2, 3136, 12845056};
    CHECK(fitted(1080, 1920, wide) == PictureSize{1088, 1920});
    CHECK(fitted(1080, 1920, narrow) == PictureSize{1092, 1932});
    CHECK(fitted(1, 1, wide) == PictureSize{256, 256});
    CHECK(fitted(48, 80, narrow) == PictureSize{56, 84});
    CHECK(fitted(10, 2000, wide) == PictureSize{32, 3648});
    CHECK(fitted(10, 2000, narrow) == PictureSize{28, 812});
    CHECK(fitted(6000, 8000, wide) == PictureSize{3520, 4704});
    CHECK(fitted(6000, 8000, narrow) == PictureSize{3080, 4116});
    CHECK(fitted(336, 432, wide) == PictureSize{320, 448});  // 10.5 and 13.5 blocks
    CHECK(testing::message_of([&] { fitted(2, 401, wide); }) ==
          "cannot use the picture a.png: found 401 x 2 pixels, expected no side more than 200 times as long as the other. "
          "Crop it or remove it from the dataset.");
  }

  TEST_CASE("limits of areas") {
    const PatchSettings folder = {16, 2, 2, 65536, 16777216};
    CHECK(with_limits(folder, 0, 0).max_pixels == 16777216);
    CHECK(with_limits(folder, 0, 100000).max_pixels == 100000);
    CHECK(with_limits(folder, 1024, 1024).min_pixels == 1024);
    CHECK(testing::message_of([&] { with_limits(folder, 0, 50000); }) ==
          "data.max_pixels: found 50000, expected at least 65536, the other limit. Set data.min_pixels and "
          "data.max_pixels together.");
    CHECK(testing::message_of([&] { with_limits(folder, 20000000, 0); })
              .starts_with("data.min_pixels: found 20000000, expected at most 16777216"));
    CHECK(testing::message_of([&] { with_limits(folder, 1, 1000); })
              .starts_with("data.max_pixels: found 1000, expected at least 1024, the pixels of one row"));
  }
}
