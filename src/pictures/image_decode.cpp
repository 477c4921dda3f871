// decode_image: decodes JPEG with libjpeg, PNG with libpng and WebP (image_webp.cpp) into the pixels that PIL gives a
// training script.
//
// Both libraries report errors with longjmp. Therefore each stage between setjmp and return holds only plain values;
// memory and library handles belong to owner objects outside of the stage.
#include <algorithm>
#include <cctype>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include <jpeglib.h>
#include <jerror.h>
#include <png.h>

#include "blipft/error.h"
#include "blipft/pictures.h"
#include "pictures/image_orientation.h"
#include "pictures/image_pixels.h"
#include "pictures/image_webp.h"

namespace blipft {
namespace {

/// Appends a row and returns its start. The first call reserves capacity for `rows` rows, but rows are only added as
/// they are decoded, because a short file may claim any size.
uint8_t* add_row(std::vector<uint8_t>& pixels, int64_t row_bytes, int64_t rows) {
  if (pixels.empty()) pixels.reserve(static_cast<size_t>(row_bytes * rows));
  pixels.resize(pixels.size() + static_cast<size_t>(row_bytes));
  return pixels.data() + pixels.size() - row_bytes;
}

// ---------------------------------------------------------------- JPEG

/// Owns a libjpeg decompressor. libjpeg calls back with `info.err`, which is the first member of `error`.
class JpegReader {
 public:
  JpegReader(const uint8_t* bytes, size_t size) : bytes_(bytes), size_(size) {
    info_.err = jpeg_std_error(&error_.base);
    error_.base.error_exit = [](j_common_ptr info) { raise(info); };
    watch_.progress_monitor = watch_scans;
    error_.base.emit_message = [](j_common_ptr info, int level) {
      if (level < 0 && loses_pixels(info->err->msg_code)) raise(info);
    };
  }
  ~JpegReader() { jpeg_destroy_decompress(&info_); }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  /// Each stage returns false if the file is broken; message() gives the reason.
  /// `metadata`: keep the markers that orientation() reads.
  bool read_header(bool metadata) {
    if (setjmp(error_.jump)) return false;
    jpeg_create_decompress(&info_);
    info_.progress = &watch_;
    info_.mem->max_memory_to_use = max_jpeg_bytes;
    if (metadata) jpeg_save_markers(&info_, JPEG_APP0 + 1, 0xffff);
    jpeg_mem_src(&info_, const_cast<uint8_t*>(bytes_), static_cast<unsigned long>(size_));  // const in newer versions
    jpeg_read_header(&info_, TRUE);
    return true;
  }
  bool start() {
    if (setjmp(error_.jump)) return false;
    info_.out_color_space = components() == 4 ? JCS_CMYK : JCS_RGB;
    jpeg_start_decompress(&info_);
    return true;
  }
  bool read_row(uint8_t* row) {
    if (setjmp(error_.jump)) return false;
    JSAMPROW rows[1] = {row};
    return jpeg_read_scanlines(&info_, rows, 1) == 1;
  }
  /// Reads up to the end marker, so that a file that lacks only its last bytes is detected.
  bool finish() {
    if (setjmp(error_.jump)) return false;
    return jpeg_finish_decompress(&info_);
  }

