// decode_image: JPEG through libjpeg and PNG through libpng, into the pixels that PIL's convert("RGB") gives.
//
// Both libraries report errors with longjmp, so each stage between setjmp and return holds plain values only; memory
// and library handles live in owners outside of it.
#include <csetjmp>
#include <cstdio>
#include <cstring>

#include <jpeglib.h>
#include <jerror.h>
#include <png.h>

#include "blipft/data.h"
#include "blipft/error.h"

namespace blipft {
namespace {

/// PIL refuses more pixels than this as a decompression bomb.
constexpr int64_t max_pixels = 178956970;

[[noreturn]] void fail(const std::string& name, const std::string& what) {
  throw UserError(concat("cannot decode the picture ", name, ": ", what,
                         "; replace this file or remove it from the dataset"));
}

void allocate(Image& image, int64_t width, int64_t height, const std::string& name) {
  if (width <= 0 || height <= 0) fail(name, "it has no pixels");
  if (width > max_pixels / height)
    fail(name, concat(width, " x ", height, " pixels, at most ", max_pixels, " pixels are accepted"));
  image.width = width;
  image.height = height;
  image.rgb.resize(static_cast<size_t>(width * height * 3));
}

// ---------------------------------------------------------------- JPEG

/// Owner of a libjpeg decompressor. libjpeg calls back with `info.err`, which is the first member of `error`.
class JpegReader {
 public:
  JpegReader(const uint8_t* bytes, size_t size) : bytes_(bytes), size_(size) {
    info_.err = jpeg_std_error(&error_.base);
    error_.base.error_exit = [](j_common_ptr info) { raise(info); };
    error_.base.emit_message = [](j_common_ptr info, int level) {
      if (level < 0 && loses_pixels(info->err->msg_code)) raise(info);
    };
  }
  ~JpegReader() { jpeg_destroy_decompress(&info_); }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  /// Each stage returns false when the file is broken; message() says how.
  bool read_header() {
    if (setjmp(error_.jump)) return false;
    jpeg_create_decompress(&info_);
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
  /// Reads up to the end marker, so that a file cut short in its last bytes is noticed.
  bool finish() {
    if (setjmp(error_.jump)) return false;
    return jpeg_finish_decompress(&info_);
  }

  int64_t width() const { return info_.image_width; }
  int64_t height() const { return info_.image_height; }
  int components() const { return info_.num_components; }
  std::string message() const { return error_.text[0] ? error_.text : "the data end too early"; }

 private:
  struct ErrorState {
    jpeg_error_mgr base;
    std::jmp_buf jump;
    char text[JMSG_LENGTH_MAX];
  };

  /// libjpeg goes on after these with invented pixels. Others (bytes between markers, odd versions) are harmless.
  static bool loses_pixels(int code) {
    return code == JWRN_JPEG_EOF || code == JWRN_HIT_MARKER || code == JWRN_HUFF_BAD_CODE ||
           code == JWRN_ARITH_BAD_CODE || code == JWRN_MUST_RESYNC || code == JWRN_BOGUS_PROGRESSION;
  }
  [[noreturn]] static void raise(j_common_ptr info) {
    auto* state = reinterpret_cast<ErrorState*>(info->err);
    info->err->format_message(info, state->text);
    std::longjmp(state->jump, 1);
  }

  const uint8_t* bytes_;
  size_t size_;
  jpeg_decompress_struct info_{};
  ErrorState error_{};
};

/// One row of CMYK as JPEG files hold it (all four inverted, as Adobe writes them) to RGB, in PIL's integer arithmetic.
void cmyk_row_to_rgb(const uint8_t* cmyk, int64_t width, uint8_t* rgb) {
  for (int64_t x = 0; x < width; ++x, cmyk += 4, rgb += 3) {
    const int white = cmyk[3];  // 255 - K
    for (int c = 0; c < 3; ++c) {
      const int product = (255 - cmyk[c]) * white + 128;
      rgb[c] = static_cast<uint8_t>(white - (((product >> 8) + product) >> 8));  // rounds ink * white / 255
    }
  }
}

Image decode_jpeg(const uint8_t* bytes, size_t size, const std::string& name) {
  JpegReader reader(bytes, size);
  if (!reader.read_header()) fail(name, reader.message());
  const int components = reader.components();
  if (components != 1 && components != 3 && components != 4)
    fail(name, concat("a JPEG with ", components, " channels; 1 (gray), 3 (colour) or 4 (CMYK) are expected"));
  Image image;
  allocate(image, reader.width(), reader.height(), name);
  if (!reader.start()) fail(name, reader.message());
  std::vector<uint8_t> cmyk(components == 4 ? static_cast<size_t>(image.width * 4) : 0);
  for (int64_t y = 0; y < image.height; ++y) {
    uint8_t* row = image.rgb.data() + y * image.width * 3;
    if (!reader.read_row(components == 4 ? cmyk.data() : row)) fail(name, reader.message());
    if (components == 4) cmyk_row_to_rgb(cmyk.data(), image.width, row);
  }
  if (!reader.finish()) fail(name, reader.message());
  return image;
}

// ---------------------------------------------------------------- PNG

/// Owner of a libpng reader over bytes in memory.
class PngReader {
 public:
  PngReader(const uint8_t* bytes, size_t size) : bytes_(bytes), size_(size) {
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, &raise, [](png_structp, png_const_charp) {});
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

