// Thumbnails for the page: what they show, how large they are, and how many there is room for.
#include <doctest/doctest.h>

#include <array>
#include <cmath>

#include "base/base64.h"
#include "generate/answers/thumbnails.h"
#include "pictures/thumbnail.h"

using namespace blipft;

namespace {

constexpr int64_t kMailed = int64_t{12} << 20;

// Noise is what JPEG makes least of.
Image noise(int64_t width, int64_t height) {
  Image image{height, width, std::vector<uint8_t>(static_cast<size_t>(height * width * 3))};
  uint32_t state = 1;
  for (uint8_t& value : image.rgb) value = static_cast<uint8_t>((state = state * 1664525 + 1013904223) >> 24);
  return image;
}

// Smooth: a JPEG keeps it.
Image slope(int64_t width, int64_t height) {
  Image image{height, width, {}};
  for (int64_t y = 0; y < height; ++y)
    for (int64_t x = 0; x < width; ++x)
      for (const int64_t value : {x * 255 / width, y * 255 / height, int64_t{128}}) image.rgb.push_back(static_cast<uint8_t>(value));
  return image;
}

std::vector<PromptedSample> prompts_of(int64_t pictures, int64_t each) {
  std::vector<PromptedSample> prompts;
  for (int64_t i = 0; i < pictures * each; ++i) prompts.push_back({.name = "picture " + std::to_string(i / each), .picture = i});
  return prompts;
}

std::vector<uint8_t> bytes_of(const std::string& base64) {
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::vector<uint8_t> bytes;
  uint32_t bits = 0, count = 0;
  for (const char c : base64) {
    if (c == '=') break;
    bits = bits << 6 | static_cast<uint32_t>(digits.find(c)), count += 6;
    if (count >= 8) bytes.push_back(static_cast<uint8_t>(bits >> (count -= 8)));
  }
  return bytes;
}

Image decoded(const std::string& base64) {
  const std::vector<uint8_t> bytes = bytes_of(base64);
  return decode_image(bytes.data(), bytes.size(), "thumbnail", {});
}

}  // namespace

TEST_SUITE("thumbnails") {
  TEST_CASE("base64 is RFC 4648's") {
    const auto of = [](const std::string& text) {
      return base64_of({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
    };
    const std::pair<const char*, const char*> vectors[] = {{"", ""}, {"f", "Zg=="}, {"fo", "Zm8="}, {"foo", "Zm9v"},
                                                           {"foob", "Zm9vYg=="}, {"fooba", "Zm9vYmE="}, {"foobar", "Zm9vYmFy"},
                                                           {"\xff\xfe\xfd", "//79"}};
    for (const auto& [text, expected] : vectors) CHECK(of(text) == expected);
  }

  TEST_CASE("a thumbnail is the picture, smaller") {
    for (const auto& [width, height, maximum, small_width, small_height] :
         {std::array<int64_t, 5>{640, 480, 240, 240, 180}, {480, 640, 240, 180, 240}, {100, 50, 240, 100, 50}, {3000, 2, 64, 64, 1}}) {
      const std::vector<uint8_t> jpeg = thumbnail_jpeg(slope(width, height), maximum);
      const Image image = decode_image(jpeg.data(), jpeg.size(), "thumbnail", {});
      CHECK(image.width == small_width);
      CHECK(image.height == small_height);
      const Image expected = slope(small_width, small_height);
      double sum = 0;
      for (size_t i = 0; i < image.rgb.size(); ++i) sum += std::abs(image.rgb[i] - expected.rgb[i]);
      // A value of such a slope is off by half a step where pixels begin, and by JPEG's quantisation of flat blocks.
      if (small_height > 1) CHECK(sum / static_cast<double>(image.rgb.size()) < 4);
    }
  }

  TEST_CASE("one a picture, on whichever rank, by its name") {
    const auto prompts = prompts_of(3, 2);
    Thumbnails first(prompts, 2), second(prompts, 2);
    first.add(0, slope(640, 480));
    first.add(1, slope(64, 48));           // of the same picture
    second.add(5, slope(48, 64));
    const auto found = Thumbnails::of_ranks(prompts, {first.bytes(), second.bytes()});
    REQUIRE(found.size() == 2);
    CHECK(decoded(found.at("picture 0")).width == 240);
    CHECK(decoded(found.at("picture 2")).height == 64);
  }

  TEST_CASE("a page can be mailed, however many pictures there are [slow]") {
    for (const int64_t pictures : {900, 4000}) {
      const auto prompts = prompts_of(pictures, 1);
      Thumbnails thumbnails(prompts, 1);
      const Image image = noise(320, 240);
      for (int64_t i = 0; i < pictures; ++i) thumbnails.add(i, image);
      const auto found = Thumbnails::of_ranks(prompts, {thumbnails.bytes()});
      CHECK(found.size() > 200);
      int64_t on_page = 0;
      for (const auto& [name, base64] : found) on_page += static_cast<int64_t>(base64.size());
      CHECK(on_page <= kMailed);
      CHECK(decoded(found.begin()->second).width == static_cast<int64_t>(240 * std::sqrt(800.0 / static_cast<double>(pictures))));
    }
  }
}
