// Conversations as people have them: calls, tools, reasoning, parts, ShareGPT's, Alpaca's and TRL's forms; and what of them
// is trained.
#include <doctest/doctest.h>

#include "datasets/record_checks.h"
#include "text/chat_template.h"

using namespace blipft;
using namespace blipft::testing;

namespace {

/// A template of our own that has what published ones have: tools, calls, reasoning that only the last answer keeps.
constexpr const char* thinking =
    "{% for tool in tools or [] %}<tool>{{ tool|tojson }}\n{% endfor %}"
    "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' and loop.last %}<think>{{ m.reasoning_content "
    "}}</think>{% endif %}"
    "{{ m.content if m.content }}{% for call in m.tool_calls or [] %}<call>{{ call.function.name }} "
    "{{ call.function.arguments if call.function.arguments is string else call.function.arguments|tojson }}</call>{% "
    "endfor %}"
    "<|end|>\n{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}";

TextSettings settings_with(const std::string& jinja) {
  TextSettings settings;
  settings.chat_template = std::make_shared<const ChatTemplate>(jinja, "t.jinja");
  return settings;
}

std::string text_with(const std::string& record, const TextSettings& settings = settings_with(thinking)) {
  return marked(sample_in(record, settings));
}

}  // namespace

TEST_SUITE("record chat") {
  TEST_CASE("tools, calls and their results, as OpenAI and ShareGPT write them") {
    const std::string expected =
        "-<tool>{\"name\": \"f\", \"a\": 1}\n<|system|>S<|end|>\n<|user|>U<|end|>\n<|assistant|>+<call>f {\"b\": 1, "
        "\"a\": 2}</call><|end|>-\n"
        "<|tool|>R<|end|>\n<|assistant|>+<think></think>A<|end|>-\n";
    const std::string call = R"({"name": "f", "arguments": {"b": 1, "a": 2}})";
    CHECK(
        text_with(
            R"({"tools": [{"name": "f", "a": 1}], "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "U"},)"
            R"({"role": "assistant", "content": null, "tool_calls": [{"type": "function", "function": )" +
            call + "}]}," +
            R"({"role": "tool", "content": "R"}, {"role": "assistant", "content": [{"type": "text", "text": "A"}]}]})") ==
        expected);
    std::string quoted_call;
    for (const char c : call) quoted_call += c == '"' ? "\\\"" : std::string(1, c);
    CHECK(
        text_with(
            R"({"tools": "[{\"name\": \"f\", \"a\": 1}]", "system": "S", "conversations": [{"from": "human", "value": "U"},)"
            R"({"from": "function_call", "value": ")" +
            quoted_call + R"("}, {"from": "observation", "value": "R"},)" + R"({"from": "gpt", "value": "A"}]})") ==
        expected);
    CHECK(
        text_with(
            R"({"messages": [{"role": "user", "content": "U"}, {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}]})") ==
        "-<|user|>U<|end|>\n<|assistant|>+<think></think><call>f {}</call><|end|>-\n");
    check_parts(message_of([&] { text_with(R"({"messages": [{"from": "function_call", "value": "x"}]})"); }),
                {"message 1: not valid JSON"});
    check_parts(message_of([&] { text_with(R"({"messages": [{"role": "user", "content": [{"type": "image"}]}]})"); }),
                {"message 1: key \"content\" is", "a list of parts"});
    check_parts(message_of([&] { text_with(R"({"system": "S", "messages": [{"role": "system", "content": "T"}]})"); }),
                {"Remove one"});
  }

  TEST_CASE("what a template rewrites is trained as far as it keeps it") {
    const std::string turn =
        R"({"role": "user", "content": "U"}, {"role": "assistant", "content": "A", "reasoning_content": "R"})";
    CHECK(text_with("{\"messages\": [" + turn + "," + turn + "]}") ==
          "-<|user|>U<|end|>\n<|assistant|>+A<|end|>-\n<|user|>U<|end|>\n<|assistant|>+<think>R</think>A<|end|>-\n");
    TextSettings last = settings_with(thinking);
    last.train_on = TrainOn::last;
    CHECK(text_with("{\"messages\": [" + turn + "," + turn + "]}", last) ==
          "-<|user|>U<|end|>\n<|assistant|>A<|end|>\n<|user|>U<|end|>\n<|assistant|>+<think>R</think>A<|end|>-\n");
    // A mark that only the end has, and one that only the middle has.
    const TextSettings ends = settings_with(
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ '<eos>' if loop.last and not add_generation_prompt "
        "else '<end>' }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}");
    CHECK(text_with("{\"messages\": [" + turn + "," + turn + "]}", ends) ==
          "-<user>U<end><assistant>+A<end>-<user>U<end><assistant>+A<eos>");
  }

  TEST_CASE("answers that do not follow their prompt are refused, with the key that helps") {
    const std::string turn = R"({"role": "user", "content": "U"}, {"role": "assistant", "content": "A"})";
    const std::string two = "{\"messages\": [" + turn + "," + turn + "]}";
    const TextSettings other = settings_with(
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}ASSISTANT: "
        "{% endif %}");
    check_parts(message_of([&] { text_with(two, other); }),
                {"message 2: found an answer", "data.train_on: last", "{% generation %}"});
    check_parts(message_of([&] {
                  text_with(two, settings_with("{{ messages|length }}{% if add_generation_prompt %}?{% endif %}"));
                }),
                {"message 2", "{% generation %}"});
    check_parts(message_of([&] {
                  text_with(two, settings_with("{% for m in messages %}<{{ m.role }}>{% endfor %}{% if "
                                               "add_generation_prompt %}<assistant>{% endif %}"));
                }),
                {"whose content the chat template does not print", "list of parts"});
    check_parts(message_of([&] { text_with(two, settings_with("{{ raise_exception('no') }}")); }),
                {"refuses the conversation: t.jinja:1: no"});
  }

  TEST_CASE("blocks of {% generation %} say what is trained") {
    TextSettings settings = settings_with(
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}[{{ m.content }}]{% endgeneration %}"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}");
    const auto record = [](const char* more) {
      return concat(
          R"({"messages": [{"role": "user", "content": "é"}, {"role": "assistant", "content": "A"}, {"role": "user", "content": "V"},)",
          R"({"role": "assistant", "content": "B")", more, "}]}");
    };
    CHECK(text_with(record(""), settings) == "-é+[A]-V+[B]");
    CHECK(text_with(record(", \"weight\": 0"), settings) == "-é+[A]-V[B]");
    settings.train_on = TrainOn::last;
    CHECK(text_with(record(""), settings) == "-é[A]V+[B]");
    CHECK(text_with(record(", \"weight\": 0"), settings) == "-é+[A]-V[B]");
  }

  TEST_CASE("keys of records that nothing reads are counted") {
    const TemporaryDirectory directory;
    const std::string turns = R"({"tools": [], "messages": [{"role": "user", "content": "U"}], )";
    const auto dataset = open_dataset(directory.write("a.jsonl", turns + "\"id\": 1}\n" + turns + "\"id\": 2, \"category\": null}\n" +
                                                                     R"({"prompt": "P", "completion": "C", "system": ""})" + "\n"),
                                      DatasetFormat::automatic, settings_with(thinking));
    for (const int64_t i : {0, 1, 2, 1, 0}) (void)dataset->read(i);
    CHECK(dataset->unread_keys() == "category (1), id (2), system (1)");
  }

  TEST_CASE("Alpaca's system and history, and TRL's prompt and completion as messages") {
    TextSettings settings = settings_with(thinking);
    settings.prompt_style = PromptStyle::chat;
    CHECK(text_with(R"({"instruction": "I", "input": "N", "output": "O", "system": "S", "history": [["a", "b"]]})",
                    settings) ==
          "-<|system|>S<|end|>\n<|user|>a<|end|>\n<|assistant|>+b<|end|>-\n<|user|>I\nN<|end|>\n<|assistant|>+<think></"
          "think>O<|end|>-\n");
    CHECK(
        text_with(
            R"({"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}],)"
            R"("completion": [{"role": "assistant", "content": "d"}]})") ==
        "-<|user|>a<|end|>\n<|assistant|>b<|end|>\n<|user|>c<|end|>\n<|assistant|>+<think></think>d<|end|>-\n");
    check_parts(message_of([&] { text_with(R"({"instruction": "I", "output": "O", "history": [["a"]]})", settings); }),
                {"\"history\" holds [\"a\"]", "pairs"});
  }
}
