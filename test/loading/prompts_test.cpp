// Prompts of every format of training, and of the command line.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "blipft/prompts.h"
#include "datasets/record_checks.h"
#include "support/byte_tokenizer.h"
#include "text/chat_template.h"

using namespace blipft;
using namespace blipft::testing;
using Json = nlohmann::json;

namespace {

using Texts = std::vector<std::string>;

std::string text_of(const std::vector<int32_t>& ids) { return {ids.begin(), ids.end()}; }

PromptSettings any_length() { return {.max_tokens = 0, .vocabulary = 256}; }

/// "\2" is what the tokenizer puts before every text.
PromptedSample prompt_of(const std::string& record, TextSettings settings = {}) {
  const TemporaryDirectory directory;
  const auto dataset = open_dataset(directory.write("a.jsonl", record + "\n"), DatasetFormat::json, settings);
  return prompt_of_sample(*dataset, 0, ByteTokenizer({3}), any_length());
}

}  // namespace

TEST_SUITE("prompts") {
  TEST_CASE("records: what comes before the answer, and the answer") {
    TextSettings settings;
    settings.prompt_style = "Q: {instruction}{input} A:";
    for (const bool mask : {false, true}) {
      settings.mask_prompt = mask;
      const PromptedSample sample = prompt_of(R"({"instruction": "x", "input": "y", "output": "z", "id": 7})", settings);
      CHECK(text_of(sample.ids) == "\2Q: xy A:");
      CHECK(sample.references == Texts{"z"});
      CHECK(sample.id == "7");
      CHECK(sample.picture == -1);
      CHECK(text_of(prompt_of(R"({"prompt": "p", "completion": " c"})", settings).ids) == "\2p");
    }
    CHECK(prompt_of(R"({"prompt": "p", "completion": " c"})").references == Texts{" c"});
    CHECK(text_of(prompt_of(R"({"text": "t"})").ids) == "\2");
    CHECK(prompt_of(R"({"text": "t"})").references == Texts{"t"});
  }

  TEST_CASE("records without an answer are prompts without labels") {
    TextSettings settings;
    settings.for_prompts = true;
    settings.chat_template = chat_format("chatml");
    settings.prompt_style = "none";
    CHECK(text_of(prompt_of(R"({"prompt": "p"})", settings).ids) == "\2p");
    CHECK(text_of(prompt_of(R"({"instruction": "i"})", settings).ids) == "\2i");
    CHECK(prompt_of(R"({"prompt": "p"})", settings).references.empty());
    CHECK(text_of(prompt_of(R"({"messages": [{"role": "user", "content": "u"}]})", settings).ids) ==
          "<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n");
    check_record(R"({"prompt": "p"})", {"found \"prompt\", expected"});
  }

  TEST_CASE("conversations: up to the last answer with labels, with the template's generation prompt") {
    TextSettings settings;
    settings.special_tokens["bos_token"] = "<s>";
    settings.special_tokens["eos_token"] = "</s>";
    const std::string turns = R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"}, {"role": "assistant", "content": "d", "weight": WEIGHT}]})";
    const auto record = [&](const char* weight) {
      std::string text = turns;
      text.replace(text.find("WEIGHT"), 6, weight);
      text.erase(text.find('\n'), 1);
      return text;
    };
    settings.chat_template = chat_format("llama2");
    PromptedSample prompt = prompt_of(record("1"), settings);
    CHECK(text_of(prompt.ids) == "<s>[INST] a [/INST] b </s><s>[INST] c [/INST]");
    CHECK(prompt.references == Texts{"d"});
    prompt = prompt_of(record("0"), settings);
    CHECK(text_of(prompt.ids) == "<s>[INST] a [/INST]");
    CHECK(prompt.references == Texts{"b"});
    settings.chat_template = chat_format("llama3");
    CHECK(text_of(prompt_of(record("0"), settings).ids) ==
          "<s><|start_header_id|>user<|end_header_id|>\n\na<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n");
    settings.chat_template = chat_format("zephyr");
    CHECK(text_of(prompt_of(record("0"), settings).ids) == "<|user|>\na</s>\n<|assistant|>\n");
    CHECK(message_of([&] { prompt_of(R"({"messages": [{"role": "assistant", "content": "a"}]})", settings); })
              .find("nothing to answer") != std::string::npos);
  }

  TEST_CASE("pictures: captions of one picture are one prompt's references") {
    const TemporaryDirectory directory;
    directory.write("1.jpg", "one");
    directory.write("2.jpg", "two");
    directory.write("metadata.jsonl", R"({"file_name": "1.jpg", "text": ["a", "b"], "image_id": 5})" "\n"
                                      R"({"file_name": "2.jpg", "text": "c"})" "\n"
                                      R"({"file_name": "1.jpg", "text": "d", "image_id": 5})" "\n"
                                      R"({"file_name": "1.jpg", "text": "b", "image_id": 5})" "\n");
    const auto dataset = open_dataset(directory.path.string(), DatasetFormat::automatic);
    const auto prompts = prompts_of_dataset(*dataset, ByteTokenizer(), any_length());
    REQUIRE(prompts.size() == 2);
    CHECK(prompts[0].references == Texts{"a", "b", "d"});
    CHECK(prompts[0].id == "5");
    CHECK(prompts[0].picture == 0);
    CHECK(text_of(prompts[0].ids) == "\2");
    CHECK(prompts[1].references == Texts{"c"});
    CHECK(prompts[1].picture == 1);
    CHECK(prompts_of_dataset(*dataset, ByteTokenizer(), any_length(), 1).front().references == Texts{"a", "b"});
    directory.write("metadata.jsonl", R"({"file_name": "2.jpg"})" "\n");
    TextSettings settings;
    settings.for_prompts = true;
    const auto bare = open_dataset(directory.path.string(), DatasetFormat::automatic, settings);
    CHECK(prompt_of_sample(*bare, 0, ByteTokenizer(), any_length()).references.empty());
    CHECK(bare->read(0).picture->size() == 3);
  }

  TEST_CASE("COCO's captions: references by picture, with its id") {
    const TemporaryDirectory directory;
    directory.write("images/9.jpg", "nine");
    const std::string file = directory.write("captions_x.json", Json{
        {"images", {{{"id", 9}, {"file_name", "9.jpg"}}}},
        {"annotations", {{{"id", 1}, {"image_id", 9}, {"caption", "a"}}, {{"id", 2}, {"image_id", 9}, {"caption", "b"}}}}
        }.dump());
    const auto prompts = prompts_of_dataset(*open_dataset(file, DatasetFormat::automatic), ByteTokenizer(), any_length());
    REQUIRE(prompts.size() == 1);
    CHECK(prompts[0].references == Texts{"a", "b"});
    CHECK(prompts[0].id == "9");
  }

  TEST_CASE("a text of the command line, as it is or as messages") {
    TextSettings settings;
    const ByteTokenizer tokenizer({3});
    const auto text = [&](const PromptSettings& prompt) {
      return text_of(prompt_of_text("abcdef", tokenizer, prompt, "--prompt"));
    };
    CHECK(text(any_length()) == "\2" "abcdef");
    CHECK(text({.vocabulary = 256, .ends = true}) == "\2" "abcdef\3");
    CHECK(text({.max_tokens = 4, .vocabulary = 256}) == "\2" "def");
    CHECK(message_of([&] { text({.vocabulary = 99}); }).find("id 99") != std::string::npos);
    Conversation conversation;
    conversation.messages.push_back({{"role", "user"}, {"content", "abcdef"}});
    const auto messages = [&] { return text_of(prompt_of_conversation(conversation, tokenizer, settings, any_length(), "--prompt")); };
    CHECK(message_of(messages).starts_with("--prompt: "));
    settings.chat_template = chat_format("chatml");
    CHECK(messages() == "<|im_start|>user\nabcdef<|im_end|>\n<|im_start|>assistant\n");
  }

  TEST_CASE("the prompt of a chat is that of a record with the same messages") {
    const TemporaryDirectory directory;
    for (const char* format : {"chatml", "llama2", "llama3", "mistral", "gemma", "zephyr", "alpaca"}) {
      for (const bool system : {false, true}) {
        if (system && (std::string(format) == "gemma" || std::string(format) == "mistral")) continue;  // they refuse one
        CAPTURE(std::string(format));
        TextSettings settings;
        settings.chat_template = chat_format(format);
        settings.special_tokens = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
        Conversation chat;
        const auto add = [&](const char* role, const char* content) { chat.messages.push_back({{"role", role}, {"content", content}}); };
        if (system) add("system", "Be brief.");
        for (const char* turn : {"one?", "and two?\n", " three"}) {
          add("user", turn);
          Conversation record = chat;
          record.messages.push_back({{"role", "assistant"}, {"content", "the answer"}});
          const std::string file = directory.write("data.jsonl", Json{{"messages", record.messages}}.dump() + "\n");
          const auto dataset = open_dataset(file, DatasetFormat::automatic, settings);
          CHECK(prompt_of_conversation(chat, ByteTokenizer(), settings, any_length(), "the conversation") ==
                prompt_of_sample(*dataset, 0, ByteTokenizer(), any_length()).ids);
          add("assistant", "so be it");
        }
      }
    }
  }
}