  int64_t width() const { return info_.image_width; }
  int64_t height() const { return info_.image_height; }
  /// Returns the bytes that libjpeg needs for the coefficients of a picture with several scans; 0 for a single scan.
  int64_t kept_bytes() {
    if (!jpeg_has_multiple_scans(&info_)) return 0;
    int64_t blocks = 0;
    for (int c = 0; c < info_.num_components; ++c)
      blocks += int64_t{info_.comp_info[c].width_in_blocks} * info_.comp_info[c].height_in_blocks;
    return blocks * int64_t{sizeof(JBLOCK)};
  }
  int components() const { return info_.num_components; }
  /// Call this before finish(), which drops the markers.
  int orientation() const {
    using namespace std::string_view_literals;
    static constexpr auto exif_start = "Exif\0\0"sv, xmp_start = "http://ns.adobe.com/xap/1.0/\0"sv;
    std::string exif, xmp;
    for (auto* marker = info_.marker_list; marker; marker = marker->next) {
      const std::string_view data(reinterpret_cast<const char*>(marker->data), marker->data_length);
      if (data.starts_with(exif_start)) exif += data.substr(exif_start.size());  // long EXIF continues in the next one
      if (data.starts_with(xmp_start)) xmp = data.substr(xmp_start.size());
    }
    return picture_orientation(exif, xmp);
  }
  std::string message() const { return error_.text[0] ? error_.text : "the data end too early"; }

 private:
  struct ErrorState {
    jpeg_error_mgr base;
    std::jmp_buf jump;
    char text[JMSG_LENGTH_MAX];
  };

  /// Returns true for warnings after which libjpeg invents pixels. Other warnings (bytes between markers, unusual
  /// versions) are harmless.
  static bool loses_pixels(int code) {
    return code == JWRN_JPEG_EOF || code == JWRN_HIT_MARKER || code == JWRN_HUFF_BAD_CODE ||
           code == JWRN_ARITH_BAD_CODE || code == JWRN_MUST_RESYNC || code == JWRN_BOGUS_PROGRESSION;
  }
  [[noreturn]] static void raise(j_common_ptr info) {
    auto* state = reinterpret_cast<ErrorState*>(info->err);
    info->err->format_message(info, state->text);
    std::longjmp(state->jump, 1);
  }
  static void watch_scans(j_common_ptr info) {
    if (reinterpret_cast<j_decompress_ptr>(info)->input_scan_number <= max_jpeg_scans) return;
    auto* state = reinterpret_cast<ErrorState*>(info->err);
    std::snprintf(state->text, sizeof state->text, "it has more than %d scans", static_cast<int>(max_jpeg_scans));
    std::longjmp(state->jump, 1);
  }

