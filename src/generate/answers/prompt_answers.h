// PromptAnswers: the texts that ranks generate for the prompts of a data set, for --generate, --evaluate and
// validations.
#pragma once

#include <functional>
#include <vector>

#include "generate/answers/answer_set.h"
#include "generate/answers/answer_text.h"

namespace blipft {

class PromptAnswers {
 public:
  /// Keeps references to all arguments. `threads`: number of threads of this rank that read pictures.
  PromptAnswers(PromptSet& prompts, const Tokenizer& tokenizer, const GenerateSettings& settings, const World& world, int64_t threads);
  /// Returns the callbacks with which a generator answers this rank's prompts. `see` is called with the pictures, from
  /// several threads, and `done` with each result. Both may be empty.
  GeneratorCalls calls(const SeePicture& see = {}, const std::function<void(const TextResult&)>& done = {});
  /// Returns the results of all ranks on rank 0, in the order of the samples, and none on the others. Called by all
  /// ranks.
  std::vector<TextResult> gather() const;

  const PromptedSample& prompt_of(const TextResult& result) const;
  const AnswerText& texts() const { return texts_; }
  /// Returns the first text of a result as metrics and pages read it.
  ScoredText scored(const TextResult& result) const;

 private:
  PromptSet& prompts_;
  const Tokenizer& tokenizer_;
  const GenerateSettings& settings_;
  const World& world_;
  int64_t threads_;
  AnswerText texts_;
  std::vector<TextResult> results_;        // results of this rank
};

}  // namespace blipft
