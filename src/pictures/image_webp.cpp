// decode_webp: uses libwebp if the build has it (the Makefile looks for its headers).
#include "pictures/image_webp.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string_view>

#ifdef BLIPFT_WEBP
#include <webp/decode.h>
#include <webp/demux.h>
#endif

#include "blipft/error.h"
#include "pictures/image_orientation.h"
#include "pictures/image_pixels.h"

namespace blipft {

bool is_webp(const uint8_t* bytes, size_t size) {
  return size >= 12 && !std::memcmp(bytes, "RIFF", 4) && !std::memcmp(bytes + 8, "WEBP", 4);
}

#ifndef BLIPFT_WEBP

bool reads_webp() { return false; }

[[noreturn]] void refuse_webp(const std::string& name) {
  throw UserError(concat("cannot decode the picture ", name, ": it is a WebP, and this program was built without libwebp; ",
                         "install libwebp-dev and build again (make setup and make do it), or store it as JPEG or PNG"));
}

Image decode_webp(const uint8_t*, size_t, const std::string& name, const DecodeSettings&) { refuse_webp(name); }

PictureSize webp_size(const EncodedPicture&, const std::string& name, const DecodeSettings&) { refuse_webp(name); }

#else

namespace {

/// Returns the content of the first chunk of this kind, or "" if there is none.
std::string chunk(const EncodedPicture& picture, std::string_view kind) {
  for (int64_t at = 12; picture.size - at >= 8;) {  // after the signature: name, length, content, a padding byte
    uint8_t head[8];
    picture.read(at, head, 8);
    const int64_t length = int64_t{head[4]} | int64_t{head[5]} << 8 | int64_t{head[6]} << 16 | int64_t{head[7]} << 24;
    const int64_t left = picture.size - at - 8;
    if (length > left) return {};
    if (!kind.compare(0, 4, reinterpret_cast<const char*>(head), 4)) {
      std::string content(static_cast<size_t>(length), '\0');
      picture.read(at + 8, content.data(), length);
      return content;
    }
    if (left - length < length % 2) return {};
    at += 8 + length + length % 2;
  }
  return {};
}

int orientation_of(const EncodedPicture& picture) {
  return picture_orientation(chunk(picture, "EXIF"), chunk(picture, "XMP "));
}

const char* reason(VP8StatusCode status) {
  switch (status) {
    case VP8_STATUS_NOT_ENOUGH_DATA:
    case VP8_STATUS_SUSPENDED: return "the data end too early";
    case VP8_STATUS_OUT_OF_MEMORY: return "it takes more memory than there is";
    case VP8_STATUS_UNSUPPORTED_FEATURE: return "it has a feature that libwebp does not know";
    default: return "its data are broken";
  }
}

/// Returns what the first bytes of a file tell. Sets the size of `image`.
WebPBitstreamFeatures read_features(const uint8_t* bytes, size_t size, const std::string& name, Image& image) {
  WebPBitstreamFeatures features;
  const VP8StatusCode status = WebPGetFeatures(bytes, size, &features);
  if (status != VP8_STATUS_OK) refuse_picture(name, reason(status));
  set_picture_size(image, features.width, features.height, name);
  return features;
}

/// Decodes into `pixels` [height, width, channels], with 3 or 4 channels depending on `mode`.
void decode_still(const uint8_t* bytes, size_t size, WEBP_CSP_MODE mode, const Image& image, uint8_t* pixels,
                  const std::string& name) {
  WebPDecoderConfig config;
  BLIPFT_CHECK(WebPInitDecoderConfig(&config), "libwebp could not start");
  const int64_t row = image.width * (mode == MODE_RGBA ? 4 : 3);
  config.output.colorspace = mode;
  config.output.is_external_memory = 1;
  config.output.u.RGBA = {pixels, static_cast<int>(row), static_cast<size_t>(row * image.height)};
  const VP8StatusCode status = WebPDecode(bytes, size, &config);
  if (status != VP8_STATUS_OK) refuse_picture(name, reason(status));
}

/// Decodes the first frame of an animation into `pixels` [height, width, 4].
void decode_first_frame(const uint8_t* bytes, size_t size, const Image& image, uint8_t* pixels, const std::string& name) {
  const WebPData data = {bytes, size};
  const std::unique_ptr<WebPAnimDecoder, void (*)(WebPAnimDecoder*)> decoder(WebPAnimDecoderNew(&data, nullptr),
                                                                            WebPAnimDecoderDelete);
  uint8_t* frame = nullptr;
  int time = 0;
  if (!decoder || !WebPAnimDecoderGetNext(decoder.get(), &frame, &time)) refuse_picture(name, "its data are broken");
  std::memcpy(pixels, frame, static_cast<size_t>(image.width * image.height * 4));
}

}  // namespace

bool reads_webp() { return true; }

PictureSize webp_size(const EncodedPicture& picture, const std::string& name, const DecodeSettings& settings) {
  uint8_t bytes[64];
  const int64_t size = std::min(picture.size, int64_t{sizeof bytes});
  picture.read(0, bytes, size);
  Image image;
  read_features(bytes, static_cast<size_t>(size), name, image);
  return turned_size(image, settings.exif_orientation ? orientation_of(picture) : 1);
}

Image decode_webp(const uint8_t* bytes, size_t size, const std::string& name, const DecodeSettings& settings) {
  Image image;
  const WebPBitstreamFeatures features = read_features(bytes, size, name, image);
  const size_t pixels = static_cast<size_t>(image.width * image.height);
  if (!features.has_alpha && !features.has_animation) {
    // Allocated without initialization, because a short file may claim any size.
    const std::unique_ptr<uint8_t[]> rgb(new uint8_t[pixels * 3]);
    decode_still(bytes, size, MODE_RGB, image, rgb.get(), name);
    image.rgb.assign(rgb.get(), rgb.get() + pixels * 3);
  } else {
    const std::unique_ptr<uint8_t[]> rgba(new uint8_t[pixels * 4]);
    if (features.has_animation) decode_first_frame(bytes, size, image, rgba.get(), name);
    else decode_still(bytes, size, MODE_RGBA, image, rgba.get(), name);
    const bool blends = settings.white_background && features.has_alpha;
    image.rgb.resize(pixels * 3);
    for (size_t i = 0; i < pixels; ++i) {
      const uint8_t alpha = blends ? rgba[4 * i + 3] : uint8_t{255};
      for (size_t c = 0; c < 3; ++c)
        image.rgb[3 * i + c] = alpha == 255 ? rgba[4 * i + c] : on_white(rgba[4 * i + c], alpha);
    }
  }
  if (!settings.exif_orientation) return image;
  return turned(std::move(image), orientation_of(encoded_picture(bytes, size)));
}

#endif

}  // namespace blipft