  const uint8_t* bytes_;
  size_t size_;
  jpeg_decompress_struct info_{};
  ErrorState error_{};
  jpeg_progress_mgr watch_{};
};

/// Converts one row of CMYK (all four values inverted, as Adobe writes them) to RGB, in PIL's integer arithmetic.
void cmyk_row_to_rgb(const uint8_t* cmyk, int64_t width, uint8_t* rgb) {
  for (int64_t x = 0; x < width; ++x, cmyk += 4, rgb += 3) {
    const int white = cmyk[3];  // 255 - K
    for (int c = 0; c < 3; ++c) {
      const int product = (255 - cmyk[c]) * white + 128;
      rgb[c] = static_cast<uint8_t>(white - (((product >> 8) + product) >> 8));  // rounds ink * white / 255
    }
  }
}

/// Reads the header of a JPEG. Returns a picture of its size without pixels.
Image read_jpeg_header(JpegReader& reader, const std::string& name, const DecodeSettings& settings) {
  if (!reader.read_header(settings.exif_orientation)) refuse_picture(name, reader.message());
  const int components = reader.components();
  if (components != 1 && components != 3 && components != 4)
    refuse_picture(name, concat("a JPEG with ", components, " channels; 1 (gray), 3 (colour) or 4 (CMYK) are expected"));
  Image image;
  set_picture_size(image, reader.width(), reader.height(), name);
  if (const int64_t kept = reader.kept_bytes(); kept > max_jpeg_bytes)
    refuse_picture(name, concat("a progressive JPEG of ", image.width, " x ", image.height, " pixels, which takes ", kept,
                      " bytes besides its pixels, at most ", max_jpeg_bytes,
                      " are accepted; store it as a baseline JPEG, or smaller"));
  return image;
}

Image decode_jpeg(const uint8_t* bytes, size_t size, const std::string& name, const DecodeSettings& settings) {
  JpegReader reader(bytes, size);
  Image image = read_jpeg_header(reader, name, settings);
  const int orientation = reader.orientation(), components = reader.components();
  if (!reader.start()) refuse_picture(name, reader.message());
  std::vector<uint8_t> cmyk(components == 4 ? static_cast<size_t>(image.width * 4) : 0);
  for (int64_t y = 0; y < image.height; ++y) {
    uint8_t* row = add_row(image.rgb, image.width * 3, image.height);
    if (!reader.read_row(components == 4 ? cmyk.data() : row)) refuse_picture(name, reader.message());
    if (components == 4) cmyk_row_to_rgb(cmyk.data(), image.width, row);
  }
  if (!reader.finish()) refuse_picture(name, reader.message());
  return turned(std::move(image), orientation);
}

// ---------------------------------------------------------------- PNG

/// Owns a libpng reader over bytes in memory.
class PngReader {
 public:
  PngReader(const uint8_t* bytes, size_t size) : bytes_(bytes), size_(size) {
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, &raise, [](png_structp png, png_const_charp text) {
      // libpng only warns of these errors and continues; without tRNS the pixels would differ.
      if (std::string_view(text).starts_with("tRNS")) png_error(png, text);
    });
    BLIPFT_CHECK(png_, "libpng could not start");
    info_ = png_create_info_struct(png_);
    png_set_read_fn(png_, this, [](png_structp png, png_bytep out, size_t count) {
      auto* self = static_cast<PngReader*>(png_get_io_ptr(png));
      if (count > self->size_ - self->position_) png_error(png, "the file ends too early");
      std::memcpy(out, self->bytes_ + self->position_, count);
      self->position_ += count;
    });
  }
  ~PngReader() { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  /// Reads the header and requests rows of 8 bits per channel (16 bits for 16-bit gray) with 1 to 4 channels: gray,
  /// palette index or RGB. With `alpha`, rows include the alpha channel if the file has one.
  bool read_header(bool alpha) {
    if (setjmp(jump_)) return false;
    if (!info_) return false;
    png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_ALWAYS, kept_chunks, 2);
    png_set_user_limits(png_, 0x7fffffff, 0x7fffffff);  // decode_png checks the number of pixels
    png_set_chunk_cache_max(png_, 64);                  // chunks such as texts are unpacked: at most 256 MiB of them
    png_set_chunk_malloc_max(png_, size_t{4} << 20);
    png_read_info(png_, info_);
    color_ = png_get_color_type(png_, info_);
    depth_ = png_get_bit_depth(png_, info_);
    gray16_ = color_ == PNG_COLOR_TYPE_GRAY && depth_ == 16;
    if (color_ == PNG_COLOR_TYPE_PALETTE) {
      png_set_packing(png_);
      png_get_PLTE(png_, info_, &palette_, &palette_size_);
    } else if (color_ == PNG_COLOR_TYPE_GRAY && depth_ < 8) {
      png_set_expand_gray_1_2_4_to_8(png_);
    }
    if (depth_ == 16 && !gray16_) png_set_strip_16(png_);  // keeps the high byte, as PIL does
    if (!alpha) png_set_strip_alpha(png_);
    passes_ = png_set_interlace_handling(png_);
    return true;
  }
  bool start() {
    if (setjmp(jump_)) return false;
    png_read_update_info(png_, info_);
    return true;
  }
  /// Sets `rows` to [height, row_bytes()].
  bool read_rows(std::vector<uint8_t>& rows) {
    if (setjmp(jump_)) return false;
    if (passes_ > 1) rows.resize(static_cast<size_t>(row_bytes() * height()));
    for (int pass = 0; pass < passes_; ++pass)
      for (int64_t y = 0; y < height(); ++y)
        png_read_row(png_, passes_ > 1 ? rows.data() + y * row_bytes() : add_row(rows, row_bytes(), height()), nullptr);
    png_read_end(png_, info_);  // metadata may follow the pixels
    return true;
  }

