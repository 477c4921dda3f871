// Conversations as texts; see chat_template.h.
#include "text/chat_template.h"

#include <algorithm>

#include "blipft/error.h"
#include "text/jinja_value.h"

namespace blipft {
namespace {

using Json = nlohmann::ordered_json;

std::tm day_of(const std::string& date) {
  std::tm day{};
  (void)strptime(date.c_str(), "%Y-%m-%d", &day);  // also its day of the week
  return day;
}

std::string stripped(std::string_view text) { return std::string(jinja::stripped(text, true, true)); }

/// The size of the mark that ends a turn at the begin of `text`, with the white space before it; 0: there is none.
size_t end_mark(std::string_view text) {
  const size_t begin = text.size() - jinja::stripped(text, true, false).size();
  if (!text.substr(begin).starts_with('<')) return 0;
  const size_t end = text.find_first_of("> \n", begin);
  return end != std::string_view::npos && text[end] == '>' ? end + 1 : 0;
}

class Rendering {
 public:
  Rendering(const Conversation& conversation, const TextSettings& settings, const std::string& place)
      : settings_(settings),
        place_(place),
        chat_(*template_of(conversation, settings, place)),
        messages_(chat_messages(conversation.messages)) {
    variables_["tools"] = conversation.tools;
    variables_["documents"] = nullptr;
    for (const auto& [name, token] : settings.special_tokens) variables_[name] = token;
  }

  /// The text of the first `count` messages.
  ChatTemplate::Text text(size_t count, bool generation_prompt) {
    Json some = Json::array();
    for (size_t i = 0; i < count; ++i) some.push_back(messages_[i]);
    variables_["messages"] = std::move(some);
    variables_["add_generation_prompt"] = generation_prompt;
    try {
      return chat_.render(variables_, day_of(settings_.chat_date));
    } catch (const UserError& error) {
      // Templates differ about messages of calls alone: some want no content, others an empty one.
      if (fill_contents()) return text(count, generation_prompt);
      throw UserError(concat(place_, ": the chat template refuses the conversation: ", error.what()));
    }
  }

  /// Begin and end of what the messages that `trains` names say.
  std::vector<std::pair<size_t, size_t>> spans(const ChatTemplate::Text& whole, const std::vector<size_t>& trains) {
    if (chat_.marks_answers()) return marked_spans(whole, trains);
    std::vector<std::pair<size_t, size_t>> spans;
    for (const size_t i : trains) spans.push_back(span(whole.text, i));
    return spans;
  }

 private:
  static const ChatTemplate* template_of(const Conversation& conversation, const TextSettings& settings,
                                         const std::string& place) {
    const bool of_tools = settings.tool_template && !conversation.tools.is_null();
    const ChatTemplate* const chat = (of_tools ? settings.tool_template : settings.chat_template).get();
    if (chat) return chat;
    std::string names;
    for (const std::string& name : chat_format_names()) names += name + ", ";
    throw UserError(
        concat(place,
               ": found a conversation, and the model's folder has no chat template (chat_template.jinja, or "
               "chat_template in tokenizer_config.json). Set data.chat_template to one of ",
               names, "or to the path of a .jinja file."));
  }

  bool fill_contents() {
    bool filled = false;
    for (Json& message : messages_)
      if (!message.contains("content")) message["content"] = "", filled = true;
    return filled;
  }

  /// One block is one answer, in order.
  std::vector<std::pair<size_t, size_t>> marked_spans(const ChatTemplate::Text& whole,
                                                      const std::vector<size_t>& trains) {
    std::vector<size_t> answers;
    for (size_t i = 0; i < messages_.size(); ++i)
      if (messages_[i]["role"] == "assistant") answers.push_back(i);
    if (trains == answers) return whole.spans;
    BLIPFT_USER_CHECK(whole.spans.size() == answers.size(), place_, ": found ", whole.spans.size(),
                      " {% generation %} blocks for ", counted(static_cast<int64_t>(answers.size()), "answer"),
                      ", so that single answers cannot be left out. Set "
                      "data.train_on: all and remove the weights, or choose another data.chat_template.");
    std::vector<std::pair<size_t, size_t>> spans;
    for (size_t k = 0; k < answers.size(); ++k)
      if (std::find(trains.begin(), trains.end(), answers[k]) != trains.end()) spans.push_back(whole.spans[k]);
    return spans;
  }

