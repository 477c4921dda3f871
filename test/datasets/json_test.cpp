// JSON data: where records lie, the kinds of them, their text and ids against transformers and LitGPT
// (tools/blipft_golden/conversations.py), and every broken input with its message.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <random>

#include <nlohmann/json.hpp>

#include "blipft/datasets.h"
#include "blipft/error.h"
#include "config/config_schema.h"
#include "datasets/json_index.h"
#include "datasets/record_checks.h"
#include "datasets/record_text.h"
#include "loading/sample_text.h"
#include "support/error_message.h"
#include "support/golden_files.h"
#include "support/temporary_directory.h"
#include "text/chat_template.h"

using namespace blipft;
using testing::golden_path;
using namespace blipft::testing;
using Json = nlohmann::json;
namespace fs = std::filesystem;

namespace {

constexpr int64_t kLong = 1 << 30;

Json read_json(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  REQUIRE_MESSAGE(in.good(), file);
  return Json::parse(in);
}

std::string shared_path(const std::string& name) {
  const char* root = std::getenv("BLIPFT_SHARED");
  return std::string(root != nullptr ? root : "../shared") + "/data/" + name;
}

/// A golden tokenizer or one of the shared data; null (and a visible line) where that is absent.
std::unique_ptr<Tokenizer> named_tokenizer(const std::string& name, const std::string& test) {
  for (const std::string& directory : {golden_path("tokenizer/" + name), shared_path("tokenizers/" + name)})
    if (fs::exists(directory)) return load_tokenizer(directory, {});
  std::cout << "SKIPPED: " << name << " " << test << " (not in the shared data; set BLIPFT_SHARED)" << std::endl;
  return nullptr;
}

/// FNV-1a, 32 bits, over 2 * id + learnt as 4 bytes each, lowest first.
uint32_t checksum(const TokenizedText& text) {
  uint32_t value = 0x811C9DC5;
  for (size_t i = 0; i < text.ids.size(); ++i)
    for (int shift : {0, 8, 16, 24})
      value = (value ^ ((2 * static_cast<uint32_t>(text.ids[i]) + text.is_label[i]) >> shift & 255)) * 0x01000193u;
  return value;
}

TextSettings settings_for(const Tokenizer& tokenizer, const std::string& chat_template = "") {
  TextSettings settings;
  settings.chat_template = chat_format(chat_template);
  for (const auto& [name, token] : {std::pair{"bos_token", tokenizer.bos_token()}, {"eos_token", tokenizer.eos_token()}})
    if (!token.empty()) settings.special_tokens[name] = token;
  return settings;
}

std::string lines_of(const Json& records) {
  std::string text;
  for (const Json& record : records) text += record.dump() + "\n";
  return text;
}

TokenizedText ids_of(const Dataset& dataset, size_t index, const Tokenizer& tokenizer, int64_t maximum = kLong) {
  return tokenize(dataset.read(static_cast<int64_t>(index)), tokenizer, maximum, kLong);
}

}  // namespace