  int64_t width() const { return png_get_image_width(png_, info_); }
  int64_t height() const { return png_get_image_height(png_, info_); }
  int64_t row_bytes() const { return static_cast<int64_t>(png_get_rowbytes(png_, info_)); }
  int64_t channels() const { return png_get_channels(png_, info_); }
  bool has_palette() const { return color_ == PNG_COLOR_TYPE_PALETTE; }
  bool gray16() const { return gray16_; }
  bool has_alpha_channel() const { return color_ & PNG_COLOR_MASK_ALPHA; }
  /// Returns a palette color. Indices beyond the end of the palette are black.
  png_color palette(uint8_t index) const { return index < palette_size_ ? palette_[index] : png_color{}; }
  const std::string& message() const { return message_; }
  /// Returns the content of the last tRNS or eXIf chunk. Call this after read_rows().
  std::optional<std::string> chunk(const char* kind) const {
    png_unknown_chunkp chunks = nullptr;
    const int count = png_get_unknown_chunks(png_, info_, &chunks);
    for (int i = count - 1; i >= 0; --i)
      if (!std::strcmp(reinterpret_cast<const char*>(chunks[i].name), kind))
        return std::string(reinterpret_cast<const char*>(chunks[i].data), chunks[i].size);
    return std::nullopt;
  }
  int orientation() const {
    const std::optional<std::string> exif = chunk("eXIf");
    return picture_orientation(exif ? *exif : raw_profile(text("Raw profile type exif")), text("XML:com.adobe.xmp"));
  }

 private:
  static constexpr png_byte kept_chunks[] = "tRNS\0eXIf";  // stored unparsed, because libpng drops unusual contents

  /// Returns the last text with this keyword, or "" if there is none.
  std::string text(const char* keyword) const {
    png_textp texts = nullptr;
    const int count = png_get_text(png_, info_, &texts, nullptr);
    for (int i = count - 1; i >= 0; --i)
      if (!std::strcmp(texts[i].key, keyword)) return texts[i].text;
    return {};
  }
  /// Decodes EXIF that ImageMagick stores as text: three header lines, then hexadecimal digits. Returns "" if it is
  /// broken.
  static std::string raw_profile(const std::string& text) {
    std::string bytes;
    int lines = 0, digits = 0, value = 0;
    for (const char c : text) {
      if (c == '\n') ++lines;
      if (lines < 3 || std::isspace(static_cast<unsigned char>(c))) continue;
      if (!std::isxdigit(static_cast<unsigned char>(c))) return {};
      value = value * 16 + (c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
      if (++digits % 2 == 0) bytes += static_cast<char>(std::exchange(value, 0));
    }
    return bytes;
  }
  [[noreturn]] static void raise(png_structp png, png_const_charp text) {
    auto* self = static_cast<PngReader*>(png_get_error_ptr(png));
    self->message_ = text;
    std::longjmp(self->jump_, 1);
  }

  const uint8_t* bytes_;
  size_t size_;
  size_t position_ = 0;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  png_colorp palette_ = nullptr;
  int palette_size_ = 0, color_ = 0, depth_ = 0, passes_ = 1;
  bool gray16_ = false;
  std::jmp_buf jump_;
  std::string message_ = "libpng could not start";
};

/// Converts the rows of a PNG to RGB.
class PngPixels {
 public:
  /// `white_background`: rows have the file's alpha channel, and tRNS is applied. Construct this after read_rows().
  PngPixels(const PngReader& reader, bool white_background, const std::string& name)
      : channels_(reader.channels()), has_palette_(reader.has_palette()), gray16_(reader.gray16()) {
    for (int i = 0; i < 256; ++i) palette_[i] = reader.palette(static_cast<uint8_t>(i));
    std::fill(std::begin(palette_alpha_), std::end(palette_alpha_), uint8_t{255});
    if (!white_background || reader.has_alpha_channel()) return;
    if (const std::optional<std::string> transparency = reader.chunk("tRNS")) read_transparency(*transparency, name);
  }

