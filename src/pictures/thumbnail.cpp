// Thumbnails, written with libjpeg, which reports errors with longjmp: see image_decode.cpp.
#include "pictures/thumbnail.h"

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>

#include <jpeglib.h>

namespace blipft {

namespace {

constexpr int kQuality = 75;

/// Owns a libjpeg compressor and its output. libjpeg calls back with `info.err`, the first member of `error`.
class JpegWriter {
 public:
  JpegWriter() {
    info_.err = jpeg_std_error(&error_.base);
    error_.base.error_exit = [](j_common_ptr info) { std::longjmp(reinterpret_cast<ErrorState*>(info->err)->jump, 1); };
    error_.base.emit_message = [](j_common_ptr, int) {};
  }
  ~JpegWriter() {
    jpeg_destroy_compress(&info_);
    std::free(bytes_);
  }
  JpegWriter(const JpegWriter&) = delete;
  JpegWriter& operator=(const JpegWriter&) = delete;

  /// Returns false if the JPEG cannot be written.
  bool write(const uint8_t* rgb, int64_t width, int64_t height) {
    if (setjmp(error_.jump)) return false;
    jpeg_create_compress(&info_);
    jpeg_mem_dest(&info_, &bytes_, &size_);
    info_.image_width = static_cast<JDIMENSION>(width);
    info_.image_height = static_cast<JDIMENSION>(height);
    info_.input_components = 3;
    info_.in_color_space = JCS_RGB;
    jpeg_set_defaults(&info_);
    jpeg_set_quality(&info_, kQuality, TRUE);
    info_.optimize_coding = TRUE;
    jpeg_start_compress(&info_, TRUE);
    while (info_.next_scanline < info_.image_height) {
      JSAMPROW row = const_cast<uint8_t*>(rgb + int64_t{info_.next_scanline} * width * 3);
      jpeg_write_scanlines(&info_, &row, 1);
    }
    jpeg_finish_compress(&info_);
    return true;
  }
  std::vector<uint8_t> bytes() const { return {bytes_, bytes_ + size_}; }

 private:
  struct ErrorState {
    jpeg_error_mgr base;
    std::jmp_buf jump;
  };
  jpeg_compress_struct info_{};
  ErrorState error_{};
  unsigned char* bytes_ = nullptr;
  unsigned long size_ = 0;
};

}  // namespace

std::vector<uint8_t> thumbnail_jpeg(const Image& image, int64_t max_side) {
  const int64_t side = std::max(image.width, image.height);
  JpegWriter writer;
  if (side <= max_side)
    return writer.write(image.rgb.data(), image.width, image.height) ? writer.bytes() : std::vector<uint8_t>();
  const auto scaled = [&](int64_t length) { return std::max<int64_t>(1, (length * max_side + side / 2) / side); };
  const Image small = resize_picture(image, scaled(image.width), scaled(image.height));
  return writer.write(small.rgb.data(), small.width, small.height) ? writer.bytes() : std::vector<uint8_t>();
}

}  // namespace blipft
