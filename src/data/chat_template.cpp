// The chat templates, each beside the Jinja text under which models publish it.
#include "data/chat_template.h"

#include <algorithm>

#include "blipft/error.h"
#include "data/unicode.h"

namespace blipft {
namespace {

using Segments = std::vector<Dataset::Segment>;
using Messages = std::vector<ChatMessage>;

/// Appends to the last segment where that is learnt alike.
void add(Segments& segments, const std::string& text, bool learnt) {
  if (segments.empty() || segments.back().learnt != learnt) segments.push_back({"", learnt});
  segments.back().text += text;
}

bool is_learnt(const ChatMessage& message) { return message.role == "assistant" && message.learnt; }

std::string stripped(const std::string& text) { return std::string(unicode::stripped(text)); }

/// A system message, if any, becomes part of the first user message; then users and assistants take turns.
Segments llama2(const Messages& messages, const TextSettings& settings, const std::string& place) {
  Segments segments;
  const bool has_system = messages.front().role == "system";
  const std::string system = has_system ? "<<SYS>>\n" + messages.front().content + "\n<</SYS>>\n\n" : "";
  for (size_t i = has_system; i < messages.size(); ++i) {
    const size_t turn = i - has_system;
    const auto& [role, content, learnt] = messages[i];
    const char* const expected = turn % 2 == 0 ? "user" : "assistant";
    BLIPFT_USER_CHECK(role == expected, place, ": message ", i + 1, " is of role \"", role, "\", expected \"",
                      expected, "\": with data.chat_template llama2, user and assistant take turns, behind a system "
                      "message or none; correct the record, or choose another template");
    if (role == "user")
      add(segments, settings.bos_token + "[INST] " + stripped((turn == 0 ? system : "") + content) + " [/INST]",
          false);
    else
      add(segments, " " + stripped(content) + " " + settings.eos_token, learnt);
  }
  return segments;
}

Segments llama3(const Messages& messages, const TextSettings& settings, const std::string&) {
  Segments segments;
  add(segments, settings.bos_token, false);
  for (const ChatMessage& message : messages) {
    add(segments, "<|start_header_id|>" + message.role + "<|end_header_id|>\n\n", false);
    add(segments, stripped(message.content) + "<|eot_id|>", is_learnt(message));
  }
  return segments;
}

Segments chatml(const Messages& messages, const TextSettings&, const std::string&) {
  Segments segments;
  for (const ChatMessage& message : messages) {
    add(segments, "<|im_start|>" + message.role + "\n", false);
    add(segments, message.content + "<|im_end|>", is_learnt(message));
    add(segments, "\n", false);
  }
  return segments;
}

Segments zephyr(const Messages& messages, const TextSettings& settings, const std::string&) {
  Segments segments;
  for (const ChatMessage& message : messages) {
    add(segments, "<|" + message.role + "|>\n", false);
    add(segments, message.content + settings.eos_token, is_learnt(message));
    add(segments, "\n", false);
  }
  return segments;
}

struct Row {
  const char* name;
  Segments (*render)(const Messages&, const TextSettings&, const std::string& place);
  std::string generation;                 ///< add_generation_prompt: what an answer follows
  bool puts_bos, puts_eos;                ///< the tokenizer's own tokens
  std::vector<std::string_view> published;
};

const std::vector<Row>& table() {
  static const std::vector<Row> rows = {
      {"llama2", llama2, "", true, true,
       {R"({% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = )"
        R"(messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %})"
        R"({% endif %}{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) )"
        R"(%}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %})"
        R"({% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\n' + system_message + )"
        R"('\n<</SYS>>\n\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %})"
        R"({% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }})"
        R"({% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %})"
        R"({% endfor %})"}},
      {"llama3", llama3, "<|start_header_id|>assistant<|end_header_id|>\n\n", true, false,
       {R"({% set loop_messages = messages %}{% for message in loop_messages %}{% set content = )"
        R"('<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + )"
        R"('<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }})"
        R"({% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }})"
        R"({% endif %})",
        R"({% set loop_messages = messages %}{% for message in loop_messages %}{% set content = )"
        R"('<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + )"
        R"('<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }})"
        R"({% endfor %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }})"}},
      {"chatml", chatml, "<|im_start|>assistant\n", false, false,
       {R"({% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + )"
        R"('<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %})"}},
      {"zephyr", zephyr, "<|assistant|>\n", false, true,
       {"{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\\n' + message['content'] + "
        "eos_token }}\n{% elif message['role'] == 'system' %}\n{{ '<|system|>\\n' + message['content'] + eos_token }}"
        "\n{% elif message['role'] == 'assistant' %}\n{{ '<|assistant|>\\n'  + message['content'] + eos_token }}\n"
        "{% endif %}\n{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n"
        "{% endfor %}"}}};
  return rows;
}

}  // namespace

std::vector<std::string> chat_template_names() {
  std::vector<std::string> names;
  for (const Row& row : table()) names.emplace_back(row.name);
  return names;
}

std::string known_chat_template(std::string_view jinja) {
  // Inside of Jinja's quotes a line's end means the same as backslash n, and files have either.
  const auto with_line_ends = [](std::string_view text) {
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
      const bool escaped = text.substr(i, 2) == "\\n";
      out += escaped ? '\n' : text[i];
      i += escaped;
    }
    return out;
  };
  const std::string wanted = with_line_ends(jinja);
  for (const Row& row : table())
    for (const std::string_view published : row.published)
      if (with_line_ends(published) == wanted) return row.name;
  return {};
}

namespace {

/// The row of that name, whose tokens the tokenizer has.
const Row& row_of(const std::string& chat_template, const TextSettings& settings, const std::string& place) {
  const auto row = std::find_if(table().begin(), table().end(), [&](const Row& r) { return r.name == chat_template; });
  if (row == table().end()) {
    std::string names;
    for (const std::string& name : chat_template_names()) names += (names.empty() ? "" : ", ") + name;
    throw UserError(concat(place, ": a conversation, and the template that makes a text of it is not "
                           "known: set data.chat_template to one of ", names, " (the tokenizer's files name none of "
                           "these as chat_template)"));
  }
  for (const bool bos : {true, false}) {
    const bool puts = bos ? row->puts_bos : row->puts_eos;
    const bool has = !(bos ? settings.bos_token : settings.eos_token).empty();
    BLIPFT_USER_CHECK(has || !puts, place, ": data.chat_template ", row->name, " puts the tokenizer's ",
                      bos ? "bos_token" : "eos_token", ", but the tokenizer's files name none; name one in "
                      "tokenizer_config.json, or choose another template");
  }
  return *row;
}

}  // namespace

std::vector<Dataset::Segment> render_chat(const std::string& chat_template, const std::vector<ChatMessage>& messages,
                                          const TextSettings& settings, const std::string& place) {
  Segments segments = row_of(chat_template, settings, place).render(messages, settings, place);
  if (segments.empty()) segments.push_back({"", false});
  return segments;
}

std::string render_prompt(const std::string& chat_template, const std::vector<ChatMessage>& messages,
                          const TextSettings& settings, const std::string& place) {
  const Row& row = row_of(chat_template, settings, place);
  std::string text;
  for (const Dataset::Segment& segment : row.render(messages, settings, place)) text += segment.text;
  return text + row.generation;
}

}  // namespace blipft
