// Files that are no files, JSON that is too deep or too long, and what messages quote of them.
#include <doctest/doctest.h>

#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <string>

#include "blipft/checkpoint.h"
#include "io/file.h"
#include "io/json.h"
#include "support/error_message.h"
#include "support/temporary_directory.h"

using namespace blipft;
using testing::contains;
using testing::message_of;
using testing::TemporaryDirectory;

namespace {

std::string nested(int64_t depth) {
  return std::string(static_cast<size_t>(depth), '[') + std::string(static_cast<size_t>(depth), ']');
}

/// A safetensors file with this header.
std::string safetensors(const std::string& header) {
  uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header;
}

}  // namespace

TEST_SUITE("io") {
  TEST_CASE("what is quoted in a message is cut to a line of whole characters") {
    CHECK(brief("short") == "short");
    CHECK(brief("a\nb\x1b[2J\x7f") == "a?b?[2J?");
    CHECK(brief(std::string(1000, 'x')) == std::string(80, 'x') + "...");
    CHECK(brief(std::string(79, 'x') + "\u00e9") == std::string(79, 'x') + "...");
    CHECK(io::brief(nlohmann::json(std::string(1000, 'x'))).size() == 83);
    CHECK(io::brief(nlohmann::json("\xff\xff")) == "\"\\ufffd\\ufffd\"");
  }

  TEST_CASE("JSON nests up to a limit; brackets in strings do not count") {
    CHECK(io::parse_json(nested(io::max_json_depth), "here").is_array());
    CHECK(io::parse_json("[\"" + std::string(1000, '[') + "\\\"[\"]", "here").size() == 1);
    for (const std::string& deep : {nested(io::max_json_depth + 1), nested(100'000), std::string(10'000'000, '['),
                                    "\"\\\\\" " + std::string(1000, '{')}) {
      const std::string message = message_of([&] { (void)io::parse_json(deep, "file.json:7"); });
      CHECK(contains(message, "file.json:7: not usable JSON: at byte "));
      CHECK(contains(message, "nested more than 200 deep"));
    }
    const std::string message = message_of([] { (void)io::parse_json("[\"" + std::string(100'000, 'x'),
                                                                     "file.json"); });
    CHECK(contains(message, "file.json: not valid JSON: "));
    CHECK(message.size() < 300);
  }

  TEST_CASE("an object that keeps the order of its keys is refused before it takes minutes [slow]") {
    using nlohmann::ordered_json;
    const auto keys = [](int count) {
      std::string text = "{";
      for (int i = 0; i < count; ++i) text += concat(i ? "," : "", "\"", i, "\":0");
      return text + "}";
    };
    const auto few = io::parse_json<ordered_json>("{\"b\":" + keys(20'000) + ",\"a\":[{\"d\":1},{\"c\":2}]}", "here");
    CHECK(few["b"].size() == 20'000);
    CHECK(few.begin().key() == "b");
    CHECK(few["a"][1]["c"] == 2);
    const std::string message = message_of([&] { (void)io::parse_json<ordered_json>(keys(2'000'000), "config.json"); });
    CHECK(contains(message, "config.json: not usable JSON: at byte "));
    CHECK(io::parse_json(keys(100'000), "vocabulary").size() == 100'000);
    std::string objects = "[";               // many objects take no longer than their keys
    for (int i = 0; i < 500'000; ++i) objects += "{\"a\":1},";
    CHECK(io::parse_json<ordered_json>(objects + "{}]", "index").size() == 500'001);
  }

  TEST_CASE("deep JSON in a safetensors header and in an index is refused") {
    const TemporaryDirectory directory;
    const std::string deep = nested(100'000);
    for (const std::string& field : {"\"shape\":" + deep, "\"dtype\":" + deep, "\"data_offsets\":[0," + deep + "]"}) {
      std::filesystem::remove(directory / "model.safetensors.index.json");
      const std::string file = directory.write("model.safetensors",
                                               safetensors("{\"a\":{\"dtype\":\"F32\"," + field + "}}"));
      const std::string message = message_of([&] { SafetensorsReader reader(directory.path.string()); });
      CHECK(contains(message, file));
      CHECK(contains(message, "nested more than"));
    }
    std::filesystem::remove(directory / "model.safetensors");
    const std::string index = directory.write("model.safetensors.index.json", "{\"weight_map\":{\"a\":" + deep + "}}");
    CHECK(contains(message_of([&] { SafetensorsReader reader(directory.path.string()); }), index));
  }

  TEST_CASE("a long name in a safetensors header is cut in the message") {
    const TemporaryDirectory directory;
    const std::string name(1'000'000, 'n');
    directory.write("model.safetensors",
                    safetensors("{\"" + name + "\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}"));
    const std::string message = message_of([&] { SafetensorsReader reader(directory.path.string()); });
    CHECK(contains(message, "tensor 'nnnnn"));
    CHECK(message.size() < 600);
  }

  TEST_CASE("a named pipe in place of a file is refused, and not waited for") {
    const TemporaryDirectory directory;
    const std::string pipe = directory / "model.safetensors";
    REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
    const auto begin = std::chrono::steady_clock::now();
    CHECK(contains(message_of([&] { SafetensorsReader reader(directory.path.string()); }), "named pipe"));
    CHECK(contains(message_of([&] { (void)read_text_file(pipe); }), pipe + ": is not a regular file"));
    CHECK(contains(message_of([&] { (void)read_text_file(directory.path.string()); }), "but a folder"));
    CHECK(contains(message_of([&] { (void)read_text_file("/dev/zero"); }), "but a device"));
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(5));
  }

  TEST_CASE("a file of 8 GiB in place of a text is refused by its size") {
    const TemporaryDirectory directory;
    const std::string file = directory.write("config.json", "{");
    std::filesystem::resize_file(file, int64_t{8} << 30);   // takes no room
    const std::string message = message_of([&] { (void)io::read_json_file(file); });
    CHECK(contains(message, file + ": has 8589934592 bytes, expected at most 67108864"));
  }
}
