// Pictures: decoding and resizing against PIL's own results (the golden set "images"),
// and the photos of the shared data against transformers' BlipImageProcessor.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "blipft/error.h"
#include "blipft/pictures.h"
#include "pictures/image_webp.h"
#include "support/error_message.h"
#include "support/golden_files.h"
#include "support/temporary_directory.h"

using namespace blipft;
using testing::golden_path;
using testing::message_of;
using testing::TemporaryDirectory;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

std::vector<uint8_t> read_bytes(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  REQUIRE_MESSAGE(in.good(), "cannot open " << file);
  return {std::istreambuf_iterator<char>(in), {}};
}

json golden_index() {
  std::ifstream in(golden_path("images/index.json"));
  REQUIRE(in.good());
  return json::parse(in);
}

Image decode_file(const std::string& file, const DecodeSettings& settings = {}) {
  const auto bytes = read_bytes(file);
  return decode_image(bytes.data(), bytes.size(), file, settings);
}

/// The record of `file` with these settings; where there is none they give what the default gives, the first record.
const json& decode_record(const std::vector<json>& records, const DecodeSettings& settings) {
  const std::string transparency = settings.white_background ? "white" : "drop";
  for (const json& record : records)
    if (record["exif_orientation"] == json(settings.exif_orientation) && record["transparency"] == json(transparency))
      return record;
  return records.front();
}

int largest_difference(const std::vector<uint8_t>& a, const std::vector<uint8_t>& b) {
  REQUIRE(a.size() == b.size());
  int largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(int(a[i]) - int(b[i])));
  return largest;
}

uint32_t crc32(const std::vector<uint8_t>& bytes) {
  uint32_t crc = 0xffffffffu;
  for (uint8_t byte : bytes) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (0xedb88320u & (0u - (crc & 1)));
  }
  return ~crc;
}

std::string captions_directory() {
  const char* shared = std::getenv("BLIPFT_SHARED");
  return std::string(shared ? shared : "../shared") + "/data/captions/";
}

}  // namespace

