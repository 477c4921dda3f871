// Tests of the answers' positions in the text of a template without {% generation %} blocks.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "blipft/error.h"
#include "support/error_message.h"
#include "text/chat_template.h"

using namespace blipft;
using Json = nlohmann::ordered_json;

namespace {

TextSettings settings_with(const std::string& jinja, const std::string& name = "t.jinja") {
  TextSettings settings;
  settings.chat_template = std::make_shared<const ChatTemplate>(jinja, name);
  settings.special_tokens = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  return settings;
}

/// Returns the text, with [ ] around its trained parts.
std::string bracketed(const Conversation& conversation, const TextSettings& settings) {
  std::string text;
  for (const TextSegment& segment : render_chat(conversation, settings, "here"))
    text += segment.is_label ? "[" + segment.text + "]" : segment.text;
  return text;
}

std::vector<std::string> trained(const Conversation& conversation, const TextSettings& settings) {
  std::vector<std::string> texts;
  for (const TextSegment& segment : render_chat(conversation, settings, "here"))
    if (segment.is_label) texts.push_back(segment.text);
  return texts;
}

Conversation exchanges(int count, const char* begin = "") {
  Conversation out;
  for (int k = 0; k < count; ++k) {
    out.messages.push_back({{"role", "user"}, {"content", concat(begin, "U", k)}});
    out.messages.push_back({{"role", "assistant"}, {"content", concat(begin, "A", k)}});
  }
  out.trains.assign(out.messages.size(), true);
  return out;
}

/// Returns exchanges with a call, which has a number behind its last text, and its result.
Conversation calls(int count) {
  Conversation out;
  const char* const id = "a1B2c3D4e";
  for (int k = 0; k < count; ++k) {
    const Json call = {{"name", "f"}, {"arguments", {{"x", concat("X", k)}, {"y", k}}}};
    out.messages.push_back({{"role", "user"}, {"content", concat(k % 3 ? "" : "  ", "U", k, k % 4 ? "" : " \n")}});
    out.messages.push_back({{"role", "assistant"},
                            {"content", ""},
                            {"tool_calls", Json::array({{{"type", "function"}, {"id", id}, {"function", call}}})}});
    out.messages.push_back({{"role", "tool"}, {"name", "f"}, {"tool_call_id", id}, {"content", concat("R", k)}});
    out.messages.push_back({{"role", "assistant"}, {"content", concat("A", k)}});
  }
  out.trains.assign(out.messages.size(), true);
  return out;
}

/// Returns the trained texts if each answer is trained alone.
std::vector<std::string> trained_alone(Conversation conversation, const TextSettings& settings) {
  std::vector<std::string> texts;
  for (size_t i = 0; i < conversation.messages.size(); ++i) {
    if (conversation.messages[i]["role"] != "assistant") continue;
    std::fill(conversation.trains.begin(), conversation.trains.end(), false);
    conversation.trains[i] = true;
    for (const std::string& text : trained(conversation, settings)) texts.push_back(text);
  }
  return texts;
}

/// Calls `visit` with the name and the settings of each published template without blocks.
template <class Visit>
void for_published_templates(const Visit& visit) {
  const char* const root = std::getenv("BLIPFT_SHARED");
  const std::filesystem::path folder = std::string(root ? root : "../shared") + "/data/chat_templates";
  if (!std::filesystem::exists(folder)) {
    std::cout << "SKIPPED: answers in published chat templates (no " << folder.string() << "; set BLIPFT_SHARED)\n";
    return;
  }
  int64_t visited = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    if (file.path().extension() != ".jinja") continue;
    std::ifstream in(file.path(), std::ios::binary);
    const std::string jinja{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    const TextSettings settings = settings_with(jinja, file.path().stem().string());
    if (settings.chat_template->marks_answers()) continue;
    visit(file.path().stem().string(), settings);
    ++visited;
  }
  CHECK(visited > 140);
}

const std::string turns = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}";

}  // namespace

