// Data that is broken on purpose: what leads out of the dataset, is too large, too deep, no file, or out of range. Each
// is refused with file and place, without reading or allocating what it promises.
#include <doctest/doctest.h>

#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include <jpeglib.h>

#include "blipft/loading.h"
#include "blipft/config.h"
#include "blipft/pictures.h"
#include "support/byte_tokenizer.h"
#include "support/error_message.h"
#include "support/golden_files.h"
#include "support/temporary_directory.h"

using namespace blipft;
using testing::contains;
using testing::message_of;
using testing::TemporaryDirectory;
namespace fs = std::filesystem;

namespace {

const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');

std::string read_golden(const std::string& name) {
  std::ifstream in(testing::golden_path(name), std::ios::binary);
  REQUIRE_MESSAGE(in.good(), name);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Returns the error of opening an ImageFolder whose only entry names this file.
std::string opened(const TemporaryDirectory& directory, const std::string& file_name, bool allow_outside = false) {
  directory.write("set/metadata.jsonl", "{\"file_name\":\"" + file_name + "\",\"text\":\"t\"}\n");
  TextSettings settings;
  settings.allow_outside = allow_outside;
  return message_of([&] { open_dataset(directory / "set", DatasetFormat::imagefolder, settings)->read(0); });
}

std::string tar_header(const std::string& name, uint64_t bytes) {
  char header[512] = {};
  std::memcpy(header, name.data(), name.size());
  std::snprintf(header + 124, 13, "%012llo", static_cast<unsigned long long>(bytes));
  header[156] = '0';
  std::memcpy(header + 257, "ustar\0" "00", 8);
  std::memset(header + 148, ' ', 8);
  unsigned sum = 0;
  for (const char byte : header) sum += static_cast<unsigned char>(byte);
  std::snprintf(header + 148, 8, "%06o", sum);
  return {header, sizeof header};
}

std::string decoded(const std::string& bytes) {
  return message_of(
      [&] { (void)decode_image(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), "p.jpg"); });
}

/// A gray progressive JPEG whose coefficients come in scans of their own: each in one, or (from 65 scans on) in two.
std::string jpeg_of_scans(int count) {
  std::vector<jpeg_scan_info> scans = {{1, {0}, 0, 0, 0, 0}};
  const int last = std::min(count, 64);
  for (int k = 1; k < last; ++k) scans.push_back({1, {0}, k, k, 0, count > 64});
  for (int k = 1; static_cast<int>(scans.size()) < count; ++k) scans.push_back({1, {0}, k, k, 1, 0});
  jpeg_compress_struct info{};
  jpeg_error_mgr error;
  info.err = jpeg_std_error(&error);
  jpeg_create_compress(&info);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &bytes, &size);
  info.image_width = info.image_height = 8;
  info.input_components = 1;
  info.in_color_space = JCS_GRAYSCALE;
  jpeg_set_defaults(&info);
  info.scan_info = scans.data();
  info.num_scans = static_cast<int>(scans.size());
  jpeg_start_compress(&info, TRUE);
  unsigned char row[8] = {0, 255, 7, 80, 200, 3, 90, 255};
  for (JSAMPROW rows[1] = {row}; info.next_scanline < 8;) jpeg_write_scanlines(&info, rows, 1);
  jpeg_finish_compress(&info);
  std::string jpeg(reinterpret_cast<char*>(bytes), size);
  std::free(bytes);
  jpeg_destroy_compress(&info);
  return jpeg;
}

/// A JPEG with another size in its frame header.
std::string with_size(std::string jpeg, uint8_t frame_marker, int64_t height, int64_t width) {
  const size_t at = jpeg.find(std::string("\xff") + static_cast<char>(frame_marker));
  REQUIRE(at != std::string::npos);
  for (int i = 0; i < 2; ++i) {
    jpeg[at + 5 + i] = static_cast<char>(height >> (8 * (1 - i)));
    jpeg[at + 7 + i] = static_cast<char>(width >> (8 * (1 - i)));
  }
  return jpeg;
}

}  // namespace