TEST_SUITE("image") {
  TEST_CASE("decoded pixels are PIL's") {
    const json index = golden_index();
    std::map<std::string, std::vector<json>> files;
    for (const json& record : index["decode"]) files[record["file"]].push_back(record);
    REQUIRE(files.size() > 110);
    int64_t differ = 0;
    for (const auto& [file, records] : files) {
      CAPTURE(file);
      CHECK(records.front()["exif_orientation"] == json(true));
      CHECK(records.front()["transparency"] == json("white"));
      for (const bool turn : {true, false})
        for (const bool white : {true, false}) {
          CAPTURE(turn);
          CAPTURE(white);
          const json& record = decode_record(records, {turn, white});
          const Image image = decode_file(golden_path("images/" + file), {turn, white});
          CHECK(image.width == record["width"].get<int64_t>());
          CHECK(image.height == record["height"].get<int64_t>());
          CHECK(picture_size_of_file(golden_path("images/" + file), {turn, white}) == PictureSize{image.height, image.width});
          // Equal: the default integer DCT and the triangle ("fancy") chroma filter give the same bits in every
          // libjpeg-turbo, and PNG is lossless.
          CHECK(largest_difference(image.rgb, read_bytes(golden_path("images/" + record["expected"].get<std::string>()))) == 0);
          differ += &record != &records.front();
        }
    }
    CHECK(differ > 100);                        // or the settings would not matter
  }

  TEST_CASE("WebP: decoded pixels are PIL's") {
    const json index = golden_index();
    REQUIRE(index["webp"].size() >= 10);
    if (!reads_webp()) {
      const std::string message = message_of([] { decode_file(golden_path("images/lossy.webp")); });
      CHECK_MESSAGE(message.find("lossy.webp: it is a WebP, and this program was built without libwebp") !=
                        std::string::npos, message);
      std::cout << "SKIPPED: WebP: decoded pixels are PIL's (built without libwebp)" << std::endl;
      return;
    }
    for (const json& record : index["webp"]) {
      CAPTURE(record.dump());
      const std::string file = record["file"];
      const Image image = decode_file(golden_path("images/" + file), {record["exif_orientation"], record["transparency"] == json("white")});
      CHECK(image.width == record["width"].get<int64_t>());
      CHECK(image.height == record["height"].get<int64_t>());
      CHECK(picture_size_of_file(golden_path("images/" + file), {record["exif_orientation"]}) ==
            PictureSize{image.height, image.width});
      // Lossless pictures are bits; of lossy ones a version of libwebp may round a colour the other way.
      const int maximum = file.starts_with("lossy") ? 1 : 0;
      CHECK(largest_difference(image.rgb, read_bytes(golden_path("images/" + record["expected"].get<std::string>()))) <= maximum);
    }
    for (const json& file : index["broken_webp"]) {
      CAPTURE(file.dump());
      const std::string name = golden_path("images/" + file.get<std::string>());
      CHECK(message_of([&] { decode_file(name); }).starts_with("cannot decode the picture " + name));
    }
  }

  TEST_CASE("resized pixels are PIL's, bit for bit") {
    const json index = golden_index();
    REQUIRE(index["resize"].size() >= 14);
    for (const json& record : index["resize"]) {
      const std::string expected = record["expected"];
      CAPTURE(expected);
      const Image image = resize_picture(decode_file(golden_path("images/" + record["file"].get<std::string>())), record["width"],
                                         record["height"]);
      CHECK(image.width == record["width"].get<int64_t>());
      CHECK(largest_difference(image.rgb, read_bytes(golden_path("images/" + expected))) == 0);
    }
  }

  TEST_CASE("sizes are read from headers alone") {
    // A large orientation and thumbnail segment before the frame, and pixels that are not read.
    const auto small = read_bytes(golden_path("images/orientation_6.jpg"));
    std::vector<uint8_t> large(small.begin(), small.begin() + 2);
    for (int i = 0; i < 3; ++i) {
      const uint8_t head[] = {0xff, 0xed, 0xff, 0xff};
      large.insert(large.end(), head, head + 4);
      large.resize(large.size() + 0xfffd);
    }
    large.insert(large.end(), small.begin() + 2, small.end());
    large.resize(large.size() + (1 << 20));
    int64_t end = 0;
    EncodedPicture picture = encoded_picture(large.data(), large.size());
    picture.read = [&, read = picture.read](int64_t offset, void* out, int64_t bytes) {
      end = std::max(end, offset + bytes);
      read(offset, out, bytes);
    };
    CHECK(picture_size(picture, "large.jpg") == PictureSize{7, 5});
    CHECK(end == 512 << 10);
    // The size of a cut file is known, but not that of a cut header.
    auto bytes = read_bytes(golden_path("images/rgb.png"));
    CHECK_THROWS_AS(picture_size(encoded_picture(bytes.data(), bytes.size() / 2), "cut.png"), UserError);
    CHECK(picture_size(encoded_picture(bytes.data(), 33), "cut.png") == PictureSize{13, 19});
    for (const char* file : {"cut_header.jpg", "cut_header.png", "text.jpg", "empty.jpg"}) {
      const std::string name = golden_path(std::string("images/") + file);
      CHECK(message_of([&] { (void)picture_size_of_file(name); }) == message_of([&] { decode_file(name); }));
    }
    CHECK(message_of([] { (void)picture_size_of_file("no/such.jpg"); }).find("no/such.jpg") != std::string::npos);
  }

  TEST_CASE("broken files are refused by name") {
    const json index = golden_index();
    REQUIRE(index["broken"].size() >= 9);
    for (const json& record : index["broken"]) {
      const std::string file = record;
      CAPTURE(file);
      const auto bytes = read_bytes(golden_path("images/" + file));
      const std::string message = message_of([&] { decode_image(bytes.data(), bytes.size(), "shard/" + file); });
      CHECK_MESSAGE(message.find("shard/" + file) != std::string::npos, message);
    }
  }

  TEST_CASE("no cut of a file gets through or crashes") {
    for (const char* file : {"baseline_420.jpg", "progressive.jpg", "cmyk_adobe.jpg", "palette.png",
                             "interlaced_rgb.png", "orientation_behind_text.jpg", "orientation_raw_profile.png",
                             "palette_trns.png"}) {
      const auto bytes = read_bytes(golden_path(std::string("images/") + file));
      for (size_t size = 0; size + 1 < bytes.size(); size += 7) {
        CAPTURE(file);
        CAPTURE(size);
        // A copy, so that sanitizers see a read past the end.
        const std::vector<uint8_t> part(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
        CHECK_THROWS_AS(decode_image(part.data(), part.size(), file), UserError);
      }
    }
  }

  TEST_CASE("no damage to metadata crashes or loses the picture") {
    const auto good = read_bytes(golden_path("images/orientation_behind_text.jpg"));
    const size_t begin = 12, end = begin + 46;  // of the EXIF directory
    for (size_t at = begin; at < end; ++at)
      for (const int value : {0, 1, 0x7f, 0xff}) {
        CAPTURE(at);
        CAPTURE(value);
        std::vector<uint8_t> bytes(good.begin(), good.end());
        bytes[at] = static_cast<uint8_t>(value);
        const Image image = decode_image(bytes.data(), bytes.size(), "damaged.jpg");
        CHECK(image.height * image.width == 35);
      }
  }

  TEST_CASE("photos as BlipImageProcessor prepares them") {
    const json photos = golden_index()["photos"];
    REQUIRE(photos.size() == 86);
    if (!fs::exists(captions_directory())) {
      std::cout << "SKIPPED: photos as BlipImageProcessor prepares them (no " << captions_directory() << ")\n";
      return;
    }
    const ImageProcessor processor;
    double decode_seconds = 0, resize_seconds = 0;
    const auto now = [] { return std::chrono::steady_clock::now(); };
    for (const json& record : photos) {
      const std::string file = captions_directory() + record["file"].get<std::string>();
      CAPTURE(file);
      const auto start = now();
      const Image photo = decode_file(file);
      const auto decoded = now();
      const Image small = resize_picture(photo, processor.image_size, processor.image_size);
      decode_seconds += std::chrono::duration<double>(decoded - start).count();
      resize_seconds += std::chrono::duration<double>(now() - decoded).count();
      CHECK(crc32(small.rgb) == record["crc32"].get<uint32_t>());
      if (!record.contains("values")) continue;
      for (const json& value : record["values"]) {
        const int64_t y = value[0], x = value[1], c = value[2];
        const double pixel = small.rgb[(y * small.width + x) * 3 + c];
        // The golden values are rounded to 6 decimals and were computed in float32.
        CHECK((pixel / 255 - processor.statistics.mean[c]) / processor.statistics.std[c] ==
              doctest::Approx(value[3].get<double>()).epsilon(2e-6).scale(1));
      }
    }
    std::cout << "photos of 512 px: decode " << 1e3 * decode_seconds / 86 << " ms, resize " << 1e3 * resize_seconds / 86
              << " ms each, one core\n";
  }

  TEST_CASE("preprocessor_config.json") {
    TemporaryDirectory directory;
    const std::string file = (directory.path / "preprocessor_config.json").string();
    const auto write = [&](const std::string& text) { std::ofstream(file) << text; };
    const auto load = [&] { return ImageProcessor::from_directory(directory.path.string()); };
    const auto message = [&](const std::string& text) {
      write(text);
      return message_of([&] { load(); });
    };
    const auto names = [&](const std::string& text, const std::vector<std::string>& parts) {
      const std::string found = message(text);
      CAPTURE(found);
      CHECK(found.find(file) != std::string::npos);
      for (const std::string& part : parts) {
        CAPTURE(part);
        CHECK(found.find(part) != std::string::npos);
      }
    };

    CHECK(load().image_size == 224);  // no file: the defaults
    CHECK(load().statistics.mean[1] == doctest::Approx(0.4578275));
    write(R"({"size": {"height": 384, "width": 384}, "image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.25, 0.3],
              "resample": 3, "rescale_factor": 0.00392156862745098, "do_resize": true, "do_rescale": true,
              "do_normalize": true, "do_convert_rgb": true, "image_processor_type": "BlipImageProcessor"})");
    CHECK(load().image_size == 384);
    CHECK(load().statistics.mean[2] == doctest::Approx(0.3));
    CHECK(load().statistics.std[1] == doctest::Approx(0.25));
    write(R"({"size": 364})");
    CHECK(load().image_size == 364);

    names("{", {"JSON"});
    names("[]", {"object"});
    names(R"({"size": {"height": 224, "width": 336}})", {"size", "336"});
    names(R"({"size": {"shortest_edge": 224}})", {"size", "shortest_edge"});
    names(R"({"size": -4})", {"size", "-4"});
    names(R"({"resample": 2})", {"resample", "2", "3"});
    names(R"({"rescale_factor": 0.5})", {"rescale_factor", "0.5"});
    names(R"({"do_normalize": false})", {"do_normalize", "false", "true"});
    names(R"({"do_center_crop": true})", {"do_center_crop", "true", "false"});
    names(R"({"image_mean": [0.5, 0.5]})", {"image_mean", "[0.5,0.5]"});
    names(R"({"image_std": [0.5, 0, 0.5]})", {"image_std", "0"});
  }

  TEST_CASE("processor_config.json holds the same settings one level down, and takes precedence") {
    TemporaryDirectory directory;
    directory.write("preprocessor_config.json", R"({"size": {"height": 56, "width": 56}})");
    const auto size = [&] { return ImageProcessor::from_directory(directory.path.string()).image_size; };
    directory.write("processor_config.json", R"({"num_query_tokens": 32})");
    CHECK(size() == 56);
    directory.write("processor_config.json",
                    R"({"image_processor": {"size": {"height": 98, "width": 98}}, "num_query_tokens": 32})");
    CHECK(size() == 98);
  }

  TEST_CASE("processor files of pictures of any size, and of bilinear ones") {
    TemporaryDirectory directory;
    const auto load = [&](const std::string& text, const ImageProcessor& defaults) {
      directory.write("preprocessor_config.json", text);
      return ImageProcessor::from_directory(directory.path.string(), defaults);
    };
    ImageProcessor any_size, square;
    any_size.patches.patch = 14;
    square.resize.filter = ResizeFilter::bilinear;

    // As Qwen3-VL, Qwen2.5-VL and Gemma 3 publish them.
    const ImageProcessor qwen3 = load(R"({"size": {"longest_edge": 16777216, "shortest_edge": 65536}, "patch_size": 16,
        "temporal_patch_size": 2, "merge_size": 2, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
        "processor_class": "Qwen3VLProcessor", "image_processor_type": "Qwen2VLImageProcessorFast"})", any_size);
    CHECK(qwen3.patches.min_pixels == 65536);
    CHECK(qwen3.patches.max_pixels == 16777216);
    CHECK(qwen3.patches.patch == 16);
    CHECK(qwen3.statistics.std[1] == 0.5f);
    const ImageProcessor qwen25 = load(R"({"min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14, "merge_size": 2,
        "size": {"min_pixels": 1, "max_pixels": 2}, "temporal_patch_size": 2})", any_size);
    CHECK(qwen25.patches.min_pixels == 3136);
    CHECK(qwen25.patches.max_pixels == 12845056);
    CHECK(qwen25.statistics.mean[0] == 0.48145466f);
    CHECK(load("{}", any_size).patches.max_pixels == 1003520);
    CHECK(load(R"({"do_convert_rgb": null, "do_pan_and_scan": null, "image_processor_type": "Gemma3ImageProcessor",
        "image_seq_length": 256, "pan_and_scan_max_num_crops": null, "resample": 2, "size": {"height": 896, "width": 896}})",
               square).image_size == 896);

    const auto names = [&](const ImageProcessor& defaults, const std::string& text, const std::vector<std::string>& parts) {
      const std::string found = message_of([&] { (void)load(text, defaults); });
      CAPTURE(found);
      CHECK(found.starts_with(directory / "preprocessor_config.json" + ": "));
      for (const std::string& part : parts) CHECK(found.find(part) != std::string::npos);
    };
    names(square, R"({"do_pan_and_scan": true})", {"key \"do_pan_and_scan\" is true, expected false"});
    names(square, R"({"resample": 3})", {"key \"resample\" is 3, expected 2 (bilinear)"});
    names(any_size, R"({"resample": 2})", {"key \"resample\" is 2, expected 3 (bicubic)"});
    names(any_size, R"({"size": {"height": 56, "width": 56}})", {"key \"size\"", "shortest_edge"});
    names(any_size, R"({"size": 56})", {"key \"size\" is 56"});
    names(any_size, R"({"max_pixels": 0})", {"key \"max_pixels\" is 0"});
    names(any_size, R"({"patch_size": 2000})", {"key \"patch_size\" is 2000, expected a whole number from 1 to 1024"});
    names(any_size, R"({"min_pixels": 4000, "max_pixels": 3999})", {"found pictures of 4000 to 3999 pixels"});
    names(any_size, R"({"min_pixels": 1, "max_pixels": 783})", {"one block of 28 x 28 pixels"});
  }
}
