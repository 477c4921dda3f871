// Pictures: decoding, resizing, and the settings of a model's image processor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "blipft/batch.h"

namespace blipft {

/// In pixels.
struct PictureSize {
  int64_t height = 0, width = 0;
  bool operator==(const PictureSize&) const = default;
};

/// 8-bit RGB, [height, width, 3], rows without padding.
struct Image {
  int64_t height = 0, width = 0;
  std::vector<uint8_t> rgb;
};

/// How decode_image() applies a file's metadata and transparency. The defaults give the same pixels as a Python script
/// that loads pictures with `datasets` (which applies the orientation) and processes them with transformers 5.23 or
/// later (which puts them on a white background).
struct DecodeSettings {
  bool exif_orientation = true;             ///< rotate by the EXIF (else XMP) orientation, as exif_transpose does
  bool white_background = true;             ///< true: transparent pixels are blended with white; false: transparency is
                                            ///< ignored, as convert("RGB") and older transformers do
};
/// Limits of a picture: encoded size, decoded size, and the memory that libjpeg needs for a progressive JPEG with
/// several scans. They bound the memory of each of the data.num_workers threads.
constexpr int64_t max_picture_bytes = int64_t{512} << 20;
constexpr int64_t max_picture_side = 65535;
constexpr int64_t max_picture_pixels = 178956970;  // PIL refuses larger pictures as decompression bombs
constexpr int64_t max_jpeg_bytes = int64_t{256} << 20;
constexpr int64_t max_jpeg_scans = 64;
/// Decodes a JPEG, PNG or WebP file into RGB as PIL's Image.open(...).convert("RGB") does, and applies `settings`. The
/// format is detected from the first bytes. As in PIL, 16-bit gray is clipped and CMYK is read as Adobe writes it. EXIF
/// data that cannot be read is ignored. `name` is used only in error messages. Throws UserError on corrupt or truncated
/// data. It is stricter than PIL: damage that libjpeg would fill with invented pixels counts as corrupt.
Image decode_image(const uint8_t* bytes, size_t size, const std::string& name, const DecodeSettings& settings = {});

/// An encoded picture of which only parts are read: read(offset, out, bytes) copies exactly `bytes` bytes.
struct EncodedPicture {
  int64_t size = 0;
  std::function<void(int64_t offset, void* out, int64_t bytes)> read;
};
EncodedPicture encoded_picture(const uint8_t* bytes, size_t size);
/// Returns the size of the picture that decode_image() would return, but reads only the headers: for a JPEG usually the
/// first 64 KiB, for a PNG and a WebP the headers of their chunks. Throws the UserError of decode_image() for a damaged
/// header; other damage is not noticed.
PictureSize picture_size(const EncodedPicture& picture, const std::string& name, const DecodeSettings& settings = {});
/// Returns the picture_size() of a file. Throws UserError naming the file if it cannot be read.
PictureSize picture_size_of_file(const std::string& file, const DecodeSettings& settings = {});

enum class ResizeFilter { bilinear, bicubic };  ///< bicubic: a = -0.5
/// The library whose results are reproduced bit for bit: Pillow 13, or torchvision on a CPU. They differ in the order
/// of the two passes, in the precision of the weights and in the rounding of normalized values.
enum class PixelLibrary { pillow, torchvision };
struct ResizeMethod {
  ResizeFilter filter = ResizeFilter::bicubic;
  PixelLibrary library = PixelLibrary::pillow;
};
/// Resizes with antialiasing in 8-bit fixed-point passes, as PIL's Image.resize((width, height)) and torchvision's
/// resize() of u8 tensors do. Pillow before 13 differs by a few levels on pictures much taller than wide because it
/// never does the vertical pass first.
Image resize_picture(const Image& image, int64_t width, int64_t height, ResizeMethod method = {});

/// How pictures of any size become rows of patches.
struct PatchSettings {
  int64_t patch = 0;                        ///< side of a patch in pixels; 0: all pictures are resized to one size
  int64_t merge = 2;                        ///< side of a block of patches that become one row of the language model
  int64_t time = 2;                         ///< equal slices of a patch, which stand for the frames of a video
  int64_t min_pixels = 3136, max_pixels = 1003520;  ///< limits of a picture's area after resizing
};

/// The settings of a model's image processor, from processor_config.json's "image_processor" or, if that is missing,
/// preprocessor_config.json. Keys that the file lacks keep the values of `defaults`, which the model family chooses:
/// with `patches.patch` set, the file is read as that of a processor of patches. Throws UserError naming file, key,
/// found and expected value if the file requires an operation that this program does not implement.
struct ImageProcessor {
  int64_t image_size = 224;                 ///< height and width of resized pictures without `patches`
  PixelStatistics statistics = {{0.48145466f, 0.4578275f, 0.40821073f}, {0.26862954f, 0.26130258f, 0.27577711f}};
  ResizeMethod resize;                      ///< the filter is the only one that the file may name
  PatchSettings patches;
  static ImageProcessor from_directory(const std::string& model_directory, const ImageProcessor& defaults);
  static ImageProcessor from_directory(const std::string& model_directory);
};

}  // namespace blipft
