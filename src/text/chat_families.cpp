// The families' ways to write conversations; see chat_families.h. tools/blipft_golden/ compares them with what
// transformers' apply_chat_template() makes of the published texts, whose digests it prints.
#include "text/chat_families.h"

#include <algorithm>

#include "blipft/error.h"
#include "text/unicode.h"

namespace blipft {
namespace {

std::string stripped(const std::string& text) { return std::string(unicode::stripped(text)); }

bool is_label_at(const ChatMessage& message) { return message.role == "assistant" && message.learnt; }

bool has_system(const ChatRequest& request) { return request.messages.front().role == "system"; }

/// Python's str.strip("\n") and its halves.
std::string without_line_ends(std::string_view text, bool left, bool right) {
  while (left && text.starts_with('\n')) text.remove_prefix(1);
  while (right && text.ends_with('\n')) text.remove_suffix(1);
  return std::string(text);
}

std::string without(std::string text, std::string_view part) {
  for (size_t at; (at = text.find(part)) != std::string::npos;) text.erase(at, part.size());
  return text;
}

/// Messages from `first` on are a user's and an assistant's in turn.
void check_turns(const ChatRequest& request, const char* name, bool system_allowed) {
  const bool system = has_system(request);
  BLIPFT_USER_CHECK(system_allowed || !system, request.place, ": message 1 is of role \"system\", and data.chat_template ",
                    name, " has no place for it; join it to the user's first message, or choose another template");
  for (size_t i = system; i < request.messages.size(); ++i) {
    const std::string& role = request.messages[i].role;
    const char* const expected = (i - system) % 2 == 0 ? "user" : "assistant";
    BLIPFT_USER_CHECK(role == expected, request.place, ": message ", i + 1, " is of role \"", role, "\", expected \"",
                      expected, "\": with data.chat_template ", name, ", user and assistant take turns",
                      system_allowed ? ", behind a system message or none" : "",
                      "; correct the record, or choose another template");
  }
}

// ---------------------------------------------------------------- LLaMA

/// A system message, if any, becomes part of the first user message; then users and assistants take turns.
void llama2(const ChatRequest& request, ChatText& text) {
  check_turns(request, "llama2", true);
  const bool system = has_system(request);
  for (size_t i = system; i < request.messages.size(); ++i) {
    const ChatMessage& message = request.messages[i];
    const std::string before =
        system && i == 1 ? "<<SYS>>\n" + request.messages.front().content + "\n<</SYS>>\n\n" : "";
    if (message.role == "user")
      text.add(request.settings.bos_token + "[INST] " + stripped(before + message.content) + " [/INST]");
    else
      text.add(" " + stripped(message.content) + " " + request.settings.eos_token, message.learnt);
  }
}

void llama3_turn(const std::string& role, const std::string& content, bool learnt, ChatText& text) {
  text.add("<|start_header_id|>" + role + "<|end_header_id|>\n\n");
  text.add(content + "<|eot_id|>", learnt);
}

void llama3_turns(const ChatRequest& request, size_t first, ChatText& text) {
  for (size_t i = first; i < request.messages.size(); ++i) {
    const ChatMessage& message = request.messages[i];
    llama3_turn(message.role, stripped(message.content), is_label_at(message), text);
  }
  if (request.generation) text.add("<|start_header_id|>assistant<|end_header_id|>\n\n");
}

void llama3(const ChatRequest& request, ChatText& text) {
  text.add(request.settings.bos_token);
  llama3_turns(request, 0, text);
}

/// There is always a system turn, with two dates.
void llama3_1(const ChatRequest& request, ChatText& text) {
  const bool system = has_system(request);
  text.add(request.settings.bos_token);
  llama3_turn("system", "Cutting Knowledge Date: December 2023\nToday Date: " + request.settings.chat_date_short + "\n\n" +
                            (system ? stripped(request.messages.front().content) : ""), false, text);
  llama3_turns(request, system, text);
}

// ---------------------------------------------------------------- ChatML

void chatml_turn(const std::string& role, const std::string& content, bool learnt, ChatText& text) {
  text.add("<|im_start|>" + role + "\n");
  text.add(content + "<|im_end|>", learnt);
  text.add("\n");
}

void chatml_turns(const ChatRequest& request, ChatText& text) {
  for (const ChatMessage& message : request.messages)
    chatml_turn(message.role, message.content, is_label_at(message), text);
  if (request.generation) text.add("<|im_start|>assistant\n");
}

void qwen2_5(const ChatRequest& request, ChatText& text) {
  if (!has_system(request))
    chatml_turn("system", "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.", false, text);
  chatml_turns(request, text);
}

/// An answer's thoughts and what is said then. The last answer behind the last question has thoughts, be they empty; those of
/// earlier answers go.
std::string qwen3_answer(const ChatMessage& message, bool behind_question, bool last) {
  static const std::string begin = "<think>", end = "</think>";
  std::string content = message.content, thoughts;
  if (const size_t first = content.find(end); first != std::string::npos) {
    thoughts = without_line_ends(content.substr(0, first), false, true);
    if (const size_t at = thoughts.rfind(begin); at != std::string::npos) thoughts.erase(0, at + begin.size());
    thoughts = without_line_ends(thoughts, true, false);
    content = without_line_ends(content.substr(content.rfind(end) + end.size()), true, false);
  }
  if (!behind_question || (!last && thoughts.empty())) return content;
  return "<think>\n" + without_line_ends(thoughts, true, true) + "\n</think>\n\n" + without_line_ends(content, true, false);
}

void qwen3(const ChatRequest& request, ChatText& text) {
  const std::vector<ChatMessage>& messages = request.messages;
  size_t question = messages.size() - 1;     // the last that a user asks; what tools answered is told as a user's too
  for (size_t i = messages.size(); i-- > 0;) {
    const std::string& content = messages[i].content;
    const bool of_tool = content.starts_with("<tool_response>") && content.ends_with("</tool_response>");
    if (messages[i].role != "user" || of_tool) continue;
    question = i;
    break;
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    const bool answer = messages[i].role == "assistant";
    const bool last = i + 1 == messages.size();
    chatml_turn(messages[i].role, answer ? qwen3_answer(messages[i], i > question, last) : messages[i].content,
                is_label_at(messages[i]), text);
  }
  if (request.generation) text.add("<|im_start|>assistant\n");
}

constexpr const char* smollm3_thinking =
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face. Your role as an assistant involves thoroughly "
    "exploring questions through a systematic thinking process before providing the final precise and accurate solutions. "
    "This requires engaging in a comprehensive cycle of analysis, summarizing, exploration, reassessment, reflection, "
    "backtracking, and iteration to develop well-considered thinking process. Please structure your response into two main "
    "sections: Thought and Solution using the specified format: <think> Thought section </think> Solution section. In the "
    "Thought section, detail your reasoning process in steps. Each step should include detailed considerations such as "
    "analysing questions, summarizing relevant findings, brainstorming new ideas, verifying the accuracy of the current "
    "steps, refining any errors, and revisiting previous steps. In the Solution section, based on various attempts, "
    "explorations, and reflections from the Thought section, systematically present the final solution that you deem "
    "correct. The Solution section should be logical, accurate, and concise and detail necessary steps needed to reach the "
    "conclusion.";

/// What the system turn says, and whether the model thinks.
std::string smollm3_system(const ChatRequest& request, bool& thinks) {
  const std::string system = has_system(request) ? request.messages.front().content : "";
  thinks = system.find("/no_think") == std::string::npos;
  std::string instructions = without(without(system, "/no_think"), "/think");
  // str.rstrip(): white space at the right end alone.
  instructions.resize(unicode::stripped("x" + instructions).size() - 1);
  if (system.find("/system_override") != std::string::npos) {
    instructions = without(instructions, "/system_override");
    instructions.resize(unicode::stripped("x" + instructions).size() - 1);
    return instructions;
  }
  if (instructions.empty())
    instructions = thinks ? smollm3_thinking : "You are a helpful AI assistant named SmolLM, trained by Hugging Face.";
  return "## Metadata\n\nKnowledge Cutoff Date: June 2025\nToday Date: " + request.settings.chat_date_long +
         "\nReasoning Mode: " + (thinks ? "/think" : "/no_think") + "\n\n## Custom Instructions\n\n" + instructions + "\n\n";
}

void smollm3(const ChatRequest& request, ChatText& text) {
  bool thinks = true;
  chatml_turn("system", smollm3_system(request, thinks), false, text);
  const std::string thoughts = thinks ? "" : "<think>\n\n</think>\n";
  for (const ChatMessage& message : request.messages) {
    if (message.role == "user") chatml_turn("user", message.content, false, text);
    if (message.role == "assistant")
      chatml_turn("assistant", thoughts + without_line_ends(message.content, true, false), message.learnt, text);
  }
  if (request.generation) text.add("<|im_start|>assistant\n" + thoughts);
}

// ---------------------------------------------------------------- Gemma

void gemma_turns(const ChatRequest& request, ChatText& text) {
  const bool system = has_system(request);
  text.add(request.settings.bos_token);
  for (size_t i = system; i < request.messages.size(); ++i) {
    const ChatMessage& message = request.messages[i];
    text.add(message.role == "assistant" ? "<start_of_turn>model\n" : "<start_of_turn>user\n");
    if (system && i == 1) text.add(request.messages.front().content + "\n\n");
    text.add(stripped(message.content) + "<end_of_turn>", is_label_at(message));
    text.add("\n");
  }
  if (request.generation) text.add("<start_of_turn>model\n");
}

void gemma2(const ChatRequest& request, ChatText& text) {
  check_turns(request, "gemma2", false);
  gemma_turns(request, text);
}

/// A system message stands before what the user says first.
void gemma3(const ChatRequest& request, ChatText& text) {
  check_turns(request, "gemma3", true);
  gemma_turns(request, text);
}

// ---------------------------------------------------------------- Phi, OLMo, Zephyr: <|role|>

struct RoleStyle {
  std::string behind_role, behind_turn, end;
  bool empty_system = true;                  ///< a system message without text is written
  bool closes = false;                       ///< the end token stands behind the text where no answer follows
};

void role_turns(const ChatRequest& request, const RoleStyle& style, ChatText& text) {
  for (const ChatMessage& message : request.messages) {
    if (message.role == "system" && message.content.empty() && !style.empty_system) continue;
    text.add("<|" + message.role + "|>" + style.behind_role);
    text.add(message.content + style.end, is_label_at(message));
    text.add(style.behind_turn);
  }
  if (request.generation)
    text.add("<|assistant|>" + style.behind_role);
  else if (style.closes)
    text.add(request.settings.eos_token);
}

void phi3(const ChatRequest& request, ChatText& text) { role_turns(request, {"\n", "\n", "<|end|>", true, true}, text); }
void phi3_5(const ChatRequest& request, ChatText& text) { role_turns(request, {"\n", "\n", "<|end|>", false, true}, text); }
void phi4_mini(const ChatRequest& request, ChatText& text) { role_turns(request, {"", "", "<|end|>", true, true}, text); }
void zephyr(const ChatRequest& request, ChatText& text) {
  role_turns(request, {"\n", "\n", request.settings.eos_token}, text);
}

void phi4(const ChatRequest& request, ChatText& text) {
  for (const ChatMessage& message : request.messages) {
    text.add("<|im_start|>" + message.role + "<|im_sep|>");
    text.add(message.content + "<|im_end|>", is_label_at(message));
  }
  if (request.generation) text.add("<|im_start|>assistant<|im_sep|>");
}

/// Only answers end with a token of their own, and no line's end stands behind the last.
void olmo2(const ChatRequest& request, ChatText& text) {
  text.add(request.settings.bos_token);
  for (const ChatMessage& message : request.messages) {
    const bool answer = message.role == "assistant";
    text.add("<|" + message.role + "|>\n");
    text.add(message.content + (answer ? request.settings.eos_token : ""), is_label_at(message));
    if (!answer || &message != &request.messages.back()) text.add("\n");
  }
  if (request.generation) text.add("<|assistant|>\n");
}

// ---------------------------------------------------------------- Mistral

struct MistralStyle {
  const char* name;
  std::string begin, end, answer;            ///< around what a user says, before an answer
  bool has_system = true, system_last = false;  ///< the system message is part of the user's first, or of a last, message
  bool strips = false;                       ///< answers lose the white space around them
};

void mistral_turns(const ChatRequest& request, const MistralStyle& style, ChatText& text) {
  check_turns(request, style.name, style.has_system);
  const std::vector<ChatMessage>& messages = request.messages;
  const bool system = has_system(request);
  text.add(request.settings.bos_token);
  for (size_t i = system; i < messages.size(); ++i) {
    const std::string content = style.strips && i % 2 != system ? stripped(messages[i].content) : messages[i].content;
    if (messages[i].role == "assistant") {
      text.add(style.answer + content + request.settings.eos_token, messages[i].learnt);
      continue;
    }
    const bool takes_system = system && (style.system_last ? i + 1 == messages.size() : i == 1);
    text.add(style.begin + (takes_system ? messages.front().content + "\n\n" : "") + content + style.end);
  }
}

void mistral(const ChatRequest& request, ChatText& text) {
  mistral_turns(request, {"mistral", "[INST] ", " [/INST]", "", false}, text);
}
void mistral_v1(const ChatRequest& request, ChatText& text) {
  mistral_turns(request, {"mistral_v1", " [INST] ", " [/INST]", " "}, text);
}
void mistral_v3(const ChatRequest& request, ChatText& text) {
  mistral_turns(request, {.name = "mistral_v3", .begin = "[INST] ", .end = "[/INST]", .answer = " ", .has_system = true,
                          .system_last = true, .strips = true}, text);
}
void mistral_nemo(const ChatRequest& request, ChatText& text) {
  mistral_turns(request, {.name = "mistral_nemo", .begin = "[INST]", .end = "[/INST]", .answer = "", .has_system = true,
                          .system_last = true}, text);
}

void mistral_v7(const ChatRequest& request, ChatText& text) {
  text.add(request.settings.bos_token);
  for (const ChatMessage& message : request.messages) {
    if (message.role == "user") text.add("[INST] " + message.content + "[/INST]");
    if (message.role == "system") text.add("[SYSTEM_PROMPT] " + message.content + "[/SYSTEM_PROMPT]");
    if (message.role == "assistant") text.add(" " + message.content + request.settings.eos_token, message.learnt);
  }
}

}  // namespace

void ChatText::add(const std::string& text, bool learnt) {
  if (text.empty() && !segments_.empty()) return;
  if (segments_.empty() || segments_.back().learnt != learnt) segments_.push_back({"", learnt});
  segments_.back().text += text;
}

uint64_t jinja_digest(std::string_view jinja) {
  uint64_t digest = 0xCBF29CE484222325u;
  for (size_t i = 0; i < jinja.size(); ++i) {
    const bool escaped = jinja.substr(i, 2) == "\\n";
    digest = (digest ^ static_cast<uint8_t>(escaped ? '\n' : jinja[i])) * 0x100000001B3u;
    i += escaped;
  }
  return digest;
}

const std::vector<ChatFamily>& chat_families() {
  static const std::vector<ChatFamily> families = {
      {"llama2", llama2, true, true, {0x4D1512049817743Du}},
      {"llama3", llama3, true, false, {0x0E60067A5537498Eu, 0x74891E390E614AE2u}},
      {"llama3.1", llama3_1, true, false,
       {0x1A6DA26E3AEF1B34u, 0x4FD30286BC0DA17Cu, 0xB12EC0F18B295B82u, 0xD7663F4E244B4A5Au}},
      {"chatml", chatml_turns, false, false, {0x88BF4138D5C826F0u, 0xE62B0EB869D628C3u}},
      {"qwen2.5", qwen2_5, false, false, {0x11D394755CEF9355u, 0x3A18A26CEB176A6Du}},
      {"qwen3", qwen3, false, false, {0x521E84E1430005C3u, 0xABB815B933A4981Au}},
      {"smollm3", smollm3, false, false, {}},
      {"gemma2", gemma2, true, false, {0x5C10EE65212D93B3u}},
      {"gemma3", gemma3, true, false, {0xC90DEA00B85C935Du, 0xD19B6FF3A49DEEA5u}},
      {"phi3", phi3, false, true, {0xECEBDB26677C663Du}},
      {"phi3.5", phi3_5, false, true, {0xCF278CDE387A54C8u}},
      {"phi4", phi4, false, false, {0x9ACDD6B945E8E7F9u}},
      {"phi4_mini", phi4_mini, false, true, {0xD6A2D985B28CA308u}},
      {"olmo2", olmo2, true, true, {0x413797FA6DF6FEE5u}},
      {"mistral", mistral, true, true, {0x8C734B90B4F8D84Du}},
      {"mistral_v1", mistral_v1, true, true, {0x8628CE3FADFB835Bu, 0xD99E5B4469BE13B3u}},
      {"mistral_v3", mistral_v3, true, true, {0x09EB1999B1FCF65Fu, 0xD772D52970D6926Fu}},
      {"mistral_nemo", mistral_nemo, true, true, {0x0C42862C0F03CD0Bu, 0xF1784176FABCEB43u}},
      {"mistral_v7", mistral_v7, true, true, {0xE4A9CC594604808Au}},
      {"zephyr", zephyr, false, true, {0xCD8B49000DB02C2Cu}}
  };
  return families;
}

}  // namespace blipft