  std::pair<size_t, size_t> span(const std::string& whole, size_t i) {
    const std::string prompt = text(i, true).text;
    const bool last = i + 1 == messages_.size();
    if (!whole.starts_with(prompt) || prompt.empty())
      refuse(i, last, "the prompt before it is not how the conversation begins");
    const std::string turn = last ? whole : text(i + 1, false).text;
    if (!turn.starts_with(prompt)) refuse(i, last, "it does not follow the prompt before it");
    const std::string content = stripped(content_text(messages_[i]));
    const size_t content_at = content_end(turn, prompt.size(), content, i);
    const size_t unsaid = turn.size() - said_end(turn, messages_[i].contains("tool_calls") ? 0 : content_at);
    if (whole.starts_with(turn)) return {prompt.size(), turn.size() - unsaid};
    // The template makes something else of the answer when messages follow: it may leave out how the answer began, a
    // thought, or end it with another mark.
    const std::string_view said = std::string_view(turn).substr(prompt.size());
    const std::string_view rest = std::string_view(whole).substr(prompt.size());
    for (size_t begin = 1; begin + unsaid < said.size(); ++begin)
      if (rest.starts_with(said.substr(begin))) return {prompt.size(), prompt.size() + said.size() - begin - unsaid};
    if (content_at == 0 || !rest.starts_with(said.substr(0, content_at - prompt.size())))
      refuse(i, false, "the template rewrites it when other messages follow");
    return {prompt.size(), content_at + end_mark(std::string_view(whole).substr(content_at))};
  }

  /// Returns the position at which the content ends in the text of its turn. Returns 0 if there is no content or the
  /// template changes it.
  size_t content_end(const std::string& turn, size_t begin, const std::string& content, size_t i) {
    if (content.empty()) return 0;
    const size_t at = turn.rfind(content);
    if (at != std::string::npos && at >= begin && turn.find(content, begin) == at) return at + content.size();
    // It stands there more than once, or not as it is: a mark behind it says where.
    static const std::string mark = "\uE000end\uE001";
    const Json before = messages_[i]["content"];
    messages_[i]["content"] =
        before.is_string() ? Json(content + mark) : Json::array({{{"type", "text"}, {"text", content + mark}}});
    const std::string marked = text(i + 1, false).text;
    messages_[i]["content"] = before;
    const size_t end = marked.find(mark);
    BLIPFT_USER_CHECK(
        end != std::string::npos, place_, ": message ", i + 1,
        ": found an answer whose content the chat template does not print. It may expect a list of parts, as "
        "[{\"type\": \"text\", \"text\": ...}]: write the content so.");
    return turn.starts_with(std::string_view(marked).substr(0, end)) ? end : 0;
  }

  /// Returns the position at which the model stops: behind the mark that ends the turn, before the white space and
  /// marks that follow it. If only white space follows the content, this white space ends the turn.
  /// `content_at`: the content's end, or 0.
  static size_t said_end(std::string_view turn, size_t content_at) {
    if (content_at == 0) return jinja::stripped(turn, false, true).size();
    const std::string_view behind = jinja::stripped(turn.substr(content_at), true, false);
    return turn.size() - behind.size() + std::min(behind.find_first_of(" \n"), behind.size());
  }

  [[noreturn]] void refuse(size_t i, bool last, const char* why) const {
    throw UserError(concat(
        place_, ": message ", i + 1, ": found an answer that cannot be distinguished in the conversation's text: ", why,
        last ? ". Set data.chat_template to a template with {% generation %} around what answers say."
             : ". Set data.train_on: last, or data.chat_template to a template with {% generation %} around what "
               "answers say."));
  }

  const TextSettings& settings_;
  const std::string& place_;
  const ChatTemplate& chat_;
  Json messages_;
  Json variables_ = Json::object();
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
                                     const std::string& place) {
  std::vector<size_t> trains;
  for (size_t i = 0; i < conversation.messages.size(); ++i)
    if (conversation.trains[i] && conversation.messages[i]["role"] == "assistant") trains.push_back(i);
  if (settings.train_on == TrainOn::last && trains.size() > 1) trains.erase(trains.begin(), trains.end() - 1);
  Rendering rendering(conversation, settings, place);
  const ChatTemplate::Text whole = rendering.text(conversation.messages.size(), false);
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
      if (segment.learnt) text = segment.text;
    const size_t at = text.rfind("answer");
    return at == std::string::npos ? "" : stripped(std::string_view(text).substr(at + std::string_view("answer").size()));
  } catch (const UserError&) {
    return {};
  }
}

std::string render_prompt(const Conversation& conversation, const TextSettings& settings, const std::string& place) {
  return Rendering(conversation, settings, place).text(conversation.messages.size(), true).text;
}

}  // namespace blipft
