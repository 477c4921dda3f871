// Conversations as texts; see chat_template.h.
#include "text/chat_template.h"

#include <algorithm>
#include <utility>

#include "blipft/error.h"
#include "text/answer_spans.h"
#include "text/unicode.h"

namespace blipft {
namespace {

using Json = nlohmann::ordered_json;

std::tm day_of(const std::string& date) {
  std::tm day{};
  (void)strptime(date.c_str(), "%Y-%m-%d", &day);  // also its day of the week
  return day;
}

class Rendering {
 public:
  Rendering(const Conversation& conversation, const TextSettings& settings, const std::string& location)
      : settings_(settings),
        location_(location),
        chat_(*template_of(conversation, settings, location)),
        messages_(chat_messages(conversation.messages)) {
    variables_["tools"] = conversation.tools;
    variables_["documents"] = nullptr;
    for (const auto& [name, token] : settings.special_tokens) variables_[name] = token;
  }

  ChatTemplate::Text text(bool generation_prompt) { return text(messages_, messages_.size(), generation_prompt); }

  /// Returns begin and end of the answers whose indices `trains` lists.
  std::vector<std::pair<size_t, size_t>> spans(const ChatTemplate::Text& whole, const std::vector<size_t>& trains) {
    if (chat_.marks_answers()) return marked_spans(whole, trains);
    const auto render = [this](const Json& messages, size_t count, bool generation_prompt) {
      return text(messages, count, generation_prompt).text;
    };
    const auto eos = settings_.special_tokens.find("eos_token");
    return answer_spans(messages_, whole.text, trains, eos == settings_.special_tokens.end() ? "" : eos->second, render,
                        location_);
  }

 private:
  /// Renders the first `count` of `messages`.
  ChatTemplate::Text text(const Json& messages, size_t count, bool generation_prompt) {
    Json some = Json::array();
    for (size_t i = 0; i < count; ++i) {
      some.push_back(messages[i]);
      if (fills_contents_ && !messages[i].contains("content")) some.back()["content"] = "";
    }
    variables_["messages"] = std::move(some);
    variables_["add_generation_prompt"] = generation_prompt;
    try {
      return chat_.render(variables_, day_of(settings_.chat_date));
    } catch (const UserError& error) {
      // For messages with only tool calls, some templates expect no content and others an empty one: tries both.
      if (!std::exchange(fills_contents_, true)) return text(messages, count, generation_prompt);
      throw UserError(concat(location_, ": the chat template refuses the conversation: ", error.what()));
    }
  }

  static const ChatTemplate* template_of(const Conversation& conversation, const TextSettings& settings,
                                         const std::string& location) {
    const bool of_tools = settings.tool_template && !conversation.tools.is_null();
    const ChatTemplate* const chat = (of_tools ? settings.tool_template : settings.chat_template).get();
    if (chat) return chat;
    std::string names;
    for (const std::string& name : chat_format_names()) names += name + ", ";
    throw UserError(
        concat(location,
               ": found a conversation, and the model's folder has no chat template (chat_template.jinja, or "
               "chat_template in tokenizer_config.json). Set data.chat_template to one of ",
               names, "or to the path of a .jinja file."));
  }

  /// Returns the spans of {% generation %} blocks: the k-th block is the k-th answer.
  std::vector<std::pair<size_t, size_t>> marked_spans(const ChatTemplate::Text& whole,
                                                      const std::vector<size_t>& trains) {
    std::vector<size_t> answers;
    for (size_t i = 0; i < messages_.size(); ++i)
      if (messages_[i]["role"] == "assistant") answers.push_back(i);
    if (trains == answers) return whole.spans;
    BLIPFT_USER_CHECK(whole.spans.size() == answers.size(), location_, ": found ", whole.spans.size(),
                      " {% generation %} blocks for ", counted(static_cast<int64_t>(answers.size()), "answer"),
                      ", so that single answers cannot be left out. Set "
                      "data.train_on: all and remove the weights, or choose another data.chat_template.");
    std::vector<std::pair<size_t, size_t>> spans;
    for (size_t k = 0; k < answers.size(); ++k)
      if (std::binary_search(trains.begin(), trains.end(), answers[k])) spans.push_back(whole.spans[k]);
    return spans;
  }

  const TextSettings& settings_;
  const std::string& location_;
  const ChatTemplate& chat_;
  const Json messages_;
  Json variables_ = Json::object();
  bool fills_contents_ = false;  ///< messages without a content get an empty one
};

}  // namespace

std::string content_text(const Json& message) {
  const auto content = message.find("content");
  if (content == message.end()) return "";
  if (content->is_string()) return content->get<std::string>();
  std::string text;
  for (const Json& part : *content)
    if (part.is_object() && part.contains("text") && part["text"].is_string()) text += part["text"].get<std::string>();
  return text;
}

std::vector<TextSegment> render_chat(const Conversation& conversation, const TextSettings& settings,
                                     const std::string& location) {
  std::vector<size_t> trains;
  for (size_t i = 0; i < conversation.messages.size(); ++i)
    if (conversation.trains[i] && conversation.messages[i]["role"] == "assistant") trains.push_back(i);
  if (settings.train_on == TrainOn::last && trains.size() > 1) trains.erase(trains.begin(), trains.end() - 1);
  Rendering rendering(conversation, settings, location);
  const ChatTemplate::Text whole = rendering.text(false);
  std::vector<TextSegment> segments;
  const auto add = [&](size_t begin, size_t end, bool trained) {
    if (begin < end) segments.push_back({whole.text.substr(begin, end - begin), trained});
  };
  size_t done = 0;
  for (const auto& [begin, end] : rendering.spans(whole, trains)) {
    add(done, std::max(begin, done), false);
    add(std::max(begin, done), end, true);
    done = std::max(done, end);
  }
  add(done, whole.text.size(), false);
  if (segments.empty()) segments.push_back({"", false});
  return segments;
}

std::string end_of_answers(const TextSettings& settings) {
  Conversation conversation{{{{"role", "user"}, {"content", "question"}}, {{"role", "assistant"}, {"content", "answer"}}}, {},
                            {false, true}};
  try {
    std::string text;
    for (const TextSegment& segment : render_chat(conversation, settings, ""))
      if (segment.is_label) text = segment.text;
    const size_t at = text.rfind("answer");
    if (at == std::string::npos) return {};
    return std::string(unicode::stripped(std::string_view(text).substr(at + std::string_view("answer").size())));
  } catch (const UserError&) {
    return {};
  }
}

std::string render_prompt(const Conversation& conversation, const TextSettings& settings, const std::string& location) {
  return Rendering(conversation, settings, location).text(true).text;
}

}  // namespace blipft
