// Datasets: ImageFolder (JSON lines and CSV) and WebDataset shards, with every kind of broken input and its message.
#include <doctest/doctest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "blipft/datasets.h"
#include "blipft/error.h"
#include "support/error_message.h"
#include "support/temporary_directory.h"
#include "text/chat_template.h"

using namespace blipft;
using testing::message_of;
using testing::TemporaryDirectory;
namespace fs = std::filesystem;

namespace {

/// Opening `path` must fail with a message that has all these parts.
void check_refused(const std::string& path, const std::vector<std::string>& parts, DatasetFormat format = DatasetFormat::automatic) {
  const std::string message = message_of([&] { open_dataset(path, format); });
  CAPTURE(message);
  for (const std::string& part : parts) {
    CAPTURE(part);
    CHECK(message.find(part) != std::string::npos);
  }
}

std::string text_of(const Dataset::Sample& sample) { return {sample.picture->begin(), sample.picture->end()}; }

/// One ustar member: header, content, padding.
std::string tar_member(const std::string& name, const std::string& content, char type = '0',
                       const std::string& prefix = "",
                       const std::string& size_field = "") {
  char header[512] = {};
  std::memcpy(header, name.data(), std::min<size_t>(name.size(), 100));
  std::snprintf(header + 100, 8, "%07o", 0644);
  std::snprintf(header + 124, 12, "%011zo", content.size());
  if (!size_field.empty()) std::memcpy(header + 124, size_field.data(), 12);
  header[156] = type;
  std::memcpy(header + 257, "ustar\0" "00", 8);
  std::memcpy(header + 345, prefix.data(), prefix.size());
  std::memset(header + 148, ' ', 8);
  unsigned sum = 0;
  for (char byte : header) sum += static_cast<unsigned char>(byte);
  std::snprintf(header + 148, 8, "%06o", sum);
  std::string member(header, sizeof header);
  member += content;
  member.resize((member.size() + 511) / 512 * 512);
  return member;
}

std::string tar_end() { return std::string(1024, '\0'); }

/// A pax record, whose length counts itself.
std::string pax(const std::string& key, const std::string& value) {
  const std::string body = " " + key + "=" + value + "\n";
  size_t length = body.size() + 1;
  while (std::to_string(length).size() + body.size() != length) ++length;
  return std::to_string(length) + body;
}

}  // namespace

