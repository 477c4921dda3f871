// A picture: JPEG or PNG.
#include "blipft/pictures.h"
#include "fuzz/fuzz_target.h"

BLIPFT_FUZZ_TARGET(picture) {
  using namespace blipft;
  for (const DecodeSettings settings : {DecodeSettings{true, true}, DecodeSettings{false, false}})
    testing::refuses_or_takes([&] {
      const Image image =
          decode_image(reinterpret_cast<const uint8_t*>(input.data()), input.size(), "picture", settings);
      if (static_cast<int64_t>(image.rgb.size()) != image.width * image.height * 3) std::abort();
      (void)resize_picture(image, 8, 8);
    });
}