TEST_SUITE("answer spans") {
  TEST_CASE("a prompt that opens something which the text leaves out") {
    const auto text = [](const std::string& prompt, const std::string& answer) {
      return bracketed(exchanges(2),
                       settings_with("{% for m in messages %}<{{ m.role }}>\n{{ '" + answer +
                                     "' if m.role == 'assistant' }}{{ m.content }}<end>\n{% endfor %}"
                                     "{% if add_generation_prompt %}<assistant>\n" + prompt + "{% endif %}"));
    };
    const std::string user0 = "<user>\nU0<end>\n<assistant>\n", user1 = "<user>\nU1<end>\n<assistant>\n";
    CHECK(text("<think>\n", "") == user0 + "[A0<end>]\n" + user1 + "[A1<end>]\n");
    CHECK(text("<think></think>", "</think>") == user0 + "</think>[A0<end>]\n" + user1 + "</think>[A1<end>]\n");
    CHECK(text("<think>", "</think>") == user0 + "[</think>A0<end>]\n" + user1 + "[</think>A1<end>]\n");
    CHECK(text("Are these my steps?\n", "") == user0 + "[A0<end>]\n" + user1 + "[A1<end>]\n");  // as A0 begins
  }

  TEST_CASE("a prompt with other white space, and texts that move") {
    const TextSettings indented = settings_with(
        "{% for m in messages %}\n    {{ m.role }}: {{ m.content }}<end>\n{% endfor %}"
        "{% if add_generation_prompt %}  assistant:\n{% endif %}");
    CHECK(bracketed(exchanges(2), indented) ==
          "    user: U0<end>\n    assistant: [A0<end>]\n    user: U1<end>\n    assistant: [A1<end>]\n");
    Conversation chat = exchanges(2);
    chat.messages.insert(chat.messages.begin(), Json::object({{"role", "system"}, {"content", "S"}}));
    chat.trains.insert(chat.trains.begin(), false);
    const TextSettings moves = settings_with(
        "{% for m in messages if m.role != 'system' %}"
        "{% if m.role == 'user' %}[INST]{{ messages[0].content if loop.revindex < 3 }} {{ m.content }}[/INST]"
        "{% else %} {{ m.content }}</s>{% endif %}{% endfor %}");
    CHECK(bracketed(chat, moves) == "[INST] U0[/INST][ A0</s>][INST]S U1[/INST][ A1</s>]");
  }

  TEST_CASE("an answer ends before a prompt that was not requested, and at the end token") {
    const std::string unasked =
        "{% for m in messages %}<begin><{{ m.role }}>{{ m.content }}<end>{% endfor %}<begin><assistant>";
    CHECK(bracketed(exchanges(2), settings_with(unasked)) ==
          "<begin><user>U0<end><begin><assistant>[A0<end>]<begin><user>U1<end><begin><assistant>[A1<end>]"
          "<begin><assistant>");
    TextSettings eos = settings_with(unasked + "{% if add_generation_prompt %}<now>{% endif %}");
    eos.special_tokens["eos_token"] = "<end>";
    CHECK(bracketed(exchanges(1), eos) == "<begin><user>U0<end><begin><assistant>[A0<end>]<begin><assistant>");
    const TextSettings blank = settings_with(
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}<the end>{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}");
    CHECK(bracketed(exchanges(1), blank) == "<user>U0<the end><assistant>[A0<the end>]");
  }

  TEST_CASE("contents that say what marks say") {
    const TextSettings settings = settings_with(turns + "{% if add_generation_prompt %}<assistant>{% endif %}");
    CHECK(bracketed(exchanges(1, "<end><assistant>\U0001D300"), settings) ==
          "<user><end><assistant>\U0001D300U0<end><assistant>[<end><assistant>\U0001D300A0<end>]");
  }

  TEST_CASE("a template that asks how a content begins and ends") {
    Conversation chat = exchanges(1);
    chat.messages[0]["content"] = "<tool_response>U</tool_response> ";
    const TextSettings settings = settings_with(
        "{% for m in messages %}<{{ 'tool' if m.content.strip().startswith('<tool_response>') and "
        "m.content.strip().endswith('</tool_response>') else m.role }}>{{ m.content.split('</think>')[-1] }}<end>"
        "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}");
    CHECK(bracketed(chat, settings) == "<tool><tool_response>U</tool_response> <end><assistant>[A0<end>]");
    chat.messages[1]["content"] = "<think>T</think>";
    CHECK(bracketed(chat, settings) == "<tool><tool_response>U</tool_response> <end><assistant>[<end>]");
  }

  TEST_CASE("a template that the marks of contents change") {
    const TextSettings settings = settings_with(
        "{% for m in messages %}{{ '!' if m.content|length > 4 }}<{{ m.role }}>{{ m.content }}<end>{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}");
    CHECK(bracketed(exchanges(2), settings) == "<user>U0<end><assistant>[A0<end>]<user>U1<end><assistant>[A1<end>]");
    const std::string message = testing::message_of([&] { bracketed(exchanges(1000), settings); });
    CHECK(message.find("found 2000 messages, of which") != std::string::npos);
    CHECK(message.find("at most 1000 such messages. Set data.train_on: last") != std::string::npos);
  }

  TEST_CASE("published templates: two exchanges") {
    std::vector<std::string> refused, unclear;
    for_published_templates([&](const std::string& name, const TextSettings& settings) {
      try {
        const std::vector<std::string> texts = trained(exchanges(2), settings);
        const auto has = [&](size_t answer, const char* part) { return texts[answer].find(part) != std::string::npos; };
        if (texts.size() != 2 || !has(0, "A0") || has(0, "U1") || !has(1, "A1")) unclear.push_back(name);
      } catch (const UserError& error) {
        if (std::string(error.what()).find("cannot be distinguished") != std::string::npos) refused.push_back(name);
      }
    });
    std::sort(refused.begin(), refused.end());
    CHECK(unclear == std::vector<std::string>());
    // These print the conversation as data, and ask a question about it.
    if (!refused.empty()) CHECK(refused == std::vector<std::string>{"llama-guard-2-8b", "llama-guard-3-11b-vision"});
  }

  TEST_CASE("published templates: what is trained of an answer does not depend on the others [slow]") {
    int64_t compared = 0;
    for_published_templates([&](const std::string& name, const TextSettings& settings) {
      for (const Conversation& chat : {exchanges(14), calls(14)}) {
        std::vector<std::string> texts, alone;
        try {
          texts = trained(chat, settings);
          alone = trained_alone(chat, settings);
        } catch (const UserError&) {
          continue;
        }
        // Answers without a text between them are one segment.
        if (texts.size() != alone.size()) continue;
        CHECK_MESSAGE(texts == alone, name);
        ++compared;
      }
    });
    if (compared > 0) CHECK(compared > 180);
  }
}
