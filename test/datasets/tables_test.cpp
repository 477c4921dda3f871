// Tables and compressed records: separators, gzip, pictures named in any column; unsupported pictures; keys that are not
// rendered.
#include <doctest/doctest.h>

#include <string>

#include <zlib.h>

#include "blipft/config.h"
#include "datasets/record_checks.h"
#include "io/gzip.h"
#include "text/chat_template.h"

using namespace blipft;
using namespace blipft::testing;

namespace {

// gzip data of `text`, as one member.
std::string gzipped(const std::string& text) {
  z_stream stream{};
  REQUIRE(deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  REQUIRE(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string text_at(const Dataset& dataset, int64_t index) { return marked(dataset.read(index)); }

std::string ustar(const std::string& name, const std::string& content) {
  std::string header(512, '\0');
  header.replace(0, name.size(), name);
  char number[13];
  std::snprintf(number, sizeof number, "%011zo", content.size());
  header.replace(124, 11, number);
  header[156] = '0';
  header.replace(257, 8, std::string("ustar\0" "00", 8));
  header.replace(148, 8, "        ");
  unsigned sum = 0;
  for (const char byte : header) sum += static_cast<unsigned char>(byte);
  std::snprintf(number, sizeof number, "%06o", sum);
  header.replace(148, 7, std::string(number, 7));
  std::string member = header + content;
  member.resize((member.size() + 511) / 512 * 512);
  return member;
}

const std::string kJpeg = "\xff\xd8\xff\xe0", kGif = "GIF89a", kPng("\x89PNG\r\n\x1a\n", 8);

}  // namespace

TEST_SUITE("tables") {
  TEST_CASE("the header says which separator a table has") {
    const TemporaryDirectory directory;
    const auto check = [&](const std::string& name, const std::string& text) {
      const auto dataset = open_dataset(directory.write(name, text), DatasetFormat::automatic);
      REQUIRE(dataset->size() == 2);
      CHECK(text_at(*dataset, 0) == "+a, b+c");
      CHECK(text_at(*dataset, 1) == "+d;\te+f\ng");
    };
    check("semicolons.csv", "prompt;completion\na, b;c\n\"d;\te\";\"f\ng\"\n");
    check("tabs.csv", "prompt\tcompletion\na, b\tc\n\"d;\te\"\t\"f\ng\"\n");
    check("tabs.tsv", "id\tprompt\tcompletion\r\n1\ta, b\tc\r\n2\t\"d;\te\"\t\"f\ng\"\r\n");
    check("commas.csv", "prompt,\"completion\"\n\"a, b\",c\n\"d;\te\",\"f\ng\"\n");
    const auto one = open_dataset(directory.write("one.csv", "text\na;b\nc\td\n"), DatasetFormat::automatic);
    CHECK(text_at(*one, 0) == "+a;b");
    CHECK(text_at(*one, 1) == "+c\td");
    check_file("c.csv", "prompt;completion\na;b;c\n", {":2: found 3 fields, expected 2", "contain the separator"});
  }

  TEST_CASE("compressed records are those of the file inside") {
    const TemporaryDirectory directory;
    std::string lines, list, table = "text;id\n";
    for (int i = 0; i < 50000; ++i) {
      const std::string record = "{\"text\": \"record " + std::to_string(i) + "\"}";
      lines += record + "\n";
      list += (list.empty() ? "[" : ",") + record;
      table += "record " + std::to_string(i) + ";7\n";
    }
    directory.write("gz/a.jsonl.gz", gzipped(lines.substr(0, 1000)) + gzipped(lines.substr(1000)));
    directory.write("gz/b.json.gz", gzipped(list + "]"));
    directory.write("gz/c.csv.gz", gzipped(table));
    directory.write("gz/d.tsv.gz", gzipped(table));
    const auto dataset = open_dataset(directory / "gz", DatasetFormat::automatic);
    REQUIRE(dataset->size() == 200000);
    for (int64_t i = 0; i < dataset->size(); i += 1777)
      CHECK(text_at(*dataset, i) == "+record " + std::to_string(i % 50000));
    CHECK(dataset->read(1).name == directory / "gz/a.jsonl.gz" + ":2");
    const std::string whole = gzipped(lines);
    check_file("a.jsonl.gz", whole.substr(0, whole.size() / 2), {"truncated"});
    check_file("a.jsonl.gz", whole.substr(0, whole.size() - 4), {"truncated"});
    check_file("a.jsonl.gz", "no gzip", {"not valid gzip data"});
    check_file("a.jsonl.gz", "", {"truncated"});
    CHECK(message_of([&] { io::read_gzip(directory / "gz/c.csv.gz", 1000); }).find("more than 1000 bytes") != std::string::npos);
    CHECK(usual_text_tokens(directory / "gz", DatasetFormat::automatic, {}, 50) == 512);
  }

  TEST_CASE("a table with names of pictures, whatever it and its columns are called") {
    const std::pair<const char*, const char*> tables[] = {
        {"captions.csv", "image,caption\n1.jpg,a cat\n2.JPG,\"a dog, here\"\n"},
        {"train.csv", "split;name of it;text\ntrain;1.jpg;a cat\ntrain;2.JPG;a dog, here\n"},
        {"x.tsv", "caption\tfilepath\na cat\t1.jpg\na dog, here\t2.JPG\n"},
        {"captions.jsonl", "{\"photo\": \"1.jpg\", \"caption\": \"a cat\"}\n{\"photo\": \"2.JPG\", \"caption\": \"a dog, here\"}\n"},
        {"metadata.csv", "image,text\n1.jpg,a cat\n2.JPG,\"a dog, here\"\n"}};
    for (const auto& [name, text] : tables)
      for (const bool compressed : {false, true}) {
        CAPTURE(name);
        if (compressed && std::string(name) == "metadata.csv") continue;
        const TemporaryDirectory directory;
        for (const char* folder : {"d/", "e/images/"})
          for (const char* picture : {"1.jpg", "2.JPG"}) directory.write(std::string(folder) + picture, kJpeg);
        for (const char* folder : {"d", "e"}) {
          const std::string file = directory.write(std::string(folder) + "/" + name + (compressed ? ".gz" : ""),
                                                   compressed ? gzipped(text) : text);
          for (const std::string& path : {file, directory / folder}) {
            CHECK(usual_text_tokens(path, DatasetFormat::automatic, {}, 50) == 50);
            const auto dataset = open_dataset(path, DatasetFormat::automatic);
            REQUIRE(dataset->size() == 2);
            CHECK(dataset->read(1).picture->size() == kJpeg.size());
            CHECK(text_at(*dataset, 0) == "+a cat");
            CHECK(text_at(*dataset, 1) == "+a dog, here");
          }
        }
      }
  }

  TEST_CASE("other names and folders of a table of pictures; tables of texts stay texts") {
    const TemporaryDirectory directory;
    directory.write("p/1.jpg", kJpeg);
    TextSettings settings;
    const std::string elsewhere = directory.write("t/captions.csv", "image,caption\n1.jpg,a cat\n");
    check_parts(message_of([&] { open_dataset(elsewhere, DatasetFormat::automatic); }),
                {"names of pictures in the column \"image\"", "there is no ", "data.pictures=FOLDER"});
    settings.pictures = directory / "p";
    CHECK(text_at(*open_dataset(elsewhere, DatasetFormat::automatic, settings), 0) == "+a cat");
    const std::string named = directory.write("p/x.csv", "image,words\n1.jpg,a cat\n");
    check_parts(message_of([&] { open_dataset(named, DatasetFormat::automatic); }), {"x.csv:1: no column \"text\"", "data.keys={text: COLUMN}"});
    settings = {};
    settings.keys = {{"text", "words"}};
    CHECK(text_at(*open_dataset(named, DatasetFormat::automatic, settings), 0) == "+a cat");
    const auto questions = open_dataset(directory.write(
        "q/a.jsonl", "{\"image\": \"../p/1.jpg\", \"question\": \"what?\", \"answers\": [\"a cat\", \"cat\"]}\n"), DatasetFormat::automatic,
        [] { TextSettings outside; outside.allow_outside = true; return outside; }());
    CHECK(questions->read_prompt(0).text == "what?");
    CHECK(questions->read_prompt(0).references.size() == 2);
    const auto texts = open_dataset(directory.write("p/y.csv", "image,prompt,completion\n1.jpg,a,b\n"), DatasetFormat::automatic);
    CHECK(!texts->has_pictures());
    check_parts(message_of([&] { open_dataset(directory / "p", DatasetFormat::automatic); }), {"x.csv", "choose this table with data.path="});
  }

  TEST_CASE("unsupported pictures are refused with their number and names, by suffix and first bytes") {
    const auto refused = [](const std::string& path) {
      return message_of([&] { open_dataset(path, DatasetFormat::automatic)->check_picture_formats(); });
    };
    const TemporaryDirectory directory;
    const std::pair<const char*, std::string> pictures[] = {
        {"a.jpg", kJpeg}, {"b.gif", kGif},   {"c.jpg", kGif}, {"d.bmp", "BM"}, {"e.TIFF", ""},
        {"f.gif", kPng}, {"g.jpg", "broken"}, {"h.png", std::string("II*\0", 4)}};
    std::string lines;
    for (const auto& [name, bytes] : pictures) {
      directory.write(std::string("d/") + name, bytes);
      directory.write(std::string("t/") + name, bytes);
      directory.write(std::string("t/") + name[0] + ".txt", "a caption");
      for (int i = 0; i < 2; ++i) lines += std::string("{\"file_name\": \"") + name + "\", \"text\": \"x\"}\n";
    }
    directory.write("d/metadata.jsonl", lines);
    for (const char* folder : {"d", "t"})
      check_parts(refused(directory / folder), {folder, "found 5 pictures in unsupported formats (1 BMP, 2 GIF, 2 TIFF) among 8: ",
                                                "b.gif", "c.jpg", "d.bmp", "e.TIFF", "h.png", "JPEG, PNG or WebP"});
    CHECK(open_dataset(directory / "d", DatasetFormat::automatic)->size() == 16);
    std::string many;
    for (int i = 0; i < 2000; ++i) {
      const std::string name = std::to_string(i) + ".jpg";
      directory.write("m/" + name, i % 2 ? kGif : kJpeg);
      many += "{\"file_name\": \"" + name + "\", \"text\": \"x\"}\n";
    }
    directory.write("m/metadata.jsonl", many);
    check_parts(refused(directory / "m"), {"found 1000 pictures", "among 2000: ", ", ..."});
    const std::string end(1024, '\0');
    const std::string inside = directory.write("s.tar", ustar("s0.jpg", kGif) + ustar("s0.txt", "x") + end);
    check_parts(refused(inside), {"s.tar: found 1 picture", "s0.jpg"});
    const std::string gif = directory.write("g.tar", ustar("s0.gif", kGif) + ustar("s0.txt", "x") + end);
    check_parts(refused(gif), {"\"s0.txt\" has no picture beside it", "found \"s0.gif\", a GIF", "JPEG, PNG or WebP"});
  }

  TEST_CASE("a WebDataset's key ends at the first dot, and the message says so") {
    const TemporaryDirectory directory;
    const std::string end(1024, '\0');
    const std::vector<std::string> rule = {"found \"x/s0.input.jpg\"", "ends at the first dot", "\"x/s0\"", "\"input.jpg\""};
    const auto message = [&](const std::string& members) {
      return message_of([&] { open_dataset(directory.write("s.tar", members + end), DatasetFormat::automatic); });
    };
    check_parts(message(ustar("x/s0.input.jpg", kJpeg) + ustar("x/s0.txt", "x")), rule);
    check_parts(message(ustar("x/s0.input.jpg", kJpeg) + ustar("x/s0.input.txt", "x")), rule);
    const std::string more = ustar("s0.jpg", kJpeg) + ustar("s0.txt", "x") + ustar("s0.mask.png", kPng);
    CHECK(open_dataset(directory.write("t.tar", more + end), DatasetFormat::automatic)->size() == 1);
  }

  TEST_CASE("keys that carry training data and are not rendered are refused, with their number") {
    TextSettings settings;
    settings.chat_template = chat_format("chatml");
    const std::string turns = R"([{"role": "user", "content": "U"}, {"role": "assistant", "content": "A"}])";
    const auto with = [&](const std::string& message) {
      return R"({"messages": [{"role": "user", "content": "U"}, {"role": "assistant", )" + message + "}]}";
    };
    const std::pair<std::string, const char*> records[] = {
        {"{\"messages\": " + turns + ", \"tools\": [{\"name\": \"f\"}]}", "tools"},
        {with(R"("content": null, "tool_calls": [{"id": 1}])"), "tool_calls"},
        {with(R"("content": "A", "reasoning_content": "because")"), "reasoning_content"},
        {with(R"("content": "A", "function_call": {"name": "f"})"), "function_call"},
        {R"({"system_prompt": "S", "conversations": [{"from": "human", "value": "U"}, {"from": "gpt", "value": "A"}]})", "system_prompt"},
        {R"({"instruction": "I", "output": "O", "system": "S"})", "system"},
        {R"({"instruction": "I", "output": "O", "history": [["a", "b"]]})", "history"},
        {R"({"instruction": "I", "output": "O", "context": "C"})", "context"},
        {R"({"prompt": "P", "completion": "C", "history": "H"})", "history"}};
    for (const auto& [record, key] : records) {
      const TemporaryDirectory directory;
      const std::string good = R"({"prompt": "P", "completion": "C", "history": [], "system": "", "tools": null, "id": 3})";
      const std::string file = directory.write("a.jsonl", good + "\n" + record + "\n{]\n" + record + "\n");
      const auto dataset = open_dataset(file, DatasetFormat::automatic, settings);
      CHECK(text_at(*dataset, 0) == "+P+C");
      for (const bool prompt : {false, true}) {
        const std::string message = message_of([&] { prompt ? (void)dataset->read_prompt(1) : (void)dataset->read(1); });
        CHECK(message.starts_with(file + ":2: key \"" + key + "\": "));
        check_parts(message, {"in 2 of 4 records", "remove"});
      }
    }
    settings.keys = {{"prompt", "system"}, {"completion", "A"}};  // a key that is named is rendered
    CHECK(marked(sample_in(R"({"system": "S", "A": "B"})", settings)) == "+S+B");
    const TemporaryDirectory directory;
    directory.write("1.jpg", kJpeg);
    const std::string picture = R"({"file_name": "1.jpg", "prompt": "P", "answer": "A", )";
    directory.write("metadata.jsonl", picture + "\"id\": 1}\n" + picture + "\"history\": [\"x\"]}\n");
    check_parts(message_of([&] { open_dataset(directory.path.string(), DatasetFormat::automatic); }),
                {"metadata.jsonl:2: key \"history\"", "in 1 of 2 records"});
    std::string members;
    for (const char* name : {"a", "b", "c"})
      members += ustar(std::string(name) + ".jpg", kJpeg) +
                 ustar(std::string(name) + ".json", std::string("{\"prompt\": \"P\", \"answer\": \"x\"") + (*name == 'a' ? "" : ", \"system\": \"S\"") + "}");
    const auto shard = open_dataset(directory.write("s/s.tar", members + std::string(1024, '\0')), DatasetFormat::automatic);
    CHECK(text_at(*shard, 0) == "-P+x");
    const std::string caption = "{\"file_name\": \"1.jpg\", \"text\": \"x\", \"system\": \"camera\"}\n";
    CHECK(open_dataset((directory.write("metadata.jsonl", caption), directory.path.string()), DatasetFormat::automatic)->size() == 1);
    for (const int64_t i : {1, 2})
      check_parts(message_of([&] { shard->read(i); }), {"s.tar:b.json: key \"system\"", "in 2 of 3 records"});
  }
}