  /// Reads the header and asks for rows of 1 or 3 channels without alpha: 8 bit, but 16 bit for 16-bit gray.
  bool read_header() {
    if (setjmp(jump_)) return false;
    if (!info_) return false;
    png_set_user_limits(png_, 0x7fffffff, 0x7fffffff);  // decode_png checks the number of pixels
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
    if (depth_ == 16 && !gray16_) png_set_strip_16(png_);  // the high byte, as PIL takes it
    png_set_strip_alpha(png_);
    passes_ = png_set_interlace_handling(png_);
    return true;
  }
  bool start() {
    if (setjmp(jump_)) return false;
    png_read_update_info(png_, info_);
    return true;
  }
  /// `rows` is [height, row_bytes()].
  bool read_rows(uint8_t* rows) {
    if (setjmp(jump_)) return false;
    for (int pass = 0; pass < passes_; ++pass)
      for (int64_t y = 0; y < height(); ++y) png_read_row(png_, rows + y * row_bytes(), nullptr);
    png_read_end(png_, nullptr);
    return true;
  }

  int64_t width() const { return png_get_image_width(png_, info_); }
  int64_t height() const { return png_get_image_height(png_, info_); }
  int64_t row_bytes() const { return static_cast<int64_t>(png_get_rowbytes(png_, info_)); }
  int64_t channels() const { return png_get_channels(png_, info_); }
  bool has_palette() const { return color_ == PNG_COLOR_TYPE_PALETTE; }
  bool gray16() const { return gray16_; }
  /// Indices past the palette's end are black.
  png_color palette(uint8_t index) const { return index < palette_size_ ? palette_[index] : png_color{}; }
  const std::string& message() const { return message_; }

 private:
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

/// `row` of palette indices, 8-bit gray or big-endian 16-bit gray to RGB.
void gray_row_to_rgb(const PngReader& reader, const uint8_t* row, int64_t width, uint8_t* rgb) {
  for (int64_t x = 0; x < width; ++x, rgb += 3) {
    if (reader.has_palette()) {
      const png_color color = reader.palette(row[x]);
      rgb[0] = color.red, rgb[1] = color.green, rgb[2] = color.blue;
    } else {
      // PIL clips 16-bit gray to 255, it does not scale it.
      const uint8_t value = !reader.gray16() ? row[x] : row[2 * x] ? 255 : row[2 * x + 1];
      rgb[0] = rgb[1] = rgb[2] = value;
    }
  }
}

Image decode_png(const uint8_t* bytes, size_t size, const std::string& name) {
  PngReader reader(bytes, size);
  if (!reader.read_header()) fail(name, reader.message());
  Image image;
  allocate(image, reader.width(), reader.height(), name);
  if (!reader.start()) fail(name, reader.message());
  const int64_t channels = reader.channels();
  const int64_t pixel_bytes = reader.gray16() ? 2 : channels;
  BLIPFT_CHECK(reader.row_bytes() == image.width * pixel_bytes && (channels == 1 || channels == 3),
               name, ": ", channels, " channels, ", reader.row_bytes(), " bytes a row");
  if (channels == 3) {
    if (!reader.read_rows(image.rgb.data())) fail(name, reader.message());
    return image;
  }
  std::vector<uint8_t> rows(static_cast<size_t>(reader.row_bytes() * image.height));
  if (!reader.read_rows(rows.data())) fail(name, reader.message());
  for (int64_t y = 0; y < image.height; ++y)
    gray_row_to_rgb(reader, rows.data() + y * reader.row_bytes(), image.width, image.rgb.data() + y * image.width * 3);
  return image;
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

Image decode_image(const uint8_t* bytes, size_t size, const std::string& name) {
  static constexpr uint8_t jpeg_start[] = {0xff, 0xd8, 0xff};
  static constexpr uint8_t png_start[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
  if (size == 0) fail(name, "the file is empty");
  const auto starts_with = [&](const auto& start) {
    return size >= sizeof start && !std::memcmp(bytes, start, sizeof start);
  };
  if (starts_with(jpeg_start)) return decode_jpeg(bytes, size, name);
  if (starts_with(png_start)) return decode_png(bytes, size, name);
  fail(name, concat("neither a JPEG nor a PNG (its first bytes are ", first_bytes(bytes, size), ")"));
}

}  // namespace blipft