TEST_SUITE("data") {
  TEST_CASE("file_name stays in the dataset, unless data.allow_outside") {
    const TemporaryDirectory directory;
    directory.write("outside/secret.jpg", "secret");
    directory.write("set/in.jpg", "in");
    directory.write("set/sub/in.jpg", "in");
    fs::create_symlink("../outside/secret.jpg", directory / "set/link.jpg");
    fs::create_symlink("../outside", directory / "set/folder");
    fs::create_symlink("sub/in.jpg", directory / "set/inner.jpg");
    for (const char* inside : {"in.jpg", "./in.jpg", "sub/../in.jpg", "sub/in.jpg", "inner.jpg"}) {
      CAPTURE(inside);
      CHECK(opened(directory, inside).empty());
    }
    const std::string absolute = directory / "outside/secret.jpg";
    for (const std::string& outside : {std::string("../outside/secret.jpg"),
                                       std::string("sub/../../outside/secret.jpg"),
                                       absolute, std::string("link.jpg"), std::string("folder/secret.jpg")}) {
      CAPTURE(outside);
      const std::string message = opened(directory, outside);
      CHECK(contains(message, "metadata.jsonl:1: file_name \"" + outside.substr(0, 60)));
      CHECK(contains(message, "leads out of "));
      CHECK(contains(message, "data.allow_outside: true"));
      CHECK(opened(directory, outside, true).empty());
    }
  }

  TEST_CASE("a link to the whole dataset is followed") {
    const TemporaryDirectory directory;
    directory.write("real/a.jpg", "a");
    directory.write("real/metadata.jsonl", "{\"file_name\":\"a.jpg\",\"text\":\"t\"}\n");
    fs::create_symlink("real", directory / "link");
    CHECK(open_dataset(directory / "link", DatasetFormat::automatic)->size() == 1);
  }

  TEST_CASE("pictures, captions, records and metadata of 8 GiB are refused by their size") {
    constexpr int64_t huge = int64_t{8} << 30;     // sparse: takes no room
    const TemporaryDirectory directory;
    fs::resize_file(directory.write("set/huge.jpg", ""), huge);
    CHECK(contains(opened(directory, "huge.jpg"), "huge.jpg: has 8589934592 bytes, expected a picture of at most "));
    fs::resize_file(directory.write("set/metadata.jsonl", "{}"), huge);
    CHECK(contains(message_of([&] { open_dataset(directory / "set", DatasetFormat::automatic); }), "metadata.jsonl: has 8589934592 byt"));
    for (const std::string& name : {std::string("a.jpg"), std::string("a.txt"), std::string("a.json")}) {
      const std::string shard = directory.write("s.tar", tar_header(name, huge));
      fs::resize_file(shard, 512 + huge + 1024);
      CHECK(contains(message_of([&] { open_dataset(shard, DatasetFormat::automatic); }),
                     "s.tar: member \"" + name + "\" has 8589934592 bytes, expected a "));
    }
    for (const char* name : {"d.jsonl", "d.json"}) {
      const std::string file = directory.write(name, "[\"");
      fs::resize_file(file, huge);
      CHECK(contains(message_of([&] { open_dataset(file, DatasetFormat::automatic); }), ":1: a record of "));
    }
  }

  TEST_CASE("a named pipe in place of a file is refused, and not waited for") {
    const TemporaryDirectory directory;
    const auto pipe = [&](const std::string& name) {
      fs::create_directories(fs::path(directory / name).parent_path());
      REQUIRE(::mkfifo((directory / name).c_str(), 0600) == 0);
      return directory / name;
    };
    const std::string shard = pipe("s.tar"), records = pipe("d.jsonl");
    CHECK(contains(message_of([&] { open_dataset(shard, DatasetFormat::automatic); }), shard + ": is not a regular file"));
    CHECK(contains(message_of([&] { open_dataset(records, DatasetFormat::json); }), records + ": is not a regular file"));
    for (const char* name : {"tokenizer.json", "vocab.json", "tokenizer.model"}) {
      const std::string file = pipe(std::string(name) + "_/" + name), folder = fs::path(file).parent_path().string();
      CHECK(contains(message_of([&] { (void)load_tokenizer(folder, {}); }), file + ": is not a regular file"));
    }
    const std::string processor = pipe("p/preprocessor_config.json");
    CHECK(contains(message_of([&] { (void)ImageProcessor::from_directory(directory / "p"); }), processor + ": is not"));
    // Between opening and reading.
    directory.write("set/a.jpg", "a");
    directory.write("set/metadata.jsonl", "{\"file_name\":\"a.jpg\",\"text\":\"t\"}\n");
    const auto dataset = open_dataset(directory / "set", DatasetFormat::automatic);
    fs::remove(directory / "set/a.jpg");
    pipe("set/a.jpg");
    CHECK(contains(message_of([&] { (void)dataset->read(0); }), "a.jpg: is not a regular file"));
  }

  TEST_CASE("JSON nested 100,000 deep is refused wherever it is read") {
    const TemporaryDirectory directory;
    const auto refused = [&](const std::string& message, const std::string& location) {
      CAPTURE(message.substr(0, 300));
      CHECK(contains(message, location));
      CHECK(contains(message, "nested more than 200 deep"));
    };
    directory.write("set/metadata.jsonl", "\n{\"file_name\":\"a\",\"text\":" + deep + "}\n");
    refused(message_of([&] { open_dataset(directory / "set", DatasetFormat::automatic); }), "metadata.jsonl:2: ");
    const std::string records = directory.write("d.jsonl", "{\"text\":" + deep + "}\n");
    refused(message_of([&] { open_dataset(records, DatasetFormat::automatic); }), records + ":1: ");
    for (const char* key : {"size", "image_mean", "resample", "do_resize"}) {
      directory.write("p/preprocessor_config.json", std::string("{\"") + key + "\":" + deep + "}");
      refused(message_of([&] { (void)ImageProcessor::from_directory(directory / "p"); }), "preprocessor_config.json: ");
    }
    directory.write("t/tokenizer.json", "{\"model\":{\"vocab\":" + deep + "}}");
    refused(message_of([&] { (void)load_tokenizer(directory / "t", {}); }), "tokenizer.json: ");
    directory.write("t/tokenizer.json", "{\"normalizer\":" + deep + "}");
    refused(message_of([&] { (void)load_tokenizer(directory / "t", {}); }), "tokenizer.json: ");
    const std::string shard = directory.write(
        "s.tar", tar_header("a.jpg", 0) + tar_header("a.json", deep.size()) + deep + std::string(4096, '\0'));
    fs::resize_file(shard, (fs::file_size(shard) / 512) * 512);
    refused(message_of([&] { open_dataset(shard, DatasetFormat::automatic)->read(0); }), "s.tar:a.json: ");
  }

  TEST_CASE("statistics of pictures are numbers of sense") {
    const TemporaryDirectory directory;
    const auto with = [&](const std::string& text) {
      directory.write("preprocessor_config.json", text);
      return message_of([&] { (void)ImageProcessor::from_directory(directory.path.string()); });
    };
    CHECK(with("{\"image_mean\":[0.5,0.5,0.5],\"image_std\":[0.5,0.5,0.5]}").empty());
    for (const char* value : {"1e300", "-1e300", "\"0.5\"", "null"})
      CHECK(contains(with(std::string("{\"image_mean\":[0.5,0.5,") + value + "]}"), "key \"image_mean\" is [0.5"));
    for (const char* value : {"1e300", "1e-300", "0", "-0.5"})
      CHECK(contains(with(std::string("{\"image_std\":[0.5,0.5,") + value + "]}"), "key \"image_std\" is [0.5"));
    for (const char* value : {"18446744073709551615", "-224", "224.5", "1e30"})
      CHECK(contains(with(std::string("{\"size\":") + value + "}"), "key \"size\" is "));
    CHECK(with("{\"size\":\"" + std::string(100'000, 'x') + "\"}").size() < 500);
  }

  TEST_CASE("a progressive JPEG that takes a gigabyte is refused before it is decoded") {
    const std::string progressive = read_golden("images/progressive.jpg");
    CHECK(decoded(progressive).empty());
    const std::string large = decoded(with_size(progressive, 0xc2, 13'000, 13'000));
    CHECK(contains(large, "a progressive JPEG of 13000 x 13000 pixels, which takes "));
    CHECK(contains(large, "store it as a baseline JPEG"));
    CHECK(contains(decoded(with_size(progressive, 0xc2, 65'000, 65'000)), "at most 178956970 pixels"));
    CHECK(decoded(jpeg_of_scans(63)).empty());
    CHECK(contains(decoded(jpeg_of_scans(127)), "it has more than 64 scans"));
  }

  TEST_CASE("a PNG whose sides or chunks are absurd is refused") {
    std::string png = read_golden("images/gray.png");
    // A text of 2 GiB in a short file: nothing of that size is allocated.
    const std::string text("\x7f\xff\xff\xf0iTXtkey", 11);
    CHECK(contains(decoded(png.substr(0, 33) + text), "the file ends too early"));
    for (int i = 0; i < 4; ++i) png[16 + i] = static_cast<char>(70'000 >> (8 * (3 - i)));
    CHECK(!decoded(png).empty());               // libpng minds the checksum; decode_image the size
  }

  TEST_CASE("token ids are integers that a model can have") {
    for (const char* value : {"-1", "1.5", "4294967296", "18446744073709551615", "1e30", "null", "\"0\"", "16777216"}) {
      CAPTURE(value);
      const TemporaryDirectory directory;
      directory.write("tokenizer.json", std::string("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":") + value +
                                            "},\"merges\":[]}}");
      CHECK(contains(message_of([&] { (void)load_tokenizer(directory.path.string(), {}); }), "token \"b\" has the id "));
      const std::string model = "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},";
      directory.write("tokenizer.json", model + "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{"
                      "\"SpecialToken\":{\"id\":\"a\"}},{\"Sequence\":{}}],\"special_tokens\":{\"a\":{\"ids\":[" +
                      value + "]}}}}");
      CHECK(contains(message_of([&] { (void)load_tokenizer(directory.path.string(), {}); }),
                     "tokenizer.json: post_processor.special_tokens: \"a\" has the id "));
      directory.write("tokenizer.json", model + "\"post_processor\":{\"type\":\"BertProcessing\",\"cls\":[\"a\"," +
                                            value + "],\"sep\":[\"a\",0]}}");
      CHECK(contains(message_of([&] { (void)load_tokenizer(directory.path.string(), {}); }),
                     ": post_processor.cls has the"));
      directory.write("tokenizer.json", model + "\"added_tokens\":[{\"content\":\"<x>\",\"id\":" + value + "}]}");
      CHECK(contains(message_of([&] { (void)load_tokenizer(directory.path.string(), {}); }),
                     ": added_tokens: \"<x>\" has"));
    }
    const TemporaryDirectory directory;
    directory.write("tokenizer.json", "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}}");
    for (const char* key : {"x", "-1", "99999999999999999999", "1 "}) {
      directory.write("tokenizer_config.json",
                      std::string("{\"added_tokens_decoder\":{\"") + key + "\":{\"content\":\"<x>\"}}}");
      CHECK(contains(message_of([&] { (void)load_tokenizer(directory.path.string(), {}); }),
                     "tokenizer_config.json: added_tokens_decoder: a token has the id "));
    }
  }

  TEST_CASE("ids that the tokenizer puts around texts must be in the model's vocabulary") {
    Config config;
    config.model.path = "some/model";
    ModelInputs inputs;
    inputs.text.max_tokens = 2048;
    inputs.text.vocabulary = 256;
    CHECK(message_of([&] { check_text_inputs(config, config.model.path, inputs, testing::ByteTokenizer({255})); }).empty());
    const std::string message = message_of([&] { check_text_inputs(config, config.model.path, inputs, testing::ByteTokenizer({256})); });
    CHECK(contains(message, "some/model: the tokenizer's files put a token with id 256 around every text"));
  }

  TEST_CASE("a tokenizer that would not end, or grow without bound, is refused") {
    const std::string model = "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},";
    const TemporaryDirectory directory;
    directory.write("tokenizer.json", model + "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\"}}");
    CHECK(contains(message_of([&] { (void)load_tokenizer(directory.path.string(), {}); }),
                   "tokenizer.json: pre_tokenizer.replacement is empty"));
    std::string doubled;
    for (int i = 0; i < 60; ++i)
      doubled += std::string(i ? "," : "") + "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"aa\"}";
    directory.write("tokenizer.json",
                    model + "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[" + doubled + "]}}");
    CHECK(contains(message_of([&] { (void)load_tokenizer(directory.path.string(), {})->encode("a"); }),
                   "tokenizer.json: its normalizer"));
  }
}
