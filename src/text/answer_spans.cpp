// Finds the answers in a conversation's text; see answer_spans.h.
//
// Method: a mark with a number is added after each string of the messages, and the marked messages are rendered. The
// positions of the marks in the text show where each string ends. The text after the last string of an answer, up to
// the end of its turn, belongs to the answer; the prompt before it is rendered separately and compared with the text.
#include "text/answer_spans.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <map>
#include <string_view>

#include "blipft/error.h"
#include "text/chat_template.h"
#include "text/unicode.h"

namespace blipft {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t nowhere = std::string::npos;
/// Number of equal prompts (or ends) in a row after which the next one is assumed to be equal and is not rendered.
constexpr int enough_times = 8;
/// Limit of the number of messages in all rendered prefixes together; rendering them takes a few seconds.
constexpr size_t max_prefix_messages = 1'000'000;

std::string_view without_blanks(std::string_view text) { return unicode::stripped(text); }

/// Returns the size of the mark that ends a turn ("<|im_end|>") at the start of `text`, including the white space
/// before it; 0 if there is none.
size_t end_mark(std::string_view text) {
  const size_t begin = text.size() - unicode::stripped(text, true, false).size();
  if (!text.substr(begin).starts_with('<')) return 0;
  const size_t end = text.find_first_of("> \n", begin);
  return end != nowhere && text[end] == '>' ? end + 1 : 0;
}

/// Returns the begin of the mark ("<...>") that contains position `at`, or `at` if no mark contains it.
size_t mark_begin(std::string_view text, size_t at) {
  const size_t begin = text.substr(0, at).rfind('<');
  return begin != nowhere && text.substr(begin, at - begin).find('>') == nowhere ? begin : at;
}

size_t common_prefix(std::string_view a, std::string_view b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

/// Returns the positions in `prompt` and in `text` up to which both agree. White space may differ, because some
/// templates indent a prompt differently from the same text before an answer.
std::pair<size_t, size_t> agreement(std::string_view prompt, std::string_view text) {
  const auto skip_blanks = [](std::string_view of, size_t& at) {
    const size_t before = std::exchange(at, std::min(of.find_first_not_of(" \n\r\t", at), of.size()));
    return at > before;
  };
  size_t p = 0, t = 0;
  for (bool skipped = true; skipped;) {
    const size_t common = common_prefix(prompt.substr(p), text.substr(t));
    p += common;
    t += common;
    if (p == prompt.size()) break;
    skipped = skip_blanks(prompt, p);
    skipped |= skip_blanks(text, t);
  }
  return {p, t};
}

class Answers {
 public:
  Answers(const Json& messages, const std::string& whole, const std::string& eos, const RenderMessages& render,
          const std::string& location)
      : messages_(messages), eos_(eos), render_(render), location_(location) {
    while (whole.find(mark_) != nowhere && mark_.back() != '\xBF') ++mark_.back();
    for (const bool marks_calls : {true, false}) {
      mark_strings(marks_calls);
      whole_ = rendered(messages.size(), false);
      if (whole_.text == whole) return;
    }
    // The template renders marked messages differently, so the marks cannot be used.
    marked_ = messages;
    whole_ = {whole, std::vector<size_t>(strings_.size(), nowhere)};
  }

  std::vector<std::pair<size_t, size_t>> spans(const std::vector<size_t>& trains) {
    std::vector<std::pair<size_t, size_t>> spans;
    for (const size_t i : trains) {
      const bool exact = i == trains.back();
      const size_t before = i == 0 ? nowhere : last_string(i - 1);
      const Ending prompt = prompt_behind(i, before, exact);
      if (!prompt.anchored && prompt.text.empty()) refuse(i, "there is no prompt before it");
      const size_t begin = answer_begin(i, whole_, before, prompt);
      const size_t known = exact ? nowhere : known_end(i, begin);
      const size_t end = known != nowhere ? known : std::max(begin, answer_end(i, begin, before, prompt));
      if (known == nowhere) remember_end(i, begin, end);
      spans.emplace_back(begin, end);
    }
    return spans;
  }

 private:
  struct String {
    std::string text;  ///< without the white space around it
    std::string tag;   ///< the last part of the string, which follows the mark
    bool is_content = false;
  };
  /// A rendered text and [strings] the end of each string of the messages in it; nowhere: the text lacks the string.
  struct Text {
    std::string text;
    std::vector<size_t> ends;
  };
  /// The part of a text after the last string of its messages, or the whole text if that string is not found
  /// (`anchored` is false).
  struct Ending {
    std::string text;
    bool anchored = false;
  };
  /// A text that repeats in a conversation, and how often it was found in a row.
  struct Repeated {
    std::string text;
    int times = 0;
    void found(std::string_view again) {
      times = text == again ? times + 1 : 1;
      text = again;
    }
    bool is_known() const { return times >= enough_times; }
  };

  void mark_strings(bool marks_calls) {
    marked_ = messages_;
    strings_.clear();
    first_string_.clear();
    for (Json& message : marked_) {
      first_string_.push_back(strings_.size());
      const Json thought = message.value("reasoning_content", Json());
      for (const char* key : {"content", "reasoning_content", "tool_calls"})
        if (message.contains(key) && (marks_calls || key != std::string_view("tool_calls")))
          mark(message[key], key == std::string_view("content"));
      for (const char* key : {"thinking", "reasoning"})  // the same text under other keys
        if (message.contains(key) && message[key] == thought) message[key] = message["reasoning_content"];
    }
    first_string_.push_back(strings_.size());
  }

  /// Inserts a mark after each string in a part of a message: before the white space at its end, which templates strip,
  /// and before a tag at its end, because some templates test if a content ends with </tool_response>.
  void mark(Json& value, bool is_content) {
    if (value.is_structured())
      for (auto& item : value.items())
        if (item.key() != "type" && item.key() != "id") mark(item.value(), is_content);
    if (!value.is_string() || without_blanks(value.get_ref<const std::string&>()).empty()) return;
    std::string text = value;
    const size_t end = unicode::stripped(text, false, true).size(), tag = text.rfind('<', end);
    const size_t at = text[end - 1] == '>' && tag != nowhere ? tag : end;
    strings_.push_back({std::string(without_blanks(text)), text.substr(at, end - at), is_content});
    value = text.insert(at, concat(mark_, strings_.size() - 1, mark_));
  }

  /// Renders the first `count` messages, removes the marks from the text, and returns their positions.
  Text rendered(size_t count, bool generation_prompt) {
    const std::string text = render_(marked_, count, generation_prompt);
    Text out;
    out.ends.assign(first_string_[count], nowhere);
    for (size_t at = 0;;) {
      const size_t begin = std::min(text.find(mark_, at), text.size());
      out.text.append(text, at, begin - at);
      if (begin == text.size()) break;
      size_t number = 0;
      const char* const digits = text.data() + begin + mark_.size();
      const auto [end, error] = std::from_chars(digits, text.data() + text.size(), number);
      at = static_cast<size_t>(end - text.data());
      if (error == std::errc() && number < out.ends.size() && text.compare(at, mark_.size(), mark_) == 0) {
        at += mark_.size();
        if (out.ends[number] == nowhere) out.ends[number] = out.text.size();
      } else {
        out.text.append(text, begin, at - begin);
      }
    }
    for (size_t n = 0; n < out.ends.size(); ++n) {
      const std::string& tag = strings_[n].tag;
      if (out.ends[n] == nowhere) continue;
      out.ends[n] = out.text.compare(out.ends[n], tag.size(), tag) == 0 ? out.ends[n] + tag.size() : nowhere;
    }
    return out;
  }

  Text prefix(size_t count, bool generation_prompt) {
    prefix_messages_ += count;
    BLIPFT_USER_CHECK(prefix_messages_ <= max_prefix_messages, location_, ": message ", count, ": found ",
                      messages_.size(), " messages, of which the chat template ends each in another way, expected at ",
                      "most 1000 such messages. Set data.train_on: last, or data.chat_template to a template with ",
                      "{% generation %} around what answers say.");
    return rendered(count, generation_prompt);
  }

  /// Returns the end of the prompt of answer i: the part after string `before`. It is nearly always equal after
  /// messages of the same kind, so it is not rendered for each of them, unless the caller requires an `exact` one.
  Ending prompt_behind(size_t i, size_t before, bool exact) {
    Repeated& repeated = repeated_[concat("prompt after ", i == 0 ? "" : kind_of(i - 1))];
    if (!exact && before != nowhere && repeated.is_known()) return {repeated.text, true};
    const Text text = prefix(i, true);
    if (before == nowhere || text.ends[before] == nowhere) return {text.text};
    const Ending found = {text.text.substr(text.ends[before]), true};
    repeated.found(unicode::stripped(found.text, true, false));
    return found;
  }

  /// Returns the text from `at` to the first string of the message after answer i, without white space at its end.
  std::string_view before_next(size_t i, size_t at) const {
    const size_t next = i + 1 < messages_.size() ? strings_begin(whole_, i + 1) : nowhere;
    if (next == nowhere || next < at) return {};
    return unicode::stripped(std::string_view(whole_.text).substr(at, next - at), false, true);
  }

  /// Returns the end of answer i if a repeated end is known and found again, else nowhere. The repeated end follows the
  /// content of the answer. Answers that end with a tool call have different ends; there it precedes the next message.
  size_t known_end(size_t i, size_t begin) {
    const Repeated& repeated = repeated_ends(i);
    if (!repeated.is_known()) return nowhere;
    const size_t size = repeated.text.size(), at = strings_end(i, begin);
    if (ends_with_content(i)) return whole_.text.compare(at, size, repeated.text) == 0 ? at + size : nowhere;
    const std::string_view rest = before_next(i, at);
    return size > 0 && rest.ends_with(repeated.text) ? at + rest.size() - size : nowhere;
  }
  void remember_end(size_t i, size_t begin, size_t end) {
    const size_t at = strings_end(i, begin);
    const std::string_view ended = std::string_view(whole_.text).substr(at, end - at);
    repeated_ends(i).found(ends_with_content(i) ? ended : before_next(i, end));
  }
  Repeated& repeated_ends(size_t i) {
    return repeated_[concat(kind_of(i), " before ", i + 1 < messages_.size() ? kind_of(i + 1) : "nothing")];
  }
  size_t strings_end(size_t i, size_t begin) const {
    const size_t last = last_string(i);
    return last == nowhere ? begin : whole_.ends[last];
  }

  /// Returns the string of a message that ends last in the whole text, or nowhere if the text has none of them.
  size_t last_string(size_t message) const {
    size_t last = nowhere;
    for (size_t n = first_string_[message]; n < first_string_[message + 1]; ++n)
      if (whole_.ends[n] != nowhere && (last == nowhere || whole_.ends[n] > whole_.ends[last])) last = n;
    return last;
  }

  /// Returns the begin of the first string of a message in `text`. If the template has removed its start, the begin of
  /// the rest.
  size_t strings_begin(const Text& text, size_t message) const {
    size_t begin = nowhere;
    for (size_t n = first_string_[message]; n < first_string_[message + 1]; ++n) {
      if (text.ends[n] == nowhere) continue;
      size_t at = text.ends[n];
      const std::string& said = strings_[n].text;
      for (size_t k = said.size(); k > 0 && at > 0 && text.text[at - 1] == said[k - 1]; --k) --at;
      begin = std::min(begin, at);
    }
    return begin;
  }

  bool prints_strings() const {
    for (const size_t end : whole_.ends)
      if (end != nowhere) return true;
    const auto shorter = [](const String& a, const String& b) { return a.text.size() < b.text.size(); };
    return whole_.text.find(std::max_element(strings_.begin(), strings_.end(), shorter)->text) != nowhere;
  }

  std::string kind_of(size_t message) const {
    return messages_[message]["role"].get<std::string>() + (ends_with_content(message) ? "" : " that calls");
  }
  bool ends_with_content(size_t message) const {
    const size_t last = last_string(message);
    return last != nowhere && strings_[last].is_content;
  }

  size_t answer_begin(size_t i, const Text& text, size_t before, const Ending& prompt) const {
    const size_t from = prompt.anchored ? text.ends[before] : 0;
    if (from == nowhere) refuse(i, "the template rewrites it when other messages follow");
    const std::string_view rest = std::string_view(text.text).substr(from);
    const auto [p, t] = agreement(prompt.text, rest);
    if (p == prompt.text.size()) return from + t;
    // The prompt ends with text that the conversation's text does not have, such as "<think>".
    const size_t said = strings_begin(text, i);
    if (!prompt.anchored || said == nowhere || said < from)
      refuse(i, "the text does not have the prompt that the template makes of the messages before it");
    const size_t begin = mark_begin(rest, std::min(t, said - from));
    std::string_view between = unicode::stripped(rest.substr(begin, said - from - begin), true, false);
    // The model does not repeat the end of the prompt.
    const std::string_view requested = without_blanks(prompt.text);
    size_t repeated = between.size();
    while (!requested.ends_with(between.substr(0, repeated))) --repeated;
    between.remove_prefix(repeated);
    if (without_blanks(between).empty()) return said;
    if (without_blanks(rest.substr(0, t)).empty() || std::isalnum(static_cast<unsigned char>(between.front())))
      refuse(i, "it does not follow the prompt that the template makes of the messages before it");
    return said - between.size();
  }

  size_t answer_end(size_t i, size_t begin, size_t before, const Ending& prompt) {
    const size_t own = last_string(i);
    if (own == nowhere) {
      const Text turn = prefix(i + 1, false);
      const std::string_view behind = std::string_view(turn.text).substr(answer_begin(i, turn, before, prompt));
      BLIPFT_USER_CHECK(
          strings_.empty() || prints_strings(), location_, ": message ", i + 1,
          ": found an answer whose content the chat template does not print. It may expect a list of parts, as "
          "[{\"type\": \"text\", \"text\": ...}]: write the content so.");
      std::string_view said = ended(i, behind, prompt);
      const bool is_silent = said.empty();
      while (whole_.text.compare(begin, said.size(), said) != 0) said.remove_prefix(1);  // skips a removed thought
      if (said.empty() && !is_silent) refuse(i, "the template rewrites it when other messages follow");
      return begin + said.size();
    }
    const Text turn = prefix(i + 1, false);
    if (turn.ends[own] == nowhere) refuse(i, "the template rewrites it when other messages follow");
    return end_in_whole(i, whole_.ends[own], ended(i, std::string_view(turn.text).substr(turn.ends[own]), prompt));
  }

  /// Returns the part of `behind` that the model has to generate, up to the mark that ends the turn. `behind`: the text
  /// of the turn after its last string. If it is only white space, it ends the turn.
  std::string_view ended(size_t i, std::string_view behind, const Ending& prompt) const {
    std::string_view out = unicode::stripped(behind, false, true);
    if (ends_with_content(i)) {
      const size_t begin = behind.size() - unicode::stripped(behind, true, false).size();
      size_t end = std::min(behind.find_first_of(" \n", begin), behind.size());
      if (mark_begin(behind, end) < end && behind.find('>', end) != nowhere) end = behind.find('>', end) + 1;
      out = behind.substr(0, end);
    }
    const size_t eos = eos_.empty() ? nowhere : out.find(eos_);
    if (eos != nowhere) return out.substr(0, eos + eos_.size());
    // Some templates write the next prompt although it was not requested.
    const std::string_view requested = unicode::stripped(prompt.text, false, true);
    const size_t common = static_cast<size_t>(
        std::mismatch(out.rbegin(), out.rend(), requested.rbegin(), requested.rend()).first - out.rbegin());
    const std::string_view next = out.substr(std::min(out.find('<', out.size() - common), out.size()));
    out.remove_suffix(next.size() - end_mark(next));
    return out;
  }

  /// Returns the end of an answer in the whole text. `at`: the end of its last string; `ended`: the text after this
  /// string if the answer is the last message.
  size_t end_in_whole(size_t i, size_t at, std::string_view ended) const {
    const std::string_view rest = std::string_view(whole_.text).substr(at);
    if (rest.starts_with(ended)) return at + ended.size();
    // Some templates end a turn with another mark if messages follow. A mark directly before the text of the next
    // message begins that message.
    const size_t agreed = mark_begin(rest, common_prefix(rest, ended));
    const size_t end = agreed + end_mark(rest.substr(agreed));
    const bool begins_next = end == before_next(i, at).size();
    return at + (begins_next ? agreed : end);
  }

  [[noreturn]] void refuse(size_t i, const char* why) const {
    throw UserError(concat(
        location_, ": message ", i + 1, ": found an answer that cannot be distinguished in the conversation's text: ", why,
        i + 1 == messages_.size()
            ? ". Set data.chat_template to a template with {% generation %} around what answers say."
            : ". Set data.train_on: last, or data.chat_template to a template with {% generation %} around what "
              "answers say."));
  }

  const Json& messages_;
  Json marked_;
  const std::string& eos_;
  const RenderMessages& render_;
  const std::string& location_;
  std::string mark_ = "\U0001D300";       ///< on both sides of a string's number; Python's repr() keeps it
  std::vector<String> strings_;           ///< strings of all messages, in order
  std::vector<size_t> first_string_;      ///< [messages + 1]: index of the first string of each message
  Text whole_;
  std::map<std::string, Repeated> repeated_;
  size_t prefix_messages_ = 0;
};

}  // namespace

std::vector<std::pair<size_t, size_t>> answer_spans(const Json& messages, const std::string& whole,
                                                    const std::vector<size_t>& trains, const std::string& eos_token,
                                                    const RenderMessages& render, const std::string& location) {
  return Answers(messages, whole, eos_token, render, location).spans(trains);
}

}  // namespace blipft