  /// Converts one row to RGB; transparent pixels are blended with white.
  void to_rgb(const uint8_t* row, int64_t width, uint8_t* rgb) const {
    const int64_t bytes = gray16_ ? 2 : channels_;
    for (int64_t x = 0; x < width; ++x, row += bytes, rgb += 3) {
      uint8_t alpha = 255;
      if (has_palette_) {
        const png_color color = palette_[*row];
        rgb[0] = color.red, rgb[1] = color.green, rgb[2] = color.blue;
        alpha = palette_alpha_[*row];
      } else if (channels_ >= 3) {
        rgb[0] = row[0], rgb[1] = row[1], rgb[2] = row[2];
      } else {
        // PIL clips 16-bit gray to 255 and does not scale it.
        rgb[0] = rgb[1] = rgb[2] = !gray16_ ? row[0] : row[0] ? 255 : row[1];
      }
      if (channels_ % 2 == 0) alpha = row[channels_ - 1];
      else if (has_key_ && std::equal(rgb, rgb + 3, key_)) alpha = 0;
      if (alpha != 255)
        for (int c = 0; c < 3; ++c) rgb[c] = on_white(rgb[c], alpha);
    }
  }

 private:
  /// Reads tRNS: one alpha per palette entry, or else the transparent colour. As in PIL, the low bytes of this colour
  /// are compared with the converted 8-bit pixels of any depth; a set bit of 1-bit gray is white (255).
  void read_transparency(const std::string& chunk, const std::string& name) {
    if (has_palette_) {
      std::copy_n(chunk.begin(), std::min(chunk.size(), std::size(palette_alpha_)), palette_alpha_);
      return;
    }
    const size_t values = static_cast<size_t>(channels_);
    if (chunk.size() < 2 * values)
      refuse_picture(name, concat("its tRNS chunk has ", chunk.size(), " bytes, at least ", 2 * values, " are expected"));
    for (size_t c = 0; c < 3; ++c) key_[c] = static_cast<uint8_t>(chunk[2 * (c % values) + 1]);
    has_key_ = true;
  }

