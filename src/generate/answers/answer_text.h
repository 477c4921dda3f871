// The text of generated ids, and its sample for metrics and pages.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "blipft/evaluate.h"
#include "blipft/prompts.h"
#include "blipft/text.h"
#include "engine/decode/generate_settings.h"

namespace blipft {

/// Decodes new ids, up to the end of the answer.
class AnswerText {
 public:
  AnswerText(const Tokenizer& tokenizer, const GenerateSettings& settings) : tokenizer_(tokenizer), settings_(settings) {}
  /// Returns clean() of the decoded ids.
  std::string of(std::span<const int32_t> ids) const;
  /// Returns `text` without an empty think block at its start (Qwen 3's chat template puts one before each answer), up
  /// to the first stop text after it, and without white space at both ends. References are cleaned the same way.
  std::string clean(std::string text) const;
  /// Returns the part of a cleaned text that is scored: what follows the last evaluate.ignore_before, else all of it.
  std::string scored(const std::string& text) const;
  /// Returns the number of new ids to keep, which is all of them, if their text contains a stop text; else nullopt.
  std::optional<size_t> stops(std::span<const int32_t> ids) const;

 private:
  size_t stop_at(const std::string& text) const;
  const Tokenizer& tokenizer_;
  const GenerateSettings& settings_;
};

/// Returns the sample that the metrics compare: the answer `text` and the references of the prompt with index `number`.
/// `answers` cleans the references, and reduces answer and references to their scored parts.
ScoredText scored_text(const PromptedSample& prompt, int64_t number, std::string prompt_text, const std::string& text,
                       const AnswerText& answers);

}  // namespace blipft