TEST_SUITE("dataset") {
  TEST_CASE("imagefolder: JSON lines") {
    TemporaryDirectory directory;
    directory.write("a/1.jpg", "one");
    directory.write("a/2 \xc3\xa9.png", "two");
    directory.write("3.jpg", "three");
    directory.write("4.jpg", "");
    directory.write("metadata.jsonl",
                    "\xef\xbb\xbf{\"file_name\": \"a/1.jpg\", \"text\": \"a cat\", \"id\": 7}\r\n\n"
                    "{\"file_name\": \"a/2 \\u00e9.png\", \"caption\": \"caf\\u00e9\"}\n"
                    "{\"file_name\": \"3.jpg\", \"text\": [\"first\", \"second\"], \"caption\": \"other\"}\n"
                    "{\"file_name\": \"4.jpg\", \"text\": \"\"}");
    const auto dataset = open_dataset(directory.path.string(), DatasetFormat::automatic);
    REQUIRE(dataset->size() == 4);
    CHECK(dataset->read(0).segments.at(0).text == "a cat");
    CHECK(dataset->read(0).name == directory / "a/1.jpg");
    CHECK(text_of(dataset->read(0)) == "one");
    CHECK(dataset->read(1).segments.at(0).text == "caf\xc3\xa9");
    CHECK(text_of(dataset->read(1)) == "two");
    CHECK(dataset->read(2).segments.at(0).text == "first");
    CHECK(dataset->read(3).picture->empty());
    CHECK_THROWS_AS(dataset->read(4), Error);
    fs::remove(directory.path / "3.jpg");
    CHECK(message_of([&] { dataset->read(2); }).find("3.jpg") != std::string::npos);
  }

  TEST_CASE("imagefolder: a surrogate escape that is no half of a pair becomes U+FFFD") {
    TemporaryDirectory directory;
    directory.write("1.jpg", "one");
    const std::string bad = "\xef\xbf\xbd";
    const std::vector<std::pair<std::string, std::string>> texts = {
        {R"(a \ud800 b)", "a " + bad + " b"},
        {R"(\uDFff)", bad},
        {R"(\ud83d\ude00)", "\xf0\x9f\x98\x80"},                      // a pair
        {R"(\ud83d\ud83d\ude00\ude00)", bad + "\xf0\x9f\x98\x80" + bad},
        {R"(\ude00\ud83d)", bad + bad},
        {R"(\ud83d\u0041\ud83d)", bad + "A" + bad},
        {R"(\\ud800 \"\\\ud800)", "\\ud800 \"\\" + bad},             // a backslash before it
        {R"(\\\\ud800 \u00e9\n)", "\\\\ud800 \xc3\xa9\n"}};
    std::string rows;
    for (const auto& [json, text] : texts)
      rows += "{\"file_name\": \"1.jpg\", \"url\": \"\\udc00\", \"text\": \"" + json + "\"}\n";
    directory.write("metadata.jsonl", rows);
    const auto dataset = open_dataset(directory.path.string(), DatasetFormat::automatic);
    REQUIRE(dataset->size() == static_cast<int64_t>(texts.size()));
    for (size_t i = 0; i < texts.size(); ++i) CHECK(dataset->read(static_cast<int64_t>(i)).segments.at(0).text == texts[i].second);
    for (const char* broken : {R"(\ud8)", R"(\ud8zz)", R"(\u-800)", R"(\)"}) {
      CAPTURE(broken);
      directory.write("metadata.jsonl", "{\"file_name\": \"1.jpg\", \"text\": \"" + std::string(broken) + "\"}\n");
      check_refused(directory.path.string(), {"metadata.jsonl:1", "JSON"});
    }
  }

  TEST_CASE("captions that are all empty are refused, some are not") {
    TemporaryDirectory directory;
    directory.write("1.jpg", "one");
    const std::string empty = "{\"file_name\": \"1.jpg\", \"text\": \"\"}\n";
    const std::string file = directory.write("metadata.jsonl", empty + empty + empty);
    check_refused(directory.path.string(), {file, "all 3 captions are empty"});
    directory.write("metadata.jsonl", empty + "{\"file_name\": \"1.jpg\", \"text\": \"a\"}\n");
    CHECK(open_dataset(directory.path.string(), DatasetFormat::automatic)->size() == 2);

    const std::string pictures = tar_member("1.jpg", "one") + tar_member("1.TXT", "") + tar_member("2.jpg", "two");
    const std::string shard = directory.write("s.tar", pictures + tar_member("2.txt", "") + tar_end());
    check_refused(shard, {shard, "all 2 captions", "empty"});
    directory.write("s.tar", pictures + tar_member("2.txt", "\n") + tar_end());
    CHECK(open_dataset(shard, DatasetFormat::automatic)->size() == 2);
    directory.write("s.tar", pictures + tar_member("2.json", "{\"text\": \"\"}") + tar_end());
    CHECK(open_dataset(shard, DatasetFormat::automatic)->size() == 2);  // its captions are not read before they are needed
  }

  TEST_CASE("imagefolder: CSV with quotes, in train/") {
    TemporaryDirectory directory;
    directory.write("train/1.jpg", "one");
    directory.write("train/2,3.jpg", "two");
    directory.write("train/4.jpg", "four");
    directory.write("train/metadata.csv",
                    "text,width,file_name\r\n"
                    "\"a \"\"big\"\" cat, and\na dog\",12,1.jpg\r\n"
                    "plain,,\"2,3.jpg\"\n"
                    "\n"
                    "\"\",5,4.jpg");
    const auto dataset = open_dataset(directory.path.string(), DatasetFormat::imagefolder);
    REQUIRE(dataset->size() == 3);
    CHECK(dataset->read(0).segments.at(0).text == "a \"big\" cat, and\na dog");
    CHECK(dataset->read(1).segments.at(0).text == "plain");
    CHECK(text_of(dataset->read(1)) == "two");
    CHECK(dataset->read(2).segments.at(0).text.empty());
  }

  TEST_CASE("imagefolder: broken metadata names file and line") {
    TemporaryDirectory directory;
    const std::string path = directory.path.string();
    directory.write("1.jpg", "one");
    const std::string good = "{\"file_name\": \"1.jpg\", \"text\": \"x\"}\n";
    const auto jsonl = [&](const std::string& text, const std::vector<std::string>& parts) {
      const std::string file = directory.write("metadata.jsonl", text);
      std::vector<std::string> all = parts;
      all.push_back(file);
      check_refused(path, all);
    };
    jsonl(good + "\n{\"file_name\": \"1.jpg\", ", {"metadata.jsonl:3", "JSON"});
    jsonl(good + "[1]", {"metadata.jsonl:2", "array"});
    jsonl(good + "{\"text\": \"x\"}", {"metadata.jsonl:2", "\"file_name\""});
    jsonl("{\"file_name\": \"1.jpg\", \"label\": \"x\"}", {"metadata.jsonl:1", "\"text\"", "\"label\""});
    jsonl("{\"file_name\": \"1.jpg\", \"text\": 5}", {"metadata.jsonl:1", "\"text\" is 5"});
    jsonl("{\"file_name\": 5, \"text\": \"x\"}", {"metadata.jsonl:1", "\"file_name\" is 5"});
    jsonl("\n", {"no samples"});
    jsonl(good + "{\"file_name\": \"no/2.jpg\", \"text\": \"x\"}\n{\"file_name\": \"3.jpg\", \"text\": \"x\"}\n",
          {"metadata.jsonl:2", "no/2.jpg", "2 of 3"});
    fs::remove(directory.path / "metadata.jsonl");

    const auto csv = [&](const std::string& text, const std::vector<std::string>& parts) {
      directory.write("metadata.csv", text);
      check_refused(path, parts);
    };
    csv("", {"metadata.csv", "empty"});
    csv("name,text\n", {"metadata.csv:1", "file_name"});
    csv("file_name,label\n", {"metadata.csv:1", "text"});
    csv("file_name,text\n1.jpg,a cat, a dog\n", {"metadata.csv:2", "3 fields", "expected 2"});
    csv("file_name,text\n1.jpg,\"a\nb\"\n1.jpg,\"never closed\n", {"metadata.csv:4", "closed"});
    csv("file_name,text\n1.jpg,\"a\"b\n", {"metadata.csv:2", "'b'"});
    csv("file_name,text\n,x\n", {"metadata.csv:2", "file_name"});
    csv("file_name,text\n1.jpg,x\n9.jpg,y\n", {"metadata.csv:3", "9.jpg", "1 of 2"});
  }

  TEST_CASE("COCO's captions: a sample for each, pictures in the folder of the split") {
    TemporaryDirectory directory;
    const std::string images = R"("images": [{"id": 7, "file_name": "b.jpg", "height": 5}, {"id": 3, "file_name": "a.jpg"}])";
    const std::string captions = R"("annotations": [{"id": 1, "image_id": 3, "caption": "one"},
      {"id": 2, "image_id": 7, "caption": "two"}, {"id": 5, "image_id": 3, "caption": "three"}])";
    const std::string file = directory.write("annotations/captions_train2017.json",
                                             R"({"info": {"year": 2017}, "licenses": [{"id": 1}], )" + images + ", " +
                                                 captions + "}");
    check_refused(file, {"a.jpg", "none of the folders", "train2017", "data.pictures=FOLDER"});
    directory.write("train2017/a.jpg", "A");
    directory.write("train2017/b.jpg", "B");
    const auto check = [](const Dataset& dataset) {
      REQUIRE(dataset.size() == 3);
      const char* const texts[] = {"one", "two", "three"};
      const char* const pictures[] = {"A", "B", "A"};
      for (int64_t i = 0; i < 3; ++i) {
        CHECK(dataset.read(i).segments.at(0).text == texts[i]);
        CHECK(text_of(dataset.read(i)) == pictures[i]);
      }
    };
    check(*open_dataset(file, DatasetFormat::automatic));
    check(*open_dataset(file, DatasetFormat::imagefolder));
    TextSettings settings;
    settings.pictures = directory / "train2017";
    const std::string other = directory.write("elsewhere/c.json", "{" + captions + ", " + images + "}");
    check(*open_dataset(other, DatasetFormat::automatic, settings));
    check_refused(directory.path.string(), {"COCO's captions are single files: give data.path=" + file});
    const auto refused = [&](const std::string& content, const std::vector<std::string>& parts) {
      check_refused(directory.write("bad.json", content), parts);
    };
    refused("{" + images + R"(, "annotations": [{"image_id": 9, "caption": "x"}]})", {"bad.json:1", "image_id", "9"});
    refused("{" + images + R"(, "annotations": [{"image_id": 3, "bbox": [1]}]})", {"bad.json:1", "no key \"caption\""});
    refused("{" + images + R"(, "annotations": [{"caption": "x"}]})", {"bad.json:1", "\"image_id\" is missing"});
  }

  TEST_CASE("a .txt beside each picture is its caption") {
    TemporaryDirectory directory;
    directory.write("2.png", "two");
    directory.write("2.txt", " a dog \r\n");
    directory.write("1.JPG", "one");
    directory.write("1.txt", "a cat");
    directory.write("3.webp", "three");
    directory.write("3.txt", "");
    const auto dataset = open_dataset(directory.path.string(), DatasetFormat::automatic);
    REQUIRE(dataset->size() == 3);
    const char* const texts[] = {"a cat", " a dog ", ""};
    const char* const pictures[] = {"one", "two", "three"};
    for (int64_t i = 0; i < 3; ++i) {
      CHECK(dataset->read(i).segments.at(0).text == texts[i]);
      CHECK(text_of(dataset->read(i)) == pictures[i]);
    }
    directory.write("4.jpeg", "four");
    check_refused(directory.path.string(), {"4.jpeg", "has no caption beside it, expected 4.txt", "1 of 4"});
    directory.write("metadata.csv", "file_name,text\n4.jpeg,x\n");  // it counts, where it is
    CHECK(open_dataset(directory.path.string(), DatasetFormat::automatic)->size() == 1);
  }

  TEST_CASE("metadata with other names, and pictures elsewhere") {
    TemporaryDirectory directory;
    directory.write("far/1.jpg", "one");
    TextSettings settings;
    settings.keys = {{"file_name", "image"}, {"text", "caption_en"}};
    settings.pictures = directory / "far";
    directory.write("set/metadata.jsonl", R"({"image": "1.jpg", "caption_en": "a", "text": "b"})");
    CHECK(open_dataset(directory / "set", DatasetFormat::automatic, settings)->read(0).segments.at(0).text == "a");
    fs::remove(directory.path / "set/metadata.jsonl");
    directory.write("set/metadata.csv", "image,caption_en\n1.jpg,a\n");
    CHECK(open_dataset(directory / "set", DatasetFormat::automatic, settings)->read(0).segments.at(0).text == "a");
    settings.keys["text"] = "absent";
    const std::string message = message_of([&] { open_dataset(directory / "set", DatasetFormat::automatic, settings); });
    CHECK_MESSAGE(message.find("no column \"absent\" in the header") != std::string::npos, message);
    check_refused(directory / "set", {"metadata.csv:1", "no column \"file_name\"", "data.keys={file_name: COLUMN}"});
  }

  TEST_CASE("what is no dataset is said to be none") {
    TemporaryDirectory directory;
    check_refused(directory / "absent", {directory / "absent", "does not exist"});
    check_refused(directory.path.string(), {directory.path.string(), "metadata.jsonl", ".tar"});
    check_refused(directory.path.string(), {directory.path.string(), "metadata.jsonl"}, DatasetFormat::imagefolder);
    check_refused(directory.path.string(), {directory.path.string(), ".tar"}, DatasetFormat::webdataset);
    directory.write("state.json", "{}");
    check_refused(directory.path.string(), {"tools/convert_dataset.py"});
  }

  TEST_CASE("webdataset: keys of JSON records that nothing reads are counted") {
    const TemporaryDirectory directory;
    std::string shard;
    for (int i = 0; i < 1100; ++i)
      shard += tar_member(concat(i, ".jpg"), "x") +
               (i % 2 ? tar_member(concat(i, ".txt"), "t") : tar_member(concat(i, ".json"), R"({"text": "t", "width": 5, "url": ""})"));
    const auto keys_of = [&](const std::string& path) { return open_dataset(path, DatasetFormat::automatic)->unread_keys(); };
    const std::string many = keys_of(directory.write("many.tar", shard + tar_end()));
    CHECK(many.starts_with("url ("));
    CHECK(many.ends_with(" of 1024 records, evenly spread"));
    CHECK(keys_of(directory.write("one.tar", tar_member("1.jpg", "x") + tar_member("1.json", R"({"text": "t", "key": "1"})") +
                                                 tar_end())) == "key (1)");
    CHECK(keys_of(directory.write("broken.tar", tar_member("1.jpg", "x") + tar_member("1.json", "{") + tar_end())) == "");
  }

  TEST_CASE("webdataset: names, sizes and captions of every kind") {
    TemporaryDirectory directory;
    const std::string deep(120, 'd'), pax_name(300, 'p');
    std::string size_field = "000000000000";  // base-256: the size 3
    size_field.assign(12, '\0');
    size_field[0] = '\x80', size_field[11] = 3;
    directory.write("shard-001.tar",
                    tar_member("set/", "", '5') + tar_member("set/0001.jpg", "one") +
                        tar_member("set/0001.txt", "a cat\n") +
                        tar_member("set/0001.seg.png", "mask") + tar_member("set/0001.cls", "5") +
                        tar_member("0002.JSON", "{\"caption\": [\"a dog\", \"x\"]}") +
                        tar_member("0002.JPEG", std::string(700, 'z')) +
                        // text wins over json; a link has no content whatever its size says
                        tar_member("0003.png", "three") + tar_member("0003.json", "{\"text\": \"json\"}") +
                        tar_member("link", "", '2') + tar_member("0003.txt", "text") + tar_member(".hidden", "x") +
                        tar_end());
    directory.write("shard-002.tar",
                    // ustar prefix; GNU long name; pax path and size; base-256 size; a pax global header
                    tar_member("pax_global_header", pax("comment", "hello"), 'g') +
                        tar_member("0004.jpg", "four", '0', deep) + tar_member("0004.txt", "prefix", '0', deep) +
                        tar_member("././@LongLink", std::string(150, 'l') + "/5.jpg" + std::string(1, '\0'), 'L') +
                        tar_member(std::string(100, 'l'), "five") +
                        tar_member("././@LongLink", std::string(150, 'l') + "/5.txt" + std::string(1, '\0'), 'L') +
                        tar_member(std::string(100, 'l'), "gnu") +
                        tar_member("PaxHeaders/6", pax("mtime", "1.5") + pax("path", pax_name + ".jpg") +
                                                       pax("size", "3"), 'x') +
                        tar_member("short.jpg", "six", '0', "", "00000000000 ") +
                        tar_member("PaxHeaders/6", pax("path", pax_name + ".txt"), 'x') +
                        tar_member("short.txt", "pax") +
                        tar_member("0007.png", "sev", '0', "", size_field) +
                        tar_member("0007.txt", "base-256") + std::string(512, '\0'));  // one block ends it as two do
    directory.write("notes.txt", "not a shard");
    for (const std::string& path : {directory.path.string(), directory / "shard-*.tar",
                                    directory / "shard-{001,002}.tar"}) {
      CAPTURE(path);
      CHECK(dataset_exists(path));
      const auto dataset = open_dataset(path, DatasetFormat::automatic);
      REQUIRE(dataset->size() == 7);
      const char* const texts[] = {"a cat\n", "a dog", "text", "prefix", "gnu", "pax", "base-256"};
      for (int64_t i = 0; i < 7; ++i) CHECK(dataset->read(i).segments.at(0).text == texts[i]);
      CHECK(text_of(dataset->read(0)) == "one");
      CHECK(text_of(dataset->read(1)) == std::string(700, 'z'));
      CHECK(text_of(dataset->read(2)) == "three");
      CHECK(text_of(dataset->read(3)) == "four");
      CHECK(dataset->read(3).name == (directory / "shard-002.tar") + ":" + deep + "/0004.jpg");
      CHECK(text_of(dataset->read(4)) == "five");
      CHECK(text_of(dataset->read(5)) == "six");
      CHECK(dataset->read(5).name.find(pax_name + ".jpg") != std::string::npos);
      CHECK(text_of(dataset->read(6)) == "sev");
      CHECK(dataset->read(1).name == (directory / "shard-001.tar") + ":0002.JPEG");
    }
    CHECK(open_dataset(directory / "shard-001.tar", DatasetFormat::webdataset)->size() == 3);
    CHECK(!dataset_exists(directory / "shard-003.tar"));
    CHECK(!dataset_exists(directory / "other-*.tar"));
  }

  TEST_CASE("webdataset: captions keep their white space, and zeros may follow the end") {
    TemporaryDirectory directory;
    const std::string text = " a\tcat \r\n\n";
    const std::string members = tar_member("1.jpg", "one") + tar_member("1.txt", text) + tar_member("2.jpg", "two") +
                                tar_member("2.json", R"({"text": "a dog\n", "id": "\ud800"})");
    for (const size_t zeros : {512, 1024, 10240}) {
      const auto dataset = open_dataset(directory.write("s.tar", members + std::string(zeros, '\0')), DatasetFormat::automatic);
      REQUIRE(dataset->size() == 2);
      CHECK(dataset->read(0).segments.at(0).text == text);
      CHECK(dataset->read(1).segments.at(0).text == "a dog\n");
    }
  }

  TEST_CASE("webdataset: broken shards name tar and member") {
    TemporaryDirectory directory;
    const std::string pair = tar_member("1.jpg", "one") + tar_member("1.txt", "x");
    const auto refused = [&](const std::string& content, std::vector<std::string> parts) {
      const std::string file = directory.write("s.tar", content);
      parts.push_back(file);
      check_refused(file, parts);
    };
    refused(pair + tar_member("2.jpg", "two") + tar_end(), {"2.jpg", "no caption"});
    refused(pair + tar_member("2.txt", "two") + tar_end(), {"2.txt", "no picture"});
    refused(pair + tar_member("1.png", "again") + tar_end(), {"1.jpg", "1.png", "picture"});
    refused(pair + tar_member("1.txt", "again") + tar_end(), {"1.txt", "caption"});
    refused(tar_end(), {"no samples"});
    refused("", {"ends at byte 0", "truncated"});
    refused(pair, {"ends at byte 2048", "truncated", "download it again"});
    refused(pair + std::string(511, '\0'), {"truncated"});
    refused(pair + tar_member("PaxHeaders", pax("path", "2.jpg"), 'x'), {"ends at byte 3072", "truncated"});
    refused(pair + tar_member("2.jpg", std::string(600, 'x')).substr(0, 900), {"2.jpg", "truncated"});
    refused(pair.substr(0, pair.size() - 700), {"truncated"});
    std::string flipped = pair;
    flipped[1024 + 3] ^= 1;
    refused(flipped, {"checksum", "1024"});
    refused("\x1f\x8b" + std::string(600, 'g'), {"gzip"});
    refused(pair + tar_member("PaxHeaders", "99 path=x\n", 'x') + tar_end(), {"pax"});
    refused(pair + tar_member("2.jpg", "", '0', "", "not a number") + tar_end(), {"size"});

    const std::string file = directory.write(
        "s.tar", tar_member("1.jpg", "one") + tar_member("1.json", "{\"label\": 3}") + tar_member("2.jpg", "two") +
                     tar_member("2.json", "{") + tar_end());
    const auto dataset = open_dataset(file, DatasetFormat::automatic);
    const std::string no_key = message_of([&] { dataset->read(0); }), no_json = message_of([&] { dataset->read(1); });
    CHECK_MESSAGE(no_key.find(file + ":1.json") != std::string::npos, no_key);
    CHECK_MESSAGE(no_key.find("\"label\"") != std::string::npos, no_key);
    CHECK_MESSAGE(no_json.find(file + ":2.json") != std::string::npos, no_json);
    fs::resize_file(file, 600);  // cut after it was opened
    const std::string cut = message_of([&] { dataset->read(1); });
    CHECK_MESSAGE(cut.find("2.jpg") != std::string::npos, cut);
  }

  TEST_CASE("imagefolder: the shared photos") {
    const char* shared = std::getenv("BLIPFT_SHARED");
    const std::string path = std::string(shared ? shared : "../shared") + "/data/captions";
    if (!fs::exists(path)) {
      std::cout << "SKIPPED: imagefolder: the shared photos (no " << path << ")\n";
      return;
    }
    const auto dataset = open_dataset(path, DatasetFormat::automatic);
    REQUIRE(dataset->size() == 86);
    CHECK(dataset->read(0).segments.at(0).text == "a family is sitting down at a table to have cake");
    for (int64_t i = 0; i < dataset->size(); ++i) CHECK(dataset->read(i).picture->size() > 1000);
  }

  TEST_CASE("webdataset: a model that reads pictures in texts gets captions and conversations with the picture of the sample") {
    TemporaryDirectory directory;
    TextSettings settings;
    settings.pictures_in_texts = true;
    settings.chat_template = std::make_shared<const ChatTemplate>(
        "{% for m in messages %}[{{ m.role }}]{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
        "{% if part.type == 'image' %}#{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}", "t.jinja");
    const std::string conversation = R"({"image": "elsewhere.jpg", "conversations": [{"from": "human", "value": "<image>what?"}, )"
                                     R"({"from": "gpt", "value": "red"}]})";
    directory.write("s.tar", tar_member("1.jpg", "one") + tar_member("1.txt", "a cat") + tar_member("2.jpg", "two!") +
                                 tar_member("2.json", conversation) + tar_end());
    const auto dataset = open_dataset(directory / "s.tar", DatasetFormat::automatic, settings);
    REQUIRE(dataset->size() == 2);
    const char* const texts[][2] = {{"[user]#[assistant]", "a cat"}, {"[user]#what?[assistant]", "red"}};
    for (int64_t i = 0; i < 2; ++i) {
      const Dataset::Sample sample = dataset->read(i);
      const Dataset::Prompt prompt = dataset->read_prompt(i);
      REQUIRE(sample.segments.size() == 2);
      CHECK(sample.segments[0].text == texts[i][0]);
      CHECK(sample.segments[1].text == texts[i][1]);
      CHECK(prompt.text == texts[i][0]);
      CHECK(prompt.references == std::vector<std::string>{texts[i][1]});
      REQUIRE(sample.pictures.size() == 1);
      CHECK(prompt.pictures == sample.pictures);
      const PictureFile& picture = sample.pictures.front();
      CHECK(picture.file == directory / "s.tar");
      CHECK(picture.bytes == 3 + i);
      CHECK(picture.name == concat(directory / "s.tar", ":", i + 1, ".jpg"));
    }
  }
}
