// A picture: decoding, resizing, and the size that its header tells.
#include "blipft/pictures.h"
#include "fuzz/fuzz_target.h"

BLIPFT_FUZZ_TARGET(picture) {
  using namespace blipft;
  for (const DecodeSettings settings : {DecodeSettings{true, true}, DecodeSettings{false, false}})
    testing::refuses_or_takes([&] {
      const auto* const bytes = reinterpret_cast<const uint8_t*>(input.data());
      const PictureSize size = picture_size(encoded_picture(bytes, input.size()), "picture", settings);
      const Image image = decode_image(bytes, input.size(), "picture", settings);
      if (size != PictureSize{image.height, image.width}) std::abort();
      if (static_cast<int64_t>(image.rgb.size()) != image.width * image.height * 3) std::abort();
      (void)resize_picture(image, 8, 8);
    });
}
