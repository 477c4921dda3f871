// picture_size: the size of an encoded picture, without decoding it.
#include <algorithm>
#include <cstring>
#include <string_view>

#include "blipft/error.h"
#include "blipft/pictures.h"
#include "io/file.h"
#include "pictures/image_pixels.h"
#include "pictures/image_webp.h"

namespace blipft {
namespace {

constexpr int64_t first_read = 64 << 10;      // contains the header of nearly every JPEG, with its EXIF and thumbnail

std::string read_part(const EncodedPicture& picture, int64_t offset, int64_t bytes) {
  std::string part(static_cast<size_t>(bytes), '\0');
  picture.read(offset, part.data(), bytes);
  return part;
}

const uint8_t* bytes_of(const std::string& text) { return reinterpret_cast<const uint8_t*>(text.data()); }

PictureSize jpeg_size(const EncodedPicture& picture, const std::string& name, const DecodeSettings& settings) {
  for (int64_t bytes = first_read; bytes < picture.size; bytes *= 8) {
    const std::string part = read_part(picture, 0, bytes);
    try {
      return jpeg_size(bytes_of(part), part.size(), name, settings);
    } catch (const UserError&) {
      // The header may be longer than this part; if it is damaged, the whole file gives the same error.
    }
  }
  const std::string whole = read_part(picture, 0, picture.size);
  return jpeg_size(bytes_of(whole), whole.size(), name, settings);
}

/// Returns the PNG without pixels: the chunks that its size and orientation depend on, then an empty chunk of pixels.
/// Metadata may also follow the pixels.
std::string png_without_pixels(const EncodedPicture& picture, const std::string& name) {
  static constexpr std::string_view kept[] = {"IHDR", "PLTE", "eXIf", "tEXt", "zTXt", "iTXt"};
  std::string png = read_part(picture, 0, 8);
  for (int64_t at = 8; picture.size - at >= 8;) {     // after the signature: length, name, content, checksum
    const std::string head = read_part(picture, at, 8), kind = head.substr(4);
    const uint8_t* const number = bytes_of(head);
    const int64_t length = int64_t{number[0]} << 24 | number[1] << 16 | number[2] << 8 | number[3];
    if (length + 4 > picture.size - at - 8) refuse_picture(name, "the file ends too early");
    if (std::find(std::begin(kept), std::end(kept), kind) != std::end(kept))
      png += read_part(picture, at, length + 12);
    if (kind == "IEND") break;
    at += length + 12;
  }
  return png + std::string("\0\0\0\0IDAT", 8);
}

}  // namespace

EncodedPicture encoded_picture(const uint8_t* bytes, size_t size) {
  return {static_cast<int64_t>(size), [bytes](int64_t offset, void* out, int64_t count) {
            std::memcpy(out, bytes + offset, static_cast<size_t>(count));
          }};
}

PictureSize picture_size(const EncodedPicture& picture, const std::string& name, const DecodeSettings& settings) {
  const std::string start = read_part(picture, 0, std::min<int64_t>(picture.size, 12));
  switch (picture_format(bytes_of(start), start.size(), name)) {
    case PictureFormat::jpeg: return jpeg_size(picture, name, settings);
    case PictureFormat::png: {
      const std::string png = png_without_pixels(picture, name);
      return png_size(bytes_of(png), png.size(), name, settings);
    }
    default: return webp_size(picture, name, settings);
  }
}

PictureSize picture_size_of_file(const std::string& file, const DecodeSettings& settings) {
  const io::FileDescriptor opened = io::open_for_reading(file);
  const auto read = [&](int64_t offset, void* out, int64_t bytes) { io::read_at(opened, offset, out, bytes, file); };
  return picture_size({io::file_size(opened, file), read}, file, settings);
}

}  // namespace blipft
