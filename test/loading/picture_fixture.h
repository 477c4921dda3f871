// Fixtures of tests with pictures in texts: files of pictures, records that name them, and their reader.
#pragma once

#include <doctest/doctest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "loading/loader_fixture.h"
#include "loading/picture_reader.h"
#include "loading/text_survey.h"
#include "pictures/picture_patches.h"
#include "pictures/thumbnail.h"
#include "support/temporary_directory.h"
#include "text/chat_template.h"

namespace blipft::testing {

/// Writes "#" for a picture.
constexpr const char* kPictureTemplate =
    "{% for m in messages %}[{{ m.role[0] }}]{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
    "{% if part.type == 'image' %}#{% elif 'text' in part %}{{ part.text }}{% endif %}{% endfor %}{% endif %}!"
    "{% endfor %}{% if add_generation_prompt %}[a]{% endif %}";

inline TextSettings picture_text_settings() {
  TextSettings settings;
  settings.chat_template = std::make_shared<const ChatTemplate>(kPictureTemplate, "t.jinja");
  settings.pictures_in_texts = true;
  return settings;
}

/// A picture of random colours.
inline Image random_picture(int64_t height, int64_t width, uint32_t seed) {
  std::mt19937 random(seed);
  Image image{height, width, std::vector<uint8_t>(static_cast<size_t>(height * width * 3))};
  for (uint8_t& value : image.rgb) value = static_cast<uint8_t>(random());
  return image;
}

inline void write_picture(const TemporaryDirectory& folder, const std::string& name, const Image& image) {
  const std::vector<uint8_t> jpeg = thumbnail_jpeg(image, max_picture_side);
  folder.write(name, std::string(jpeg.begin(), jpeg.end()));
}

inline ModelInputs picture_inputs() {
  return {.text = {.vocabulary = 256, .max_tokens = 100000, .pictures = true, .picture_id = '@', .position_axes = 3,
                   .last_keys = true},
          .patches = {.side = 2, .merge = 2, .window = 3}};
}

/// Patches of 2 x 2 pixels, cells of 4 x 4; the text of a picture is "<", "@" for each cell, and ">".
inline PictureReader picture_reader(const ModelInputs& inputs = picture_inputs(), int64_t max_pixels = 400) {
  PictureReader reader{{"#", "<", "@", ">"}, inputs.text.picture_id, inputs.text.max_tokens, inputs.patches, {}, {}};
  reader.processor.patches = {.patch = 2, .merge = 2, .time = 2, .min_pixels = 16, .max_pixels = max_pixels};
  return reader;
}

/// Returns the patches of a picture, cell by cell, computed step by step.
inline std::vector<uint8_t> expected_patches(const std::string& file, const PatchSettings& patches) {
  const std::vector<uint8_t> bytes = read_bytes(file);
  const Image image = decode_image(bytes.data(), bytes.size(), file);
  const PictureSize size = fitted_size({image.height, image.width}, patches, file);
  std::vector<uint8_t> out(static_cast<size_t>(size.height * size.width * 3));
  cut_patches(resize_picture(image, size.width, size.height), patches, out.data());
  return out;
}

}  // namespace blipft::testing
