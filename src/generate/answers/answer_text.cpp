// Texts of answers; see answer_text.h.
#include "generate/answers/answer_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace blipft {

namespace {

constexpr const char* kBlanks = " \t\r\n";

// Returns the position after an empty think block at the start of a text and the blanks after it, 0 if there is no such
// block, and npos if the text is the beginning of one.
size_t begin_of_answer(const std::string& text) {
  static const std::string begin = "<think>", end = "</think>";
  const size_t first = std::min(text.find_first_not_of(kBlanks), text.size());
  if (text.compare(first, begin.size(), begin) != 0) return 0;
  const size_t at = std::min(text.find_first_not_of(kBlanks, first + begin.size()), text.size());
  if (text.compare(at, end.size(), end) == 0)
    return std::min(text.find_first_not_of(kBlanks, at + end.size()), text.size());
  return end.starts_with(text.substr(at)) ? std::string::npos : 0;
}

}  // namespace

std::string AnswerText::of(std::span<const int32_t> ids) const {
  return clean(tokenizer_.decode(ids));
}

std::string AnswerText::clean(std::string text) const {
  if (const size_t end = stop_at(text); end != std::string::npos) text.resize(end);
  const size_t answer = begin_of_answer(text);
  const size_t first = text.find_first_not_of(kBlanks, answer == std::string::npos ? 0 : answer);
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

std::string AnswerText::scored(const std::string& text) const {
  const std::string& mark = settings_.ignore_before;
  const size_t at = mark.empty() ? std::string::npos : text.rfind(mark);
  if (at == std::string::npos) return text;
  return text.substr(std::min(text.find_first_not_of(kBlanks, at + mark.size()), text.size()));
}

std::optional<size_t> AnswerText::stops(std::span<const int32_t> ids) const {
  if (settings_.stop.empty() || stop_at(tokenizer_.decode(ids)) == std::string::npos) return std::nullopt;
  return ids.size();
}

size_t AnswerText::stop_at(const std::string& text) const {
  size_t first = std::string::npos;
  const size_t answer = begin_of_answer(text);
  for (const std::string& stop : settings_.stop) first = std::min(first, text.find(stop, answer));
  return first;
}

ScoredText scored_text(const PromptedSample& prompt, int64_t number, std::string prompt_text, const std::string& text,
                       const AnswerText& answers) {
  const nlohmann::json id = nlohmann::json::parse(prompt.id, nullptr, false);
  std::vector<std::string> references;
  for (const std::string& reference : prompt.references) references.push_back(answers.scored(answers.clean(reference)));
  return {.index = number,
          .id = id.is_string() ? id.get<std::string>() : prompt.id,
          .prompt = std::move(prompt_text),
          .candidate = answers.scored(text),
          .references = std::move(references),
          .picture = prompt.picture >= 0 ? prompt.name : ""};
}

}  // namespace blipft
