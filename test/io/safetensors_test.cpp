// Safetensors: what we write comes back, what Python writes is read, and broken files are refused by name.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <thread>

#include "blipft/checkpoint.h"
#include "support/error_message.h"
#include "support/temporary_directory.h"

using namespace blipft;
using testing::message_of;
using testing::TemporaryDirectory;
namespace fs = std::filesystem;

namespace {

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

/// A safetensors file with any header and any data.
std::string raw_file(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
}

bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

float to_float(uint16_t bits, bool brain) {
  if (brain) {
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
  }
  const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
  const float size = exponent ? std::ldexp(1.0f + static_cast<float>(fraction) / 1024, exponent - 15)
                              : std::ldexp(static_cast<float>(fraction) / 1024, -14);
  return bits & 0x8000 ? -size : size;
}

std::string broken(const std::string& header, const std::string& data) {
  const TemporaryDirectory folder;
  write_file(folder / "model.safetensors", raw_file(header, data));
  return message_of([&] { SafetensorsReader reader(folder.path.string()); });
}

}  // namespace

TEST_SUITE("safetensors") {
  TEST_CASE("a file is the very same until it is written to, and a copy is another") {
    const TemporaryDirectory folder, other;
    const std::string text = raw_file(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "abcd");
    const std::string path = folder.write("model.safetensors", text), copy = other.write("model.safetensors", text);
    const SafetensorsReader reader(folder.path.string()), again(folder.path.string()), copied(other.path.string());
    REQUIRE(reader.files() == std::map<std::string, int64_t>{{path, static_cast<int64_t>(text.size())}});
    CHECK(reader.identity(path) == again.identity(path));
    CHECK(reader.identity(path) != copied.identity(copy));
    std::string bytes(4, ' ');
    reader.read_file(path, static_cast<int64_t>(text.size()) - 4, 4, bytes.data());
    CHECK(bytes == "abcd");
    CHECK_NOTHROW(reader.check_unchanged(path));
    std::filesystem::last_write_time(path, std::filesystem::last_write_time(path) + std::chrono::seconds(1));
    CHECK_THROWS_WITH(reader.check_unchanged(path), doctest::Contains("was written to while the run began"));
  }


TEST_CASE("a file that the Python package wrote") {
  const TemporaryDirectory folder;
  fs::copy_file("test/golden/safetensors/python.safetensors", folder / "model.safetensors");
  const SafetensorsReader reader(folder.path.string());
  REQUIRE(reader.tensors().size() == 8);

  const StoredTensor& plain = reader.tensors().at("plain.weight");
  CHECK(plain.dtype == DType::f32);
  CHECK(plain.shape == std::vector<int64_t>{2, 3, 4});
  CHECK(plain.numel() == 24);
  std::vector<float> f32(24);
  reader.read("plain.weight", 0, 24, f32.data());
  for (int i = 0; i < 24; ++i) CHECK(f32[static_cast<size_t>(i)] == static_cast<float>(i) * 0.5f - 3);
  reader.read("plain.weight", 7, 2, f32.data());   // a slice
  CHECK(f32[0] == 0.5f);
  CHECK(f32[1] == 1.0f);

  uint16_t half[6];
  CHECK(reader.tensors().at("h\u00e4lf \u2603").dtype == DType::f16);
  reader.read("h\u00e4lf \u2603", 0, 5, half);
  for (int i = 0; i < 5; ++i) CHECK(to_float(half[i], false) == static_cast<float>(i + 1) * 0.5f - 3);
  const std::string odd = "brain/\"quoted\"\\\n";
  CHECK(reader.tensors().at(odd).dtype == DType::bf16);
  CHECK(reader.tensors().at(odd).shape == std::vector<int64_t>{2, 1, 1, 1, 3});
  reader.read(odd, 0, 6, half);
  for (int i = 0; i < 6; ++i) CHECK(to_float(half[i], true) == static_cast<float>(i + 2) * 0.5f - 3);

  int64_t ids[4];
  reader.read("ids", 0, 4, ids);
  for (int i = 0; i < 4; ++i) CHECK(ids[i] == i * 3 + 3);
  int32_t counts[3];
  reader.read("counts", 0, 3, counts);
  for (int i = 0; i < 3; ++i) CHECK(counts[i] == i * 3 + 4);
  uint8_t bytes[7];
  reader.read("bytes", 0, 7, bytes);
  for (int i = 0; i < 7; ++i) CHECK(bytes[i] == i * 3 + 5);
  CHECK(reader.tensors().at("scalar").shape.empty());
  float scalar = -1;
  reader.read("scalar", 0, 1, &scalar);
  CHECK(scalar == 0.0f);
  CHECK(reader.tensors().at("empty").numel() == 0);
  reader.read("empty", 0, 0, nullptr);
}

TEST_CASE("written and read back, in pieces, by several threads, in one file and in shards") {
  for (const int64_t shard_bytes : {int64_t{1} << 30, int64_t{900'000}}) {
    const TemporaryDirectory folder;
    const std::string directory = folder / "out/model";
    const std::vector<CheckpointWriter::Entry> entries = {
        {"bytes", DType::u8, {3}},          {"big", DType::f32, {500, 1000}}, {"scalar", DType::f32, {}},
        {"empty", DType::bf16, {0, 4}},     {"odd \"name\"\n\u2603", DType::i64, {5}}, {"brain", DType::bf16, {2, 3}}};
    std::vector<float> big(500'000);
    std::iota(big.begin(), big.end(), -1000.0f);
    const std::vector<int64_t> ids = {1, -2, 3, INT64_MAX, INT64_MIN};
    const float scalar = 2.5f;
    const uint16_t brain[6] = {1, 2, 3, 4, 5, 6};
    {
      CheckpointWriter writer(directory, entries, shard_bytes);
      std::vector<std::thread> threads;
      for (int t = 0; t < 4; ++t)   // pieces come in any order
        threads.emplace_back([&, t] { writer.write("big", t * 125'000, 125'000, big.data() + t * 125'000); });
      for (auto& thread : threads) thread.join();
      writer.write("odd \"name\"\n\u2603", 0, 5, ids.data());
      writer.write("scalar", 0, 1, &scalar);
      writer.write("brain", 0, 6, brain);
      writer.write("bytes", 0, 3, "abc");
      writer.write_text("config.json", "{}\n");
      CHECK_FALSE(fs::exists(directory));   // nothing under the final name before the end
      writer.finish();
    }
    CHECK_FALSE(fs::exists(directory + ".partial"));
    const bool one_file = shard_bytes > 10'000'000;
    CHECK(fs::exists(directory + "/model.safetensors") == one_file);
    CHECK(fs::exists(directory + "/model.safetensors.index.json") == !one_file);
    CHECK(read_text_file(directory + "/config.json") == "{}\n");

    const SafetensorsReader reader(directory);
    REQUIRE(reader.tensors().size() == entries.size());
    for (const auto& entry : entries) {
      CHECK(reader.tensors().at(entry.name).shape == entry.shape);
      CHECK(reader.tensors().at(entry.name).dtype == entry.dtype);
      // Every tensor is aligned to its element, so that a mapped file can be used as it is.
      CHECK(reader.tensors().at(entry.name).begin % dtype_size(entry.dtype) == 0);
    }
    std::vector<float> back(big.size());
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&, t] { reader.read("big", t * 125'000, 125'000, back.data() + t * 125'000); });
    for (auto& thread : threads) thread.join();
    CHECK(back == big);
    std::vector<int64_t> ids_back(5);
    reader.read("odd \"name\"\n\u2603", 0, 5, ids_back.data());
    CHECK(ids_back == ids);
    uint16_t brain_back[6];
    reader.read("brain", 0, 6, brain_back);
    CHECK(std::memcmp(brain, brain_back, sizeof brain) == 0);
    CHECK_THROWS_AS(reader.read("big", 499'999, 2, back.data()), Error);
    CHECK_THROWS_AS(reader.read("nobody", 0, 1, back.data()), Error);
  }
}

TEST_CASE("shards are no larger than the limit and named as transformers names them") {
  const TemporaryDirectory folder;
  const std::string directory = folder / "model";
  std::vector<CheckpointWriter::Entry> entries;
  for (int i = 0; i < 7; ++i) entries.push_back({concat("t", i), DType::f32, {25}});   // 100 bytes each
  CheckpointWriter writer(directory, entries, 250);
  const std::vector<float> data(25, 1.0f);
  for (const auto& entry : entries) writer.write(entry.name, 0, 25, data.data());
  writer.finish();
  for (const char* shard : {"1", "2", "3", "4"})
    CHECK(fs::exists(concat(directory, "/model-0000", shard, "-of-00004.safetensors")));
  CHECK(holds(read_text_file(directory + "/model.safetensors.index.json"), "\"total_size\": 700"));
  CHECK(SafetensorsReader(directory).tensors().size() == 7);
}

TEST_CASE("finish() names a tensor that is not wholly written, and nothing is left behind") {
  const TemporaryDirectory folder;
  const std::string directory = folder / "model";
  const float data[10] = {};
  {
    CheckpointWriter writer(directory, {{"whole", DType::f32, {10}}, {"torn", DType::f32, {10}}});
    writer.write("whole", 0, 10, data);
    writer.write("torn", 0, 4, data);
    writer.write("torn", 5, 5, data);
    const std::string text = message_of<Error>([&] { writer.finish(); });
    CHECK(holds(text, "torn"));
    CHECK(holds(text, "element 4 of 10"));
    CHECK_THROWS_AS(writer.write("torn", 8, 3, data), Error);
    CHECK_THROWS_AS(writer.write("nobody", 0, 1, data), Error);
    CHECK(fs::exists(directory + ".partial"));
  }
  CHECK_FALSE(fs::exists(directory));
  CHECK_FALSE(fs::exists(directory + ".partial"));
}

TEST_CASE("an older model is replaced, files are copied, and a folder that is no model stays") {
  const TemporaryDirectory folder;
  const std::string directory = folder / "model";
  const auto save = [&](float value) {
    CheckpointWriter writer(directory + "/", {{"x", DType::f32, {1}}});
    writer.write("x", 0, 1, &value);
    writer.copy_files(folder.path.string(), {"vocab.json", "missing.json"});
    writer.finish();
  };
  write_file(folder / "vocab.json", "vocabulary");
  save(1.0f);
  write_file(directory + "/stale", "x");   // not of its making
  CHECK(holds(message_of([&] { save(2.0f); }), "holds stale beside the saved model"));
  CHECK(fs::exists(directory + "/stale"));
  fs::remove(directory + "/stale");
  save(2.0f);
  float back = 0;
  SafetensorsReader(directory).read("x", 0, 1, &back);
  CHECK(back == 2.0f);
  CHECK(read_text_file(directory + "/vocab.json") == "vocabulary");
  CHECK_FALSE(fs::exists(directory + "/missing.json"));
  CHECK(std::distance(fs::directory_iterator(folder.path), fs::directory_iterator()) == 2);   // no .old, no .partial

  fs::create_directories(folder / "home");
  write_file(folder / "home/thesis.txt", "years of work");
  CHECK(holds(message_of([&] { CheckpointWriter(folder / "home", {}); }), "not a saved model"));
  CHECK(fs::exists(folder / "home/thesis.txt"));
}

TEST_CASE("folders that cannot be written and disks that are too small") {
  const TemporaryDirectory folder;
  write_file(folder / "file", "x");
  const std::string under_file = folder / "file/model";   // refused even for root, unlike a folder without permission
  CHECK(holds(message_of([&] { CheckpointWriter(under_file, {}); }), under_file));
  CHECK(holds(message_of([&] { CheckpointWriter(folder / "file", {}); }), "not a folder"));
  const std::string huge = folder / "huge";
  const std::string text =
      message_of([&] { CheckpointWriter(huge, {{"x", DType::f32, {int64_t{1} << 50}}}); });   // 4 PiB
  CHECK(holds(text, huge));
  CHECK(holds(text, "the model needs 4194304."));
  CHECK(holds(text, " free; "));
  CHECK_FALSE(fs::exists(huge + ".partial"));
  CHECK_THROWS_AS(CheckpointWriter(folder / "twice", {{"x", DType::f32, {1}}, {"x", DType::f32, {1}}}), Error);
  CHECK_FALSE(fs::exists(folder / "twice.partial"));
}

TEST_CASE("folders without permission are the user's error, not an exception of the library") {
  const TemporaryDirectory folder;
  fs::create_directories(folder / "locked");
  fs::create_directories(folder / "readable");
  fs::permissions(folder.path, fs::perms::all);
  fs::permissions(folder / "locked", fs::perms::none);
  fs::permissions(folder / "readable", fs::perms::owner_read | fs::perms::owner_exec | fs::perms::others_read |
                                           fs::perms::others_exec);
  const uid_t self = ::geteuid();
  if (self == 0) REQUIRE(::seteuid(65534) == 0);   // root may do everything: try as nobody
  const std::string inside = folder / "locked/model", beside = folder / "readable/model";
  const std::string reading = message_of([&] { SafetensorsReader reader(folder / "locked"); });
  const std::string reading_inside = message_of([&] { SafetensorsReader reader(inside); });
  const std::string writing = message_of([&] { CheckpointWriter writer(inside, {}); });
  const std::string background_writing = message_of([&] { CheckpointWriter writer(beside, {}); });
  const std::string replacing = message_of([&] { CheckpointWriter writer(folder / "locked", {}); });
  if (self == 0) REQUIRE(::seteuid(self) == 0);
  fs::permissions(folder / "locked", fs::perms::owner_all);
  fs::permissions(folder / "readable", fs::perms::owner_all);
  CHECK(holds(reading, "locked"));
  CHECK(holds(reading, "Permission denied"));
  CHECK(holds(reading_inside, "Permission denied"));
  CHECK(holds(writing, inside));
  CHECK(holds(writing, "Permission denied"));
  CHECK(holds(background_writing, beside));
  CHECK(holds(background_writing, "Permission denied"));
  CHECK(holds(replacing, "Permission denied"));
}

TEST_CASE("broken files are refused, and the message names file and tensor") {
  const std::string good = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  CHECK(broken(good, "12345678") == "");
  CHECK(broken(good + "   ", "12345678") == "");
  struct Case {
    const char *header, *data, *says;
  };
  const Case cases[] = {
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "1234567", "cut short"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "123456789", "tensors end at 8"},
      {R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", "12345678", "needs 12 bytes"},
      {R"({"a":{"dtype":"C64","shape":[1],"data_offsets":[0,8]}})", "12345678", "dtype C64 is not supported"},
      {R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", "12345678", "shape holds -2"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", "12345678", "end before they begin"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}})", "12345678", "no pair data_offsets"},
      {R"({"a":{"dtype":"F32","shape":2,"data_offsets":[0,8]}})", "12345678", "no shape"},
      {R"({"a":{"shape":[2],"data_offsets":[0,8]}})", "12345678", "no dtype"},
      {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,8]}})", "12345678",
       "larger than any file"},
      {R"({"a":{"dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,8]}})", "12345678",
       "expected a whole number"},
      {R"({"a":[]})", "", "expected an object"},
      {R"({"a":{"dtype":"U8","shape":[6],"data_offsets":[0,6]},"b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
       "12345678", "'b' begins at data byte 4 and overlaps tensor 'a'"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
       "12345678", "no holes"},
      {R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})",
       "12345678", "'a' twice"},
      {R"({"a":)", "", "not valid JSON"},
      {"[]", "", "does not begin with '{'"},
      {"", "", "does not begin with '{'"},
  };
  for (const Case& broken_case : cases) {
    CAPTURE(broken_case.header);
    const std::string text = broken(broken_case.header, broken_case.data);
    CAPTURE(text);
    CHECK(holds(text, broken_case.says));
    CHECK(holds(text, "model.safetensors: "));
  }
  const TemporaryDirectory folder;
  const std::string path = folder / "model.safetensors";
  const auto read_error = [&](const std::string& bytes) {
    write_file(path, bytes);
    return message_of([&] { SafetensorsReader reader(folder.path.string()); });
  };
  CHECK(holds(read_error("1234"), "has 4 bytes"));
  CHECK(holds(read_error(std::string(8, '\x7f')), "claims a header"));
  CHECK(holds(read_error(raw_file(good, "12345678").substr(0, 30)), "cut short"));
}

