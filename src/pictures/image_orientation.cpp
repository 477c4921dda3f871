// EXIF and XMP orientation. Errors in metadata are ignored, because metadata is often damaged while the picture is
// good.
#include "pictures/image_orientation.h"

#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

namespace blipft {
namespace {

constexpr uint64_t orientation_tag = 0x0112;

/// Reads numbers from a TIFF structure of either byte order.
class TiffBytes {
 public:
  TiffBytes(std::string_view bytes, bool big_endian) : bytes_(bytes), big_endian_(big_endian) {}

  uint64_t size() const { return bytes_.size(); }
  bool has(uint64_t offset, uint64_t count) const { return offset <= size() && count <= size() - offset; }
  /// Returns an unsigned number of `width` bytes; the caller checks that these bytes exist.
  uint64_t number(uint64_t offset, int width) const {
    uint64_t value = 0;
    for (int i = 0; i < width; ++i) {
      const auto byte = static_cast<uint8_t>(bytes_[offset + static_cast<uint64_t>(big_endian_ ? i : width - 1 - i)]);
      value = value << 8 | byte;
    }
    return value;
  }

 private:
  std::string_view bytes_;
  bool big_endian_;
};

/// Returns the bytes of a value of a TIFF type, or 0 for an unknown type.
uint64_t type_width(uint64_t type) {
  switch (type) {
    case 1: case 2: case 6: case 7: return 1;       // byte, text, signed byte, undefined
    case 3: case 8: return 2;                       // short, signed short
    case 4: case 9: case 11: case 13: return 4;     // long, signed long, float, directory
    case 5: case 10: case 12: case 16: return 8;    // rational, signed rational, double, long of 8 bytes
    default: return 0;
  }
}

/// Returns the value at `offset`, or none for bytes and texts. A negative number becomes a large one; both mean no
/// orientation.
std::optional<double> first_number(const TiffBytes& tiff, uint64_t offset, uint64_t type) {
  const auto number = [&](uint64_t at, int width) { return static_cast<double>(tiff.number(at, width)); };
  switch (type) {
    case 1: case 2: case 7: return std::nullopt;
    case 5: case 10: return number(offset, 4) / number(offset + 4, 4);
    case 11: return std::bit_cast<float>(static_cast<uint32_t>(tiff.number(offset, 4)));
    case 12: return std::bit_cast<double>(tiff.number(offset, 8));
    default: return number(offset, static_cast<int>(type_width(type)));
  }
}

/// Returns the orientation in the first directory. As in PIL, reading stops at the first value whose bytes are missing,
/// and a value is skipped if the values so far claim more bytes than the file has.
std::optional<double> tiff_orientation(const TiffBytes& tiff) {
  const uint64_t directory = tiff.number(4, 4);
  if (!tiff.has(directory, 2)) return std::nullopt;
  const uint64_t entries = tiff.number(directory, 2);
  uint64_t outside = 0;                             // bytes of values stored outside of the directory
  for (uint64_t i = 0; i < entries; ++i) {
    const uint64_t entry = directory + 2 + 12 * i;
    if (!tiff.has(entry, 12)) return std::nullopt;
    const uint64_t tag = tiff.number(entry, 2), type = tiff.number(entry + 2, 2), count = tiff.number(entry + 4, 4);
    const uint64_t bytes = count * type_width(type);
    uint64_t value = entry + 8;
    if (bytes > 4) {
      outside += bytes;
      if (outside > tiff.size()) continue;
      value = tiff.number(value, 4);
      if (!tiff.has(value, bytes)) return std::nullopt;
    }
    if (tag == orientation_tag && bytes > 0) return first_number(tiff, value, type).value_or(1);
  }
  return std::nullopt;
}

int xmp_orientation(std::string_view xmp) {
  static constexpr std::string_view name = "tiff:Orientation";
  for (size_t at = xmp.find(name); at != std::string_view::npos; at = xmp.find(name, at)) {
    at += name.size();
    std::string_view rest = xmp.substr(at);
    if (rest.starts_with("=\"")) rest.remove_prefix(2);
    else if (rest.starts_with('>')) rest.remove_prefix(1);
    else continue;
    if (!rest.empty() && rest[0] >= '0' && rest[0] <= '9') return rest[0] - '0';
  }
  return 1;
}

}  // namespace

int picture_orientation(const std::string& exif, const std::string& xmp) {
  using namespace std::string_view_literals;
  std::string_view bytes = exif;
  for (int i = 0; i < 2 && bytes.starts_with("Exif\0\0"sv); ++i) bytes.remove_prefix(6);
  std::optional<double> found;
  if (!bytes.empty()) {
    const std::string_view start = bytes.substr(0, 4);
    const bool big_endian = start.starts_with("MM"), little_endian = start.starts_with("II");
    const std::string_view version = start.size() == 4 ? start.substr(2) : ""sv;
    if (!(big_endian || little_endian) || !(version == "\0*"sv || version == "*\0"sv) || bytes.size() < 8) return 1;
    found = tiff_orientation(TiffBytes(bytes, big_endian));
  }
  const double orientation = found ? *found : xmp_orientation(xmp);
  for (int known = 2; known <= 8; ++known)
    if (orientation == known) return known;
  return 1;
}

Image turned(Image image, int orientation) {
  if (orientation == 1) return image;
  const bool swaps = orientation >= 5;              // rows become columns
  const bool from_below = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  const bool from_right = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  Image out;
  out.height = swaps ? image.width : image.height;
  out.width = swaps ? image.height : image.width;
  out.rgb.resize(image.rgb.size());
  // Source of the first pixel, and source distance between vertical and horizontal neighbours.
  const int64_t row = (from_below ? -1 : 1) * image.width * 3, column = from_right ? -3 : 3;
  const int64_t first = (from_below ? image.height - 1 : 0) * image.width * 3 + (from_right ? image.width - 1 : 0) * 3;
  const int64_t down = swaps ? column : row, right = swaps ? row : column;
  uint8_t* to = out.rgb.data();
  for (int64_t y = 0; y < out.height; ++y)
    for (int64_t x = 0; x < out.width; ++x, to += 3) {
      const uint8_t* from = image.rgb.data() + first + y * down + x * right;
      to[0] = from[0], to[1] = from[1], to[2] = from[2];
    }
  return out;
}

}  // namespace blipft