  int64_t channels_;
  bool has_palette_, gray16_, has_key_ = false;
  png_color palette_[256];
  uint8_t palette_alpha_[256], key_[3] = {};
};

/// Refuses a chunk that is longer than the rest of the file, because libpng allocates its memory before reading it.
void check_chunks(const uint8_t* bytes, size_t size, const std::string& name) {
  for (size_t at = 8; size - at >= 8;) {            // after the signature: length, name, content, checksum
    const size_t length = static_cast<size_t>(bytes[at]) << 24 | static_cast<size_t>(bytes[at + 1]) << 16 |
                          static_cast<size_t>(bytes[at + 2]) << 8 | bytes[at + 3];
    const size_t left = size - at - 8;
    if (length > left || left - length < 4) refuse_picture(name, "the file ends too early");
    if (!std::memcmp(bytes + at + 4, "IEND", 4)) return;
    at += 12 + length;
  }
}

/// Reads the header of a PNG. Returns a picture of its size without pixels.
Image read_png_header(PngReader& reader, const std::string& name, const DecodeSettings& settings) {
  if (!reader.read_header(settings.white_background)) refuse_picture(name, reader.message());
  Image image;
  set_picture_size(image, reader.width(), reader.height(), name);
  return image;
}

Image decode_png(const uint8_t* bytes, size_t size, const std::string& name, const DecodeSettings& settings) {
  check_chunks(bytes, size, name);
  PngReader reader(bytes, size);
  Image image = read_png_header(reader, name, settings);
  if (!reader.start()) refuse_picture(name, reader.message());
  const int64_t pixel_bytes = reader.gray16() ? 2 : reader.channels();
  BLIPFT_CHECK(reader.row_bytes() == image.width * pixel_bytes, name, ": ", reader.channels(), " channels, ",
               reader.row_bytes(), " bytes a row");
  std::vector<uint8_t> rows;
  if (!reader.read_rows(rows)) refuse_picture(name, reader.message());
  const PngPixels pixels(reader, settings.white_background, name);
  // Pixels of three or four channels are converted to RGB in the same buffer, to hold a large picture only once.
  const bool in_place = pixel_bytes >= 3;
  if (!in_place) image.rgb.resize(static_cast<size_t>(image.width * image.height * 3));
  uint8_t* const rgb = in_place ? rows.data() : image.rgb.data();
  for (int64_t y = 0; y < image.height; ++y)
    pixels.to_rgb(rows.data() + y * reader.row_bytes(), image.width, rgb + y * image.width * 3);
  if (in_place) {
    rows.resize(static_cast<size_t>(image.width * image.height * 3));
    image.rgb = std::move(rows);
  }
  return settings.exif_orientation ? turned(std::move(image), reader.orientation()) : image;
}

std::string first_bytes(const uint8_t* bytes, size_t size) {
  std::string text;
  for (size_t i = 0; i < size && i < 8; ++i) {
    char hex[4];
    std::snprintf(hex, sizeof hex, "%s%02x", i ? " " : "", bytes[i]);
    text += hex;
  }
  return text;
}

}  // namespace

void refuse_picture(const std::string& name, const std::string& what) {
  throw UserError(concat("cannot decode the picture ", name, ": ", what,
                         "; replace this file or remove it from the dataset"));
}

void set_picture_size(Image& image, int64_t width, int64_t height, const std::string& name) {
  if (width <= 0 || height <= 0) refuse_picture(name, "it has no pixels");
  if (width > max_picture_side || height > max_picture_side || width > max_picture_pixels / height)
    refuse_picture(name, concat(width, " x ", height, " pixels, at most ", max_picture_pixels, " pixels, and ",
                                max_picture_side, " a side, are accepted"));
  image.width = width;
  image.height = height;
}

PictureSize jpeg_size(const uint8_t* bytes, size_t size, const std::string& name, const DecodeSettings& settings) {
  JpegReader reader(bytes, size);
  const Image image = read_jpeg_header(reader, name, settings);
  return turned_size(image, reader.orientation());
}

PictureSize png_size(const uint8_t* bytes, size_t size, const std::string& name, const DecodeSettings& settings) {
  PngReader reader(bytes, size);
  const Image image = read_png_header(reader, name, settings);
  return turned_size(image, settings.exif_orientation ? reader.orientation() : 1);
}

PictureFormat picture_format(const uint8_t* bytes, size_t size, const std::string& name) {
  static constexpr uint8_t jpeg_start[] = {0xff, 0xd8, 0xff};
  static constexpr uint8_t png_start[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
  if (size == 0) refuse_picture(name, "the file is empty");
  const auto starts_with = [&](const auto& start) {
    return size >= sizeof start && !std::memcmp(bytes, start, sizeof start);
  };
  if (starts_with(jpeg_start)) return PictureFormat::jpeg;
  if (starts_with(png_start)) return PictureFormat::png;
  if (is_webp(bytes, size)) return PictureFormat::webp;
  refuse_picture(name, concat("neither a JPEG nor a PNG nor a WebP (its first bytes are ", first_bytes(bytes, size), ")"));
}

Image decode_image(const uint8_t* bytes, size_t size, const std::string& name, const DecodeSettings& settings) {
  switch (picture_format(bytes, size, name)) {
    case PictureFormat::jpeg: return decode_jpeg(bytes, size, name, settings);
    case PictureFormat::png: return decode_png(bytes, size, name, settings);
    default: return decode_webp(bytes, size, name, settings);
  }
}

}  // namespace blipft
