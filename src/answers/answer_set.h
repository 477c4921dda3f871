// The prompts of a data set, as this rank's texts to generate.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "blipft/comm.h"
#include "prompts/prompt_set.h"
#include "generate/generation.h"

namespace blipft {

/// This rank's requests, one after the other; ranks take prompts in turn. Pictures are read ahead, `threads` at a time, as many
/// as a reading takes at most, so that it waits for none while texts grow. A
/// picture that cannot be read is a UserError, or left out. `set` outlives it.
std::function<std::optional<TextRequest>()> prompt_requests(PromptSet& set, const GenerateSettings& settings, int64_t rank,
                                                            int64_t ranks, int64_t threads);

class AnswerSet {
 public:
  /// Tokenizes all prompts; see open_prompts(), and open_scored_prompts() for texts that are `scored`.
  AnswerSet(const Config& config, const Generation& generation, bool scored);

  PromptSet& prompt_set() { return prompts_; }
  const PromptSet& prompt_set() const { return prompts_; }
  /// What this rank of so many has to do at most.
  TextsToGenerate work(int64_t ranks) const;
  /// Tokenizes the whole texts, too, for their loss; then this is the number of samples that have any.
  int64_t read_texts();
  /// After read_texts(): the whole text of sample `index` of the data set, what is learnt of it marked.
  const TokenizedText& text(int64_t index) const { return texts_[static_cast<size_t>(index)]; }

 private:
  const Generation& generation_;
  int64_t samples_ = 0;                    // generate.samples
  PromptSet prompts_;
  std::vector<TokenizedText> texts_;
  int64_t longest_text_ = 0, longest_source_ = 0, longest_instruction_ = 0;
};

}  // namespace blipft
