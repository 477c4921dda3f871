// Names, layout, index and checksums of a checkpoint's files.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "blipft/checkpoint.h"
#include "io/crc32c.h"
#include "io/state_files.h"
#include "support/error_message.h"
#include "support/temporary_directory.h"

using namespace blipft;
using namespace blipft::io;
using blipft::testing::TemporaryDirectory;

TEST_SUITE("state files") {
  TEST_CASE("the checksum is CRC-32C: the values of RFC 3720, B.4, and parts joined") {
    const std::string zeros(32, '\0'), ones(32, '\xff');
    std::string up, down;
    for (int i = 0; i < 32; ++i) up += static_cast<char>(i), down += static_cast<char>(31 - i);
    CHECK(crc32c(zeros.data(), 32) == 0x8a9136aa);
    CHECK(crc32c(ones.data(), 32) == 0x62a8ab43);
    CHECK(crc32c(up.data(), 32) == 0x46dd794e);
    CHECK(crc32c(down.data(), 32) == 0x113fdb5c);
    CHECK(crc32c("123456789", 9) == 0xe3069283);
    CHECK(crc32c("", 0) == 0);
    std::mt19937 random(3);
    std::string text(1000, ' ');
    for (char& c : text) c = static_cast<char>(random());
    for (const int64_t cut : {0, 1, 7, 8, 9, 500, 999, 1000}) {
      const uint32_t first = crc32c(text.data(), cut), whole = crc32c(text.data(), 1000);
      CHECK(crc32c(text.data() + cut, 1000 - cut, first) == whole);
      CHECK(crc32c_joined(first, crc32c(text.data() + cut, 1000 - cut), 1000 - cut) == whole);
    }
  }

  TEST_CASE("names") {
    CHECK(checkpoint_name(12) == "step-00000012");
    CHECK(checkpoint_step(checkpoint_name(12)) == 12);
    CHECK(checkpoint_step(checkpoint_name(123456789012)) == 123456789012);
    for (const char* other : {"step-", "step-00000012.partial", "step-1x", "stop-1", "step--1",
                              "step-99999999999999999999"})
      CHECK(checkpoint_step(other) == -1);
  }

  TEST_CASE("a checkpoint is whole when every element was written once") {
    const auto check = [](std::vector<StatePiece> one, std::vector<StatePiece> other, int64_t bytes) {
      StateIndex index;
      index.files = {{"one", 0, std::move(one)}, {"other", 0, std::move(other)}};
      check_whole(index, bytes);
    };
    const StatePiece head{"weight/a", DType::bf16, {4, 3}, 0, 5, 0, {}}, tail{"weight/a", DType::bf16, {4, 3}, 5, 7, 0, {}};
    const StatePiece more{"weight/a", DType::bf16, {4, 3}, 4, 8, 0, {}}, b{"weight/b", DType::f32, {3}, 0, 3, 0, {}};
    CHECK_NOTHROW(check({head, b}, {tail}, 24 + 12));
    CHECK_NOTHROW(check({tail}, {b, head}, 24 + 12));
    CHECK_THROWS_WITH(check({head}, {tail}, 24 + 12), doctest::Contains("wrote 24 of 36 bytes"));
    CHECK_THROWS_WITH(check({head}, {head, b}, 10 + 10 + 12), doctest::Contains("written by another rank too"));
    CHECK_THROWS_WITH(check({head}, {more}, 10 + 16), doctest::Contains("elements 4 to 4 were written by two ranks"));
  }

  TEST_CASE("a file's header can be read as safetensors, and the index comes back") {
    const TemporaryDirectory folder;
    StateFile file{"state-00000-of-00001.safetensors", 0, {}};
    file.pieces.push_back({"weight/a.b", DType::bf16, {3, 5}, 5, 7, 0, {}});
    file.pieces.push_back({"exp_avg/a.b", DType::f32, {3, 5}, 0, 15, 0, {}});
    const std::string header = lay_out(file);
    CHECK(file.pieces[0].tensor == "exp_avg/a.b");  // larger elements first
    CHECK(file.bytes == static_cast<int64_t>(header.size()) + 7 * 2 + 15 * 4);
    file.pieces[1].checksums[0] = 0xfedcba98;
    const std::filesystem::path model = folder.path / "model.safetensors";
    std::ofstream(model, std::ios::binary) 
        << header << std::string(static_cast<size_t>(file.bytes) - header.size(), 'x');
    const SafetensorsReader reader(folder.path.string());
    REQUIRE(reader.tensors().size() == 2);
    CHECK(reader.tensors().at("weight/a.b[5:12]").shape == std::vector<int64_t>{7});
    CHECK(reader.tensors().at("exp_avg/a.b").shape == std::vector<int64_t>{3, 5});
    CHECK(reader.tensors().at("exp_avg/a.b").begin == file.pieces[0].offset);

    std::filesystem::rename(model, folder.path / file.name);
    const StateIndex index{7, {{"train.lr", "0.1"}, {"data.path", "\"\xc3\xa9\""}}, {{"ranks", "1"}},
                           {parse_file(file_text(file))}};
    write_whole_file(folder / "checkpoint.json", index_text(index));
    const StateIndex again = read_index(folder.path.string());
    CHECK(again.step == 7);
    CHECK(again.config == index.config);
    CHECK(again.run == index.run);
    REQUIRE(again.files.size() == 1);
    CHECK(again.files[0].pieces[1].checksums == std::vector<uint32_t>{0xfedcba98});
    CHECK(file_text(again.files[0]) == file_text(file));
  }

  TEST_CASE("an index is refused when anything of its text is another, an index without a checksum by its version") {
    const TemporaryDirectory folder;
    const StateIndex index{7, {{"train.lr", "0.1"}, {"train.seed", "3"}}, {{"ranks", "1"}, {"version", "abc123"}}, {}};
    const std::string whole = index_text(index), path = folder / "checkpoint.json";
    const auto message = [&](const std::string& text) {
      std::ofstream(path, std::ios::binary) << text;
      return testing::message_of([&] { (void)read_index(folder.path.string()); });
    };
    CHECK(message(whole) == "");
    for (size_t i = 0; i < whole.size(); ++i)
      for (const int bit : {0, 3, 5}) {
        std::string text = whole;
        text[i] = static_cast<char>(text[i] ^ (1 << bit));
        const std::string found = message(text);
        CAPTURE(text);
        CHECK(found.rfind(path + ": ", 0) == 0);
        text.erase(i, 1);
        CHECK(message(text).rfind(path + ": ", 0) == 0);
      }
    const auto without = [&](const std::string& part, const std::string& instead) {
      std::string text = whole;
      REQUIRE(text.find(part) != std::string::npos);
      return text.replace(text.find(part), part.size(), instead);
    };
    const std::string damaged = path + ": its text does not have the checksum in its last line; the checkpoint is damaged: "
                                       "remove it, and resume from another";
    CHECK(message(without(",\n  \"train.seed\": \"3\"", "")) == damaged);
    CHECK(message(without("\"train.seed\"", "\"train.seee\"")) == damaged);
    CHECK(message(without("\"version\": 2", "\"version\": 1")) == damaged);
    const std::string bare = whole.substr(0, whole.rfind(",\n \"crc32c\"")) + "\n}\n";
    CHECK(message(bare) == damaged);
    std::string first = bare;
    first.replace(first.find("\"version\": 2"), 12, "\"version\": 1");
    const std::string old = message(first);
    CHECK_MESSAGE((old.find(": version 1 of the format, which has no checksum") != std::string::npos &&
                   old.find("(commit abc123)") != std::string::npos), old);
    std::string later = whole.substr(0, whole.rfind(",\n \"crc32c\""));
    later.replace(later.find("\"version\": 2"), 12, "\"version\": 3");
    CHECK(message(with_checksum(later)) == path + ": version 3 of the format, expected 2; it was written by another version "
                                                  "of blipft: go on with that");
  }

  TEST_CASE("a newer layout of parameters is refused by name, and an index without one has layout 1") {
    const TemporaryDirectory folder;
    const std::string path = folder / "checkpoint.json", key = concat("\"parameter_layout\": ", kParameterLayout);
    std::string text = index_text({7, {}, {}, {}});
    text.resize(text.rfind(",\n \"crc32c\""));
    REQUIRE(text.find(key) != std::string::npos);
    const auto message = [&](const std::string& instead) {
      std::string changed = text;
      std::ofstream(path, std::ios::binary) << with_checksum(changed.replace(changed.find(key), key.size(), instead));
      return testing::message_of([&] { (void)read_index(folder.path.string()); });
    };
    CHECK(message(key) == "");
    CHECK(message("\"other\": 1") == "");
    const std::string refused = message(concat("\"parameter_layout\": ", kParameterLayout + 1));
    CHECK_MESSAGE(refused.find(concat(path, ": parameter_layout: found ", kParameterLayout + 1)) == 0, refused);
    CHECK_MESSAGE(refused.find("resume it or export its model with that") != std::string::npos, refused);
  }

  TEST_CASE("what an index says of names is quoted briefly") {
    const TemporaryDirectory folder;
    const auto message = [&](const std::string& name, const std::string& tensor, const std::string& dtype,
                             const std::string& first) {
      std::ofstream(folder.path / "checkpoint.json") << with_checksum(concat(
          R"({"format":"blipft checkpoint","version":2,"step":1,"run":{},"config":{},"files":[{"name":")", name, R"(","bytes":8,"pieces":[{"tensor":")", tensor,
          R"(","dtype":")", dtype, R"(","shape":[2],"first":)", first, R"(,"count":1,"offset":0,"crc32c":[1]}]}])"));
      return testing::message_of([&] { (void)read_index(folder.path.string()); });
    };
    const std::string index_file = folder / "checkpoint.json", longest(80, 'n'), long_name(5000, 'n');
    const std::string cut = longest + "...";
    CHECK(message(long_name, "t", "f32", "0") == index_file + ": \"" + cut + "\" is no name of a checkpoint's file");
    CHECK(message("a\\n", "t", "f32", "0") == index_file + ": \"a?\" is no name of a checkpoint's file");
    CHECK(message(longest, "t", "f32", "0").rfind((folder / longest) + ": cannot be opened", 0) == 0);
    CHECK(message("s", long_name, "f32", "2") == index_file + ": elements 2 to 2 + 1 of " + cut + ", which has 2");
    CHECK(message("s", "t", long_name, "0") == index_file + ": dtype \"" + cut + "\" is not known");
  }
}
