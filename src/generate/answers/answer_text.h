// The text of generated ids, and its sample as metrics and pages take it.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "blipft/text.h"
#include "blipft/evaluate.h"
#include "blipft/prompts.h"
#include "engine/decode/generate_settings.h"

namespace blipft {

/// Text of new ids, up to the end.
class AnswerText {
 public:
  AnswerText(const Tokenizer& tokenizer, const GenerateSettings& settings) : tokenizer_(tokenizer), settings_(settings) {}
  /// Without the first stop text and what is behind it, and without white space around.
  std::string of(std::span<const int32_t> ids) const;
  /// Whether new ids hold a stop text: then all of them stay.
  std::optional<size_t> stops(std::span<const int32_t> ids) const;

 private:
  size_t stop_at(const std::string& text) const;
  const Tokenizer& tokenizer_;
  const GenerateSettings& settings_;
};

/// The sample of a prompt, `number` in its set, with `prompt_text` and the answer `text`.
ScoredText scored_text(const PromptedSample& prompt, int64_t number, std::string prompt_text, std::string text);

}  // namespace blipft
