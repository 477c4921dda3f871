// Pictures: decoding, resizing, and what a model's processor makes of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "blipft/batch.h"

namespace blipft {

/// 8-bit RGB, [height, width, 3], rows without padding.
struct Image {
  int64_t height = 0, width = 0;
  std::vector<uint8_t> rgb;
};

/// What becomes of a file's metadata. The defaults: what a script's pictures are that come from `datasets` (which turns
/// them) and go through transformers from 5.23 on (which puts them on white).
struct DecodeSettings {
  bool exif_orientation = true;             ///< turn by the EXIF (else XMP) orientation, as exif_transpose does
  bool white_background = true;             ///< what is transparent lies on white; false: transparency is left out, as
                                            ///< convert("RGB") and older transformers do
};
/// What a picture may have: encoded, decoded, and what libjpeg keeps of one with several scans (progressive). They
/// bound the memory of each of data.num_workers threads.
constexpr int64_t most_picture_bytes = int64_t{512} << 20;
constexpr int64_t most_picture_side = 65535;
constexpr int64_t most_picture_pixels = 178956970;  // PIL refuses more as a decompression bomb
constexpr int64_t most_jpeg_bytes = int64_t{256} << 20;
constexpr int64_t most_jpeg_scans = 64;
/// Decodes a JPEG, PNG or WebP (by its first bytes) into RGB as PIL's Image.open(...).convert("RGB") does, after what
/// `settings` ask for. 16-bit gray is clipped, CMYK read as Adobe writes it, as PIL does. EXIF that cannot be read is
/// ignored. `name` is for error messages only. Throws UserError on anything corrupt or truncated; stricter than PIL in
/// that damage which libjpeg papers over with invented pixels counts as corrupt.
Image decode_image(const uint8_t* bytes, size_t size, const std::string& name, const DecodeSettings& settings = {});
/// PIL's Image.resize((width, height), BICUBIC): antialiased, a = -0.5, 8-bit fixed-point passes. Equal bits with
/// Pillow 13; older versions differ by a few levels on pictures much taller than wide (they never do the vertical pass
/// first).
Image resize_bicubic(const Image& image, int64_t width, int64_t height);

/// What preprocessor_config.json (else processor_config.json's "image_processor") says. Missing file: the BLIP-2
/// defaults. Throws UserError naming file, key, found and expected where it asks for what this program does not do.
struct ImageProcessor {
  int64_t image_size = 224;                 ///< both sides
  PixelStatistics statistics = {{0.48145466f, 0.4578275f, 0.40821073f}, {0.26862954f, 0.26130258f, 0.27577711f}};
  static ImageProcessor from_directory(const std::string& model_directory);
};

}  // namespace blipft