TEST_SUITE("json data") {
  TEST_CASE("lines, lists and folders of files; blank lines, byte order marks and line ends of any kind") {
    const TemporaryDirectory directory;
    directory.write("d/b.jsonl", "\xef\xbb\xbf{\"text\": \"b1\"}\r\n\r\n  \t\n {\"text\": \"b2\\n\"}");
    directory.write("d/a.json", R"( [ {"text": "a1 ] , \" ["},)" "\n\n" R"({"text":"a2", "x": [1, {"y": "}"}]} ] )" "\n");
    directory.write("d/c.json", "{\"text\": \"c1\"}\n{\"text\": \"c2\"}\n");
    directory.write("d/notes.txt", "not data");
    directory.write("d/sub.json/x", "a folder");
    const auto dataset = open_dataset(directory / "d", DatasetFormat::automatic);
    CHECK(texts_in(*dataset) == std::vector<std::string>{"a1 ] , \" [", "a2", "b1", "b2\n", "c1", "c2"});
    CHECK(dataset->read(1).name == (directory / "d/a.json") + ":3 (record 2)");
    CHECK(dataset->read(2).name == (directory / "d/b.jsonl") + ":1");
    CHECK(dataset->read(3).name == (directory / "d/b.jsonl") + ":4");
    CHECK(dataset->read(5).name == (directory / "d/c.json") + ":2");
    CHECK_THROWS_AS(dataset->read(6), Error);
    CHECK(open_dataset(directory / "d", DatasetFormat::json)->size() == 6);
    CHECK(texts_in(*open_dataset(directory / "d/b.jsonl", DatasetFormat::automatic)) == std::vector<std::string>{"b1", "b2\n"});
    directory.write("d/b.jsonl", "{\"text\"");
    check_parts(message_of([&] { dataset->read(3); }), {"b.jsonl:4: ", "shorter"});
  }

  TEST_CASE("an ImageFolder with its metadata.jsonl stays one") {
    const TemporaryDirectory directory;
    directory.write("1.jpg", "one");
    const std::string file = directory.write("metadata.jsonl", "{\"file_name\": \"1.jpg\", \"text\": \"a\"}\n");
    directory.write("other.jsonl", "{\"text\": \"b\"}\n{\"text\": \"c\"}\n");
    CHECK(open_dataset(directory.path.string(), DatasetFormat::automatic)->read(0).picture);
    CHECK(open_dataset(file, DatasetFormat::automatic)->read(0).picture);
    CHECK(open_dataset(directory / "other.jsonl", DatasetFormat::automatic)->size() == 2);
  }

  TEST_CASE("indexing: random records, over the borders of the blocks that a file is read in [slow]") {
    std::mt19937 random(7);
    const TemporaryDirectory directory;
    Json list = Json::array();
    std::string lines;
    const std::string odd = "a\"\\[]{},:\n\t \xc3\xa9\xf0\x9f\x98\x80";
    for (int i = 0; i < 300; ++i) {
      std::string text;
      for (size_t length = random() % 60000; text.size() < length;) {
        const size_t at = random() % 12;   // an ASCII character, or the whole of the others
        text += at < 11 ? odd.substr(at, 1) : odd.substr(11);
      }
      list.push_back({{"id", {i, {{"[", "]"}}}}, {"text", text}});
      lines += list.back().dump() + (random() % 3 ? "\n" : "\n \n");
    }
    const auto expected = [&](const Dataset& dataset) {
      REQUIRE(dataset.size() == 300);
      for (int64_t i = 0; i < 300; ++i)
        CHECK(dataset.read(i).segments.at(0).text == list[static_cast<size_t>(i)]["text"].get<std::string>());
    };
    REQUIRE(lines.size() > size_t{1} << 23);
    expected(*open_dataset(directory.write("a.jsonl", lines), DatasetFormat::automatic));
    expected(*open_dataset(directory.write("b.json", list.dump()), DatasetFormat::automatic));
    expected(*open_dataset(directory.write("c.json", list.dump(2)), DatasetFormat::automatic));
  }

  TEST_CASE("kinds of records") {
    CHECK(marked(sample_in(R"({"text": " a\n"})")) == "+ a\n");
    CHECK(sample_in(R"({"text": "a"})").ends == std::nullopt);
    CHECK(marked(sample_in(R"({"prompt": "a", "completion": "b", "text": "c"})")) == "+a+b");
    CHECK(sample_in(R"({"prompt": "a", "completion": "b"})").ends == true);
    TextSettings settings;
    settings.mask_prompt = true;
    settings.append_eos = false;
    CHECK(marked(sample_in(R"({"prompt": "a", "completion": "b"})", settings)) == "-a+b");
    CHECK(sample_in(R"({"prompt": "a", "completion": "b"})", settings).ends == false);
    CHECK(sample_in(R"({"text": "a"})", settings).ends == false);
    settings.prompt_style = "none";
    CHECK(marked(sample_in(R"({"instruction": "a", "output": "b", "text": "c"})", settings)) == "-a+b");
    CHECK(marked(sample_in(R"({"instruction": "a", "input": "i", "output": "b"})", settings)) == "-a\ni+b");
    settings.prompt_style = "Q: {instruction} ({input}) {{instruction}} {x}\nA:";
    CHECK(marked(sample_in(R"({"instruction": "{input}", "input": "i", "output": "b"})", settings)) ==
          "-Q: {input} (i) {{input}} {x}\nA:+b");
    CHECK(marked(sample_in(R"({"instruction": "a", "input": null, "output": ""})", settings)) ==
          "-Q: a () {a} {x}\nA:+");
    settings.prompt_style = "{instruction}:";
    CHECK(marked(sample_in(R"({"instruction": "a", "input": "", "output": "b"})", settings)) == "-a:+b");
    check_parts(message_of([&] { sample_in(R"({"instruction": "a", "input": "i", "output": "b"})", settings); }),
                {"here: has an \"input\"", "data.prompt_style", "{input}"});
  }

  TEST_CASE("the prompts of Alpaca") {
    CHECK(prompt_of("alpaca", "Do.", "", "x") ==
          "Below is an instruction that describes a task. Write a response that appropriately completes the request."
          "\n\n### Instruction:\nDo.\n\n### Response:\n");
    CHECK(prompt_of("alpaca", "Do.", "It", "x") ==
          "Below is an instruction that describes a task, paired with an input that provides further context. Write a "
          "response that appropriately completes the request.\n\n### Instruction:\nDo.\n\n### Input:\nIt\n\n"
          "### Response:\n");
  }

  TEST_CASE("instructions are what LitGPT makes of them, with and without the prompt, cut or not") {
    const Json golden = read_json(golden_path("text/alpaca.json"));
    const TemporaryDirectory directory;
    const std::string records = directory.write("a.jsonl", lines_of(golden["records"]));
    int64_t compared = 0, cut = 0;
    for (const auto& [name, runs] : golden["sums"].items()) {
      const auto tokenizer = named_tokenizer(name, "on instructions");
      if (!tokenizer) continue;
      for (const Json& run : runs) {
        Json files = run["files"];
        files[records] = run["random"];
        for (const auto& [file, sums] : files.items()) {
          TextSettings settings = settings_for(*tokenizer);
          settings.mask_prompt = run["mask_prompt"];
          const std::string path = file == records ? file : shared_path("instructions/" + file);
          const auto dataset = open_dataset(path, DatasetFormat::automatic, settings);
          REQUIRE(dataset->size() >= static_cast<int64_t>(sums.size()));
          for (size_t i = 0; i < sums.size(); ++i) {
            CAPTURE(concat(name, " ", dataset->read(static_cast<int64_t>(i)).name));
            const TokenizedText text = ids_of(*dataset, i, *tokenizer, run["max_seq_length"]);
            CHECK(checksum(text) == sums[i].get<uint32_t>());
            cut += text.cut;
            ++compared;
          }
        }
      }
    }
    CHECK(compared >= 800);
    CHECK(cut > 100);
    CHECK(cut < compared);
  }

  TEST_CASE("conversations have the ids and labels of transformers") {
    const char* other = std::getenv("BLIPFT_CHAT_GOLDEN");   // a larger file of the same tool
    const Json golden = read_json(other != nullptr ? other : golden_path("text/chat.json"));
    Json records = Json::array({{{"text", "whatever the template, this can be read"}}});
    for (const Json& messages : golden["conversations"]) records.push_back({{"messages", messages}});
    const TemporaryDirectory directory;
    const std::string file = directory.write("a.jsonl", lines_of(records));
    int64_t compared = 0;
    for (const auto& [name, templates] : golden["sums"].items()) {
      const auto tokenizer = named_tokenizer(name, "on conversations");
      if (!tokenizer) continue;
      for (const auto& [chat_template, sums] : templates.items()) {
        // The format marks answers; in the published text they are found by their prompts.
        TextSettings published = settings_for(*tokenizer, chat_template);
        published.chat_template = std::make_shared<const ChatTemplate>(golden["published"][chat_template].get<std::string>(), "published");
        for (const TextSettings& settings : {settings_for(*tokenizer, chat_template), published}) {
          const bool marks = settings.chat_template->marks_answers();
          const auto dataset = open_dataset(file, DatasetFormat::json, settings);
          REQUIRE(dataset->size() == static_cast<int64_t>(sums.size()) + 1);
          for (size_t i = 0; i < sums.size(); ++i) {
            CAPTURE(concat(name, " ", chat_template, marks ? " " : " (published) ", records[i + 1].dump()));
            if (sums[i].is_null()) {           // the published text of llama2 prints nothing of some messages
              if (marks) CHECK_FALSE(message_of([&] { dataset->read(static_cast<int64_t>(i) + 1); }).empty());
              continue;
            }
            // An answer that begins a conversation follows no prompt.
            if (!marks && records[i + 1]["messages"][0]["role"] == "assistant") continue;
            CHECK(checksum(ids_of(*dataset, i + 1, *tokenizer)) == sums[i].get<uint32_t>());
            ++compared;
          }
        }
      }
    }
    CHECK(compared > 3000);
    MESSAGE(compared << " conversations compared");
  }

  TEST_CASE("the template is that of the model's folder, of a file, or a format") {
    const TemporaryDirectory directory;
    const auto tokenizer = load_tokenizer(golden_path("tokenizer/byte_fallback"), {});
    Config config;
    config.model.path = directory.path.string();
    Conversation conversation;
    conversation.messages = {{{"role", "user"}, {"content", "x"}}};
    const auto prompt = [&] { return render_prompt(conversation, text_settings(config.data, config, config.model.path, *tokenizer), "here"); };
    const auto with = [](const char* text) { return Json{{"chat_template", text}}.dump(); };
    check_parts(message_of([&] { prompt(); }), {"here: found a conversation", "Set data.chat_template to one of chatml, llama2", ".jinja"});
    directory.write("processor_config.json", with("processor"));
    CHECK(prompt() == "processor");
    directory.write("chat_template.json", with("json"));
    CHECK(prompt() == "json");
    directory.write("tokenizer_config.json", R"({"chat_template": [{"name": "tool_use", "template": "tools"},
        {"name": "default", "template": "{{ bos_token }}{{ pad_token }}{{ sep_token is defined }}"}],
        "pad_token": {"content": "<p>"}, "sep_token": null})");
    CHECK(prompt() == "<s><p>False");
    conversation.tools = {{{"name", "f"}}};
    CHECK(prompt() == "tools");
    directory.write("tokenizer_config.json", with("{{ strftime_now('%d %b %Y') }}"));
    CHECK(prompt() == "26 Jul 2024");
    directory.write("chat_template.jinja", "{{ messages[0].content }}\n{{ 'a' + }}");
    check_parts(message_of([&] { prompt(); }), {"here: ", directory / "chat_template.jinja" + ":2: found the end of the tag"});
    config.data.chat_template = directory.write("mine.jinja", "mine");
    CHECK(prompt() == "mine");
    config.data.chat_template = directory / "absent.jinja";
    check_parts(message_of([&] { prompt(); }), {"absent.jinja"});
    for (const std::string& name : chat_format_names()) {
      config.data.chat_template = name;
      CHECK(prompt().find("x") != std::string::npos);
    }
    for (const char* wrong : {"", "2025-1-9", "2025-13-01", "today", "2025-01-09x"}) {
      config.data.chat_date = wrong;
      check_parts(message_of([&] { text_settings(config.data, config, config.model.path, *tokenizer); }), {"data.chat_date: found"});
    }
    config.data.chat_date = "2025-01-09";
    CHECK(text_settings(config.data, config, config.model.path, *tokenizer).append_eos == std::nullopt);
    config.data.append_eos = AutoSwitch::off;
    CHECK(text_settings(config.data, config, config.model.path, *tokenizer).append_eos == false);
  }

  TEST_CASE("tokenizer.model: labels are the characters that are labels with tokenizer.json") {
    const auto json = named_tokenizer("llama", "from tokenizer.model, on conversations");
    if (!json) return;
    const TemporaryDirectory directory;
    fs::copy(shared_path("tokenizers/llama/tokenizer.model"), directory / "tokenizer.model");
    for (const char* legacy : {"true", "false"}) {
      directory.write("tokenizer_config.json", std::string("{\"legacy\": ") + legacy + "}");
      const auto model = load_tokenizer(directory.path.string(), {});
      int64_t compared = 0;
      const Json golden = read_json(golden_path("text/chat.json"));
      for (const Json& messages : golden["conversations"]) {
        const Json record = {{"messages", messages}};
        for (const char* name : {"chatml", "zephyr"}) {
          const Dataset::Sample sample = sample_of_record(record, settings_for(*json, name), "here");
          const TokenizedText a = tokenize(sample, *json, kLong, kLong), b = tokenize(sample, *model, kLong, kLong);
          if (a.ids != b.ids) continue;      // the two have rules of their own about spaces and special tokens
          CAPTURE(marked(sample));
          CHECK(a.is_label == b.is_label);
          ++compared;
        }
      }
      CHECK(compared > 100);
    }
  }

  TEST_CASE("a conversation: answers of assistants are labels, with the token that ends them") {
    TextSettings settings;
    settings.special_tokens["bos_token"] = "<s>";
    settings.special_tokens["eos_token"] = "</s>";
    const auto text = [&](const char* name, const std::string& messages) {
      settings.chat_template = chat_format(name);
      return marked(sample_in("{\"messages\": [" + messages + "]}", settings));
    };
    const std::string system = R"({"role": "system", "content": " S "},)";
    const std::string user = R"({"role": "user", "content": " U\n"})";
    const std::string both = user + R"(, {"role": "assistant", "content": " A "})";
    CHECK(text("llama2", system + both) == "-<s>[INST] <<SYS>>\n S \n<</SYS>>\n\n U [/INST]+ A </s>");
    CHECK(text("llama3", both) == "-<s><|start_header_id|>user<|end_header_id|>\n\nU<|eot_id|>"
                                  "<|start_header_id|>assistant<|end_header_id|>\n\n+A<|eot_id|>");
    CHECK(text("chatml", both + "," + both) == "-<|im_start|>user\n U\n<|im_end|>\n<|im_start|>assistant\n"
                                               "+ A <|im_end|>-\n<|im_start|>user\n U\n<|im_end|>\n<|im_start|>assistant\n"
                                               "+ A <|im_end|>-\n");
    CHECK(text("zephyr", system + both) == "-<|system|>\n S </s>\n<|user|>\n U\n</s>\n<|assistant|>\n+ A </s>-\n");
    CHECK(text("zephyr", user) == "-<|user|>\n U\n</s>\n");    // nothing to learn
    CHECK(text("llama2", system.substr(0, system.size() - 1)) == "-");
  }

  TEST_CASE("broken records name file and line, what was found and what was expected") {
    check_record("{\"text\": ", {"not valid JSON"});
    check_record("{\"text\": \"a\", \"score\": NaN}", {"not valid JSON", "NaN", "write null, or the text where one is expected"});
    check_record("{\"text\": \"\xff\"}", {"not valid JSON", "UTF-8"});
    check_record("[1]", {"found a JSON array, expected an object"});
    check_record("\"x\"", {"found a JSON string"});
    check_record(R"({"question": "a", "answer": "b"})",
                 {"found \"answer\", \"question\"", "data.keys={prompt: question, completion: answer}"});
    check_record("{}", {"found no keys", "\"instruction\" and \"output\"", "\"messages\"", "\"text\""});
    check_record(R"({"instruction": "a", "response": "b"})", {"found \"instruction\", \"response\"", "\"completion\""});
    check_record(R"({"prompt": "a"})", {"found \"prompt\"", "\"prompt\" and \"completion\""});
    check_record(R"({"prompt": "a", "completion": [{"role": "assistant", "content": "b"}]})",
                 {"key \"completion\" is [{", "a conversation has lists under both \"prompt\" and \"completion\""});
    check_record(R"({"instruction": "a", "output": 5})", {"key \"output\" is 5, expected a string"});
    check_record(R"({"instruction": ["a"], "output": "b"})", {"key \"instruction\" is [\"a\"], expected a string"});
    check_record(R"({"instruction": "a", "input": 1, "output": "b"})", {"key \"input\" is 1"});
    check_record(R"({"prompt": null, "completion": "b"})", {"key \"prompt\" is null"});
    check_record(R"({"text": {"a": ")" + std::string(500, 'x') + "\"}}", {"key \"text\" is {\"a\":\"xxx", "..."});
    TextSettings settings;
    settings.chat_template = chat_format("llama2");
    settings.special_tokens["bos_token"] = "<s>";
    settings.special_tokens["eos_token"] = "</s>";
    const auto messages = [&](const std::string& list, const std::vector<std::string>& parts) {
      check_record("{\"messages\": " + list + "}", parts, settings);
    };
    const std::string user = R"({"role": "user", "content": "a"})";
    messages("{}", {"key \"messages\" is {}, expected a list"});
    messages("[]", {"key \"messages\" is an empty list"});
    messages("[" + user + ", 5]", {"message 2 is 5, expected an object"});
    messages(R"([{"speaker": "a", "words": "a"}])",
             {"message 1 has no key \"role\"", "\"speaker\", \"words\"", "data.keys: {role: speaker, content: words}"});
    messages(R"([{"from": "function_call", "value": "a"}])", {"message 1", "not valid JSON"});
    messages(R"([{"role": "assistant", "content": "a", "weight": 0.5}])",
             {"message 1: key \"weight\" is 0.5, expected 0", "or 1"});
    messages(R"([{"role": "user"}])", {"message 1 has no key \"content\""});
    messages(R"([{"role": "critic", "content": "a"}])", {"message 1 is of role \"critic\"", "assistant (or gpt"});
    messages(R"([{"role": "user", "content": [{"type": "text"}]}])", {"message 1: key \"content\" is [", "a string"});
    messages("[" + user + "," + user + "]",
             {"message 2 is of role \"user\", expected \"assistant\"", "data.chat_template llama2:"});
    settings.special_tokens.clear();
    messages("[" + user + "]", {"'bos_token' is undefined"});
    settings.chat_template = nullptr;
    messages("[" + user + "]", {"Set data.chat_template to one of chatml, llama2, llama3"});
  }

  TEST_CASE("broken files are refused when they are opened") {
    check_file("a.jsonl", "", {"empty, expected records: a JSON object in each line"});
    check_file("a.json", "\n \n", {"empty", "or a list of them"});
    check_file("a.json", "[]", {"empty"});
    check_file("a.json", "[{\"text\": \"a\"},\n{\"text\": \"b\"", {":2: ", "truncated"});
    check_file("a.json", "[{\"text\": \"a\"},\n{\"text\": \"b]", {":2: ", "truncated"});
    check_file("a.json", "[{\"text\": \"a\"},\n]", {":2: not valid JSON: found ']', expected an object"});
    check_file("a.json", "[{\"text\": \"a\"},\n,{}]", {":2: not valid JSON: found ','"});
    check_file("a.json", "[{\"text\": \"a\"}\n}", {":2: not valid JSON: found '}'"});
    check_file("a.json", "[{\"text\": \"a\"}]\n\n[]", {":3: not valid JSON: found '[', expected nothing"});
    check_file("a.json", "[{\"text\": \"a\"}]\033[2J", {":1: not valid JSON: found '?', expected nothing"});
    check_file("a.json", "{\n  \"text\": \"a\"\n}", {":1: not valid JSON"});
    check_file("a.jsonl", "[{\"text\": \"a\"}]", {":1: found a JSON array"});
    check_file("a.jsonl", "{\"a\": 1}\n", {":1: found \"a\""});
    const TemporaryDirectory directory;
    using Parts = std::vector<std::string>;
    const auto refused = [&](const std::string& path, DatasetFormat format, const Parts& parts) {
      check_parts(message_of([&] { open_dataset(path, format); }), parts);
    };
    refused(directory.path.string(), DatasetFormat::json, {directory.path.string(), ".json", ".jsonl"});
    refused(directory.path.string(), DatasetFormat::automatic, {directory.path.string(), ".jsonl", "found none"});
    refused(directory / "absent.jsonl", DatasetFormat::automatic, {directory / "absent.jsonl", "cannot be opened"});
    directory.write("a.jsonl", "{\"text\": \"a\"}\n");
    const std::string empty = directory.write("b.jsonl", "");
    refused(directory.path.string(), DatasetFormat::automatic, {empty, "empty"});
    const std::string apart = directory.path.string() + "/apart";
    directory.write("apart/train.json", "[{\"text\": \"a\"},{\"text\": \"b\"}]");
    CHECK(open_dataset(apart, DatasetFormat::automatic)->size() == 2);
    directory.write("apart/val.json", "[{\"text\": \"a\"},{\"text\":1}]");
    refused(apart, DatasetFormat::automatic, {apart + ": holds train.json and val.json, and a folder is read whole, as one set; give data.path: " +
                            apart + "/train.json and data.val_path: " + apart + "/val.json"});
    check_parts(message_of([&] { open_dataset(apart + "/val.json", DatasetFormat::automatic)->read(1); }),
                {"val.json:1 (record 2): key \"text\" is 1"});
    refused(directory.write("a.jsonl.gz", ""), DatasetFormat::automatic, {"a.jsonl.gz", "truncated"});
    refused(directory.write("a.tar.gz", ""), DatasetFormat::automatic, {"a.tar.gz", "decompress"});
    const std::string columnar = directory.write("table/data/train-0.parquet", "PAR1");
    refused(columnar, DatasetFormat::automatic, {columnar, "python3 tools/convert_dataset.py " + columnar + " FOLDER"});
    refused(directory / "table", DatasetFormat::automatic, {"found " + columnar, "tools/convert_dataset.py"});
  }

  TEST_CASE("the choices of data.chat_template are the formats") {
    const auto choices = [](const char* key) { return find_key("data", key)->allowed.choices; };
    std::vector<std::string> templates = chat_format_names();
    templates.insert(templates.begin(), "auto");
    CHECK(choices("chat_template") == templates);
  }

  TEST_CASE("the default of data.max_text_tokens is 512 for JSON data, and 50 for captions") {
    const TemporaryDirectory directory;
    const auto resolved_tokens = [](const std::string& path, DatasetFormat format) {
      return usual_text_tokens(path, format, {}, Config().data.max_text_tokens);
    };
    directory.write("a.jsonl", "");
    CHECK(resolved_tokens(directory.path.string(), DatasetFormat::automatic) == 512);
    CHECK(resolved_tokens(directory / "a.jsonl", DatasetFormat::automatic) == 512);
    CHECK(resolved_tokens(directory / "absent.json", DatasetFormat::automatic) == 512);
    CHECK(resolved_tokens(directory / "absent", DatasetFormat::automatic) == 50);
    CHECK(resolved_tokens(directory / "absent", DatasetFormat::json) == 512);
    CHECK(resolved_tokens(directory.path.string(), DatasetFormat::imagefolder) == 50);
    directory.write("metadata.jsonl", "");
    CHECK(resolved_tokens(directory.path.string(), DatasetFormat::automatic) == 50);
  }
}
