// Detection of picture formats; see picture_format.h.
#include "datasets/picture_format.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "blipft/error.h"
#include "datasets/dataset_formats.h"
#include "pictures/image_webp.h"

namespace blipft {
namespace {

std::string lower_suffix(const std::string& name) {
  std::string suffix = std::filesystem::path(name).extension().string();
  std::transform(suffix.begin(), suffix.end(), suffix.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return suffix;
}

using namespace std::string_view_literals;

struct Magic {
  size_t offset;
  std::string_view bytes;
  const char* format;                        ///< empty: the format is supported
};
const Magic kMagics[] = {{0, "\xff\xd8\xff"sv, ""},        {0, "\x89PNG\r\n\x1a\n"sv, ""},
                         {8, "WEBP"sv, ""},                {0, "GIF8"sv, "GIF"},
                         {0, "BM"sv, "BMP"},               {0, "II*\0"sv, "TIFF"},
                         {0, "MM\0*"sv, "TIFF"},           {0, "II+\0"sv, "TIFF"},
                         {0, "MM\0+"sv, "TIFF"},           {4, "ftypavif"sv, "AVIF"},
                         {4, "ftypavis"sv, "AVIF"},        {4, "ftyphei"sv, "HEIC"},
                         {4, "ftypmif1"sv, "HEIC"},        {4, "ftyphev"sv, "HEIC"},
                         {0, "\0\0\0\x0cjP  "sv, "JPEG 2000"}, {0, "\xff\x4f\xff\x51"sv, "JPEG 2000"},
                         {0, "\0\0\0\x0cJXL "sv, "JPEG XL"},   {0, "8BPS"sv, "PSD"},
                         {0, "<svg"sv, "SVG"}};

// Count, formats and first names of unsupported pictures.
struct Found {
  int64_t count = 0;
  std::map<std::string, int64_t> formats;
  std::string names;
};

}  // namespace

bool has_supported_suffix(const std::string& name) {
  static const std::set<std::string> known = {".jpg", ".jpeg", ".png", ".webp"};
  return known.contains(lower_suffix(name));
}

std::string unsupported_suffix(const std::string& name) {
  static const std::map<std::string, std::string> formats = {
      {".gif", "GIF"},  {".bmp", "BMP"},  {".tif", "TIFF"},      {".tiff", "TIFF"},     {".heic", "HEIC"},  {".heif", "HEIC"},
      {".avif", "AVIF"}, {".jp2", "JPEG 2000"}, {".jxl", "JPEG XL"}, {".psd", "PSD"}, {".svg", "SVG"}, {".ppm", "PNM"},
      {".pgm", "PNM"},  {".pnm", "PNM"}};
  const auto found = formats.find(lower_suffix(name));
  return found == formats.end() ? "" : found->second;
}

std::string unsupported_format(const std::string& name, std::string_view first_bytes) {
  for (const Magic& magic : kMagics)
    if (first_bytes.size() >= magic.offset && first_bytes.substr(magic.offset).starts_with(magic.bytes))
      return magic.bytes == "WEBP" && !reads_webp() ? "WebP, built without libwebp" : magic.format;
  return unsupported_suffix(name);
}

void refuse_unsupported_pictures(const std::string& location, int64_t count, const std::function<std::string(int64_t)>& name,
                                 const std::function<std::string(int64_t)>& first_bytes) {
  constexpr int64_t kLookedInto = 256, kNamed = 5;
  std::set<std::string> seen;                // a picture may have several captions, and is counted once
  Found found;
  const auto look = [&](int64_t i) {
    const std::string file = name(i);
    if (!seen.insert(file).second) return;
    const std::string format = unsupported_format(file, first_bytes(i));
    if (format.empty()) return;
    ++found.formats[format];
    if (++found.count <= kNamed) found.names += concat(found.names.empty() ? "" : ", ", brief(file));
  };
  for (int64_t i = 0; i < count; ++i)
    if (!has_supported_suffix(name(i))) look(i);
  for (const int64_t i : spread_samples(count, kLookedInto)) look(i);
  if (found.count == 0) return;
  for (int64_t i = 0; i < count; ++i) look(i);
  std::string formats;
  for (const auto& [format, pictures] : found.formats)
    formats += concat(formats.empty() ? "" : ", ", pictures, " ", format);
  throw UserError(concat(location, ": found ", counted(found.count, "picture"), " in unsupported formats (", formats,
                         ") among ", seen.size(), ": ", found.names, found.count > kNamed ? ", ..." : "", ", expected JPEG, PNG or WebP. "
                         "Convert them, or remove them from the data."));
}

}  // namespace blipft
