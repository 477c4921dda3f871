// Texts of answers; see answer_text.h.
#include "answers/answer_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace blipft {

std::string AnswerText::of(std::span<const int32_t> ids) const {
  std::string text = tokenizer_.decode(ids);
  if (const size_t end = stop_at(text); end != std::string::npos) text.resize(end);
  const size_t first = text.find_first_not_of(" \t\r\n"), last = text.find_last_not_of(" \t\r\n");
  return first == std::string::npos ? "" : text.substr(first, last - first + 1);
}

std::optional<size_t> AnswerText::stops(std::span<const int32_t> ids) const {
  if (settings_.stop.empty() || stop_at(tokenizer_.decode(ids)) == std::string::npos) return std::nullopt;
  return ids.size();
}

size_t AnswerText::stop_at(const std::string& text) const {
  size_t first = std::string::npos;
  for (const std::string& stop : settings_.stop) first = std::min(first, text.find(stop));
  return first;
}

ScoredText scored_text(const PromptedSample& prompt, int64_t number, std::string prompt_text, std::string text) {
  const nlohmann::json id = nlohmann::json::parse(prompt.id, nullptr, false);
  return {.index = number, .id = id.is_string() ? id.get<std::string>() : prompt.id, .prompt = std::move(prompt_text),
          .candidate = std::move(text), .references = prompt.references,
          .picture = prompt.picture >= 0 ? prompt.name : ""};
}

}  // namespace blipft