TEST_CASE("64-bit numbers are read as f32") {
  const TemporaryDirectory folder;
  std::vector<double> stored(200000);          // more than are read at once
  for (size_t i = 0; i < stored.size(); ++i) stored[i] = 0.1 * static_cast<double>(i);
  const std::string header = R"({"a":{"dtype":"F64","shape":[400,500],"data_offsets":[0,1600000]}})";
  write_file(folder / "model.safetensors",
             raw_file(header, {reinterpret_cast<const char*>(stored.data()), stored.size() * sizeof(double)}));
  const SafetensorsReader reader(folder.path.string());
  const StoredTensor& tensor = reader.tensors().at("a");
  CHECK(tensor.dtype == DType::f32);
  CHECK(tensor.numel() == 200000);
  std::vector<float> read(150000);
  reader.read("a", 3, 150000, read.data());
  for (size_t i = 0; i < read.size(); ++i) REQUIRE(read[i] == static_cast<float>(stored[i + 3]));
  CHECK(holds(broken(R"({"a":{"dtype":"F64","shape":[2],"data_offsets":[0,8]}})", "12345678"), "[2] of f64 needs 16 bytes"));
}

TEST_CASE("missing files, shards and tensors") {
  const TemporaryDirectory folder;
  const std::string here = folder.path.string();
  const auto error = [&] { return message_of([&] { SafetensorsReader reader(here); }); };
  CHECK(holds(message_of([&] { SafetensorsReader reader(here + "/none"); }), "the folder does not exist"));
  CHECK(holds(error(), here));
  CHECK(holds(error(), "download the weights into it, or begin with new ones: model.init=random"));
  CHECK(!holds(message_of([&] { SafetensorsReader reader(here, "adapter_model"); }), "model.init"));
  write_file(folder / "pytorch_model.bin", "x");
  const std::string command = concat("python3 tools/convert_checkpoint.py ", here, " ", here, "-safetensors");
  CHECK(holds(error(), command));
  CHECK(holds(message_of([&] { SafetensorsReader reader(here + "/"); }), command));

  const std::string index = folder / "model.safetensors.index.json";
  write_file(index, R"({"weight_map": {"a": "s1.safetensors", "b": "s2.safetensors"}})");
  const std::string one = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  write_file(folder / "s1.safetensors", raw_file(one, "x"));
  CHECK(holds(error(), "s2.safetensors: the shard is missing"));
  write_file(folder / "s2.safetensors", raw_file(one, "x"));
  CHECK(holds(error(), "s2.safetensors: has no tensor 'b'"));
  // A tensor that the index does not list is the model's all the same, unless nobody knows which of two.
  const std::string two = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                          R"("b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})";
  write_file(folder / "s2.safetensors", raw_file(two, "yz"));
  write_file(index, R"({"weight_map": {"a": "s1.safetensors", "c": "s3.safetensors"}})");
  const std::string three = R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                            R"("c":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})";
  write_file(folder / "s3.safetensors", raw_file(three, "bc"));
  const auto byte_of = [&](const char* name) {
    char byte = 0;
    SafetensorsReader(here).read(name, 0, 1, &byte);
    return byte;
  };
  CHECK(SafetensorsReader(here).tensors().size() == 3);
  CHECK(byte_of("a") == 'x');
  CHECK(byte_of("b") == 'b');
  write_file(index, R"({"weight_map": {"a": "s2.safetensors", "c": "s3.safetensors"}})");
  CHECK(holds(error(), "tensor 'b' is also in"));
  write_file(index, R"({"weight_map": {"a": "s2.safetensors", "b": "s3.safetensors"}})");
  CHECK(byte_of("a") == 'y');
  CHECK(byte_of("b") == 'b');
  write_file(index, R"({"weight_map": {"a": "../s1.safetensors"}})");
  CHECK(holds(error(), "same folder"));
  write_file(index, "{}");
  CHECK(holds(error(), "no object 'weight_map'"));
  write_file(index, "{");
  CHECK(holds(error(), "not valid JSON"));
}

TEST_CASE("a file that shrinks while it is read is noticed") {
  const TemporaryDirectory folder;
  const std::string path = folder / "model.safetensors";
  write_file(path, raw_file(R"({"a":{"dtype":"U8","shape":[100],"data_offsets":[0,100]}})", std::string(100, 'x')));
  const SafetensorsReader reader(folder.path.string());
  fs::resize_file(path, 100);
  char out[100];
  const std::string text = message_of([&] { reader.read("a", 0, 100, out); });
  CHECK(holds(text, "tensor 'a'"));
  CHECK(holds(text, "cut short"));
}

}
