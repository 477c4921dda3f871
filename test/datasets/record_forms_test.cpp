// Records in the forms that people have them in: ShareGPT's conversations, other names of keys, lists under a key, CSV.
#include <doctest/doctest.h>

#include <random>

#include "datasets/record_checks.h"
#include "text/chat_template.h"

using namespace blipft;
using namespace blipft::testing;

TEST_SUITE("record forms") {
  TEST_CASE("ShareGPT's conversations are read as they are") {
    TextSettings settings;
    settings.chat_template = chat_format("chatml");
    const auto text = [&](const std::string& record) { return marked(sample_in(record, settings)); };
    const std::string ours = R"([{"role": "system", "content": "S"}, {"role": "user", "content": "U"},
                                 {"role": "assistant", "content": "A"}])";
    const std::string theirs = R"([{"from": "system", "value": "S"}, {"from": "human", "value": "U"},
                                   {"from": "gpt", "value": "A"}])";
    const std::string expected = text("{\"messages\": " + ours + "}");
    CHECK(expected.find("+A<|im_end|>") != std::string::npos);
    CHECK(text("{\"id\": 1, \"conversations\": " + theirs + "}") == expected);
    CHECK(text("{\"messages\": " + theirs + "}") == expected);
    CHECK(text("{\"conversations\": " + ours + "}") == expected);
    CHECK(text("{\"conversations\": " + theirs + ", \"text\": \"T\"}") == "+T");  // written out already
    settings.keys = {{"messages", "dialog"}, {"role", "who"}, {"content", "said"}};
    CHECK(text(R"({"text": "T", "dialog": [{"who": "system", "said": "S"}, {"who": "user", "said": "U"},
                                           {"who": "gpt", "said": "A"}]})") == expected);
  }

  TEST_CASE("an answer of weight 0 is not trained") {
    TextSettings settings;
    settings.special_tokens["bos_token"] = "<s>", settings.special_tokens["eos_token"] = "</s>";
    const auto text = [&](const char* name, const std::string& weight) {
      settings.chat_template = chat_format(name);
      return marked(sample_in(R"({"messages": [{"role": "user", "content": "U", "weight": 1},)"
                              R"({"role": "assistant", "content": "A")" + weight + R"(},{"role": "user", "content": "V"},)"
                              R"({"role": "assistant", "content": "B", "weight": 1}]})", settings));
    };
    CHECK(text("chatml", ", \"weight\": 0") == "-<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n"
                                               "<|im_start|>user\nV<|im_end|>\n<|im_start|>assistant\n+B<|im_end|>-\n");
    for (const char* name : {"llama2", "llama3", "chatml", "zephyr"}) {
      CHECK(text(name, ", \"weight\": 0").find("+A") == std::string::npos);
      CHECK(text(name, ", \"weight\": 0").find("B") != std::string::npos);
      CHECK(text(name, ", \"weight\": null") == text(name, ""));
      CHECK(text(name, ", \"weight\": 1.0") == text(name, ""));
      CHECK(text(name, "") != text(name, ", \"weight\": 0"));
    }
  }

  TEST_CASE("data.keys says what records call the keys") {
    TextSettings settings;
    settings.keys = {{"prompt", "question"}, {"completion", "answer"}};
    CHECK(marked(sample_in(R"({"question": "Q", "answer": "A", "prompt": "x", "completion": "y", "text": "z"})",
                           settings)) == "+Q+A");
    check_parts(message_of([&] { sample_in(R"({"prompt": "x", "completion": "y"})", settings); }),
                {"found \"completion\", \"prompt\"", "expected \"question\" and \"answer\" by data.keys"});
    settings.keys = {{"instruction", "task"}, {"input", "context"}, {"output", "answer"}};
    settings.prompt_style = "{instruction}|{input}|";
    CHECK(marked(sample_in(R"({"task": "T", "context": "C", "answer": "A", "input": "x"})", settings)) == "+T|C|+A");
    settings.keys = {{"output", "response"}};
    CHECK(marked(sample_in(R"({"instruction": "T", "input": "C", "response": "A"})", settings)) == "+T|C|+A");
    settings.keys = {{"text", "content"}};
    CHECK(marked(sample_in(R"({"content": "C", "messages": []})", settings)) == "+C");
  }

  TEST_CASE("records under one key of a file that is an object") {
    const TemporaryDirectory directory;
    const std::string nested = R"({"version": "1.0 [{", "info": {"a": [1, {"b": 2}]}, "ids": [1, 2], "none": [],
 "data": [{"text": "a", "more": [{"x": "]"}]},
 {"text": "b\\"}], "end": null})";
    const std::string file = directory.write("a.json", nested);
    CHECK(texts_in(*open_dataset(file, DatasetFormat::automatic)) == std::vector<std::string>{"a", "b\\"});
    check_parts(message_of([&] { open_dataset(directory.write("b.json", R"({"data": [{"text": "a"},
{"text": 5}]})"), DatasetFormat::automatic)->read(1); }), {"b.json:2 (record 2): key \"text\" is 5"});
    const std::string two = R"({"train": [{"text": "a"}], "test": [{"text": "b"}]})";
    check_file("c.json", two, {"holds 2 lists of objects, under \"train\", \"test\"", "data.keys={records: train}"});
    TextSettings settings;
    settings.keys = {{"records", "test"}};
    CHECK(texts_in(*open_dataset(directory.write("c.json", two), DatasetFormat::automatic, settings)) == std::vector<std::string>{"b"});
    settings.keys = {{"records", "dev"}};
    check_parts(message_of([&] { open_dataset(directory / "c.json", DatasetFormat::automatic, settings); }), {"\"dev\"", "data.keys"});
    check_file("d.json", "{\"data\": [{\"text\": \"a\"},\n{\"text\": \"b\"", {":2: ", "truncated"});
    // Lines of objects with lists in them stay lines.
    settings = {};
    settings.chat_template = chat_format("chatml");
    const std::string line = R"({"conversations": [{"from": "human", "value": "U"}]})";
    CHECK(open_dataset(directory.write("e.json", line + "\n" + line), DatasetFormat::automatic, settings)->size() == 2);
    CHECK(open_dataset(directory.write("e.json", line), DatasetFormat::automatic, settings)->size() == 1);
    CHECK(open_dataset(directory.write("f.json", R"({"text": "a", "x": [{}]})" "\n" R"({"text": "b"})"), DatasetFormat::automatic)->size() == 2);
  }

  TEST_CASE("CSV: a header, quotes, line ends within them") {
    const TemporaryDirectory directory;
    const std::string rows = "prompt,\"completion\",id\r\n\"a \"\"b\"\", c\nd\",e,1\r\n\r\nf,5\" g,2\n\"\",\"h\"\"\",3";
    const auto dataset = open_dataset(directory.write("a.csv", "\xef\xbb\xbf" + rows), DatasetFormat::automatic);
    REQUIRE(dataset->size() == 3);
    CHECK(marked(dataset->read(0)) == "+a \"b\", c\nd+e");
    CHECK(marked(dataset->read(1)) == "+f+5\" g");
    CHECK(marked(dataset->read(2)) == "++h\"");
    CHECK(dataset->read(0).name == (directory / "a.csv") + ":2");
    CHECK(dataset->read(1).name == (directory / "a.csv") + ":5");
    CHECK(!dataset->has_pictures());
    TextSettings settings;
    settings.keys = {{"text", "Review Text"}};
    CHECK(texts_in(*open_dataset(directory.write("b.csv", "id,Review Text\r1,x\r2,y\r"), DatasetFormat::csv, settings)) ==
          std::vector<std::string>{"x", "y"});
    check_file("c.csv", "", {"empty", "a header line"});
    check_file("c.csv", "text\n", {"empty"});
    check_file("c.csv", "text,text\na,b\n", {":1: found two columns \"text\""});
    check_file("c.csv", "text,id\na,b,c\n", {":2: found 3 fields, expected 2"});
    check_file("c.csv", "text\n\"a\nb\n", {":2: ", "never closed"});
    check_file("c.csv", "label\na\n", {":2: found \"label\"", "data.keys={text: \"label\"}"});
    // As many records as Python's csv module finds, whatever is in them; and no line of one is taken for another.
    std::mt19937 random(5);
    std::string text = "text\n";
    std::vector<std::string> expected;
    for (int i = 0; i < 300000; ++i) {
      std::string value = "v" + std::to_string(i);
      for (int n = static_cast<int>(random() % 4); n > 0; --n) value += "\",\n\r;"[random() % 5];
      std::string doubled;
      for (const char c : value) doubled += c == '"' ? "\"\"" : std::string(1, c);
      text += "\"" + doubled + "\"\n";
      expected.push_back(value);
    }
    const auto many = open_dataset(directory.write("many.csv", text), DatasetFormat::automatic);  // more than a block
    REQUIRE(many->size() == 300000);
    for (int64_t i = 0; i < many->size(); i += 997)
      CHECK(many->read(i).segments.at(0).text == expected[static_cast<size_t>(i)]);
  }
}
