// AnswerSet: this rank's prompts of a data set, as requests for the generator.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "blipft/comm.h"
#include "engine/decode/prompt_set.h"
#include "generate/generation_model.h"
#include "generate/generator.h"
#include "loading/text_shapes.h"

namespace blipft {

/// Returns a function that returns this rank's requests one by one: rank r of n has the prompts r, r + n, ...; a rank
/// without prompts gets nullopt at once. `threads` threads read pictures in advance, so that generation does not wait
/// for them. An unreadable picture throws UserError, or its prompt is left out (data.on_bad_sample=skip). `see` is
/// called with each prompt's number and picture, from several threads. `set` must outlive the returned function.
using SeePicture = std::function<void(int64_t prompt, const Image& picture)>;
std::function<std::optional<TextRequest>()> prompt_requests(PromptSet& set, const GenerateSettings& settings, int64_t rank,
                                                            int64_t ranks, int64_t threads,
                                                            const SeePicture& see = {});

class AnswerSet {
 public:
  /// Tokenizes all prompts, and if `scored` also the whole texts, for their loss; see open_prompts(). `model` must
  /// outlive this object.
  AnswerSet(const Config& config, const GenerationModel& model, bool scored);

  PromptSet& prompt_set() { return prompts_; }
  const PromptSet& prompt_set() const { return prompts_; }
  /// Returns an upper bound of the work of each of `ranks` ranks.
  TextsToGenerate work(int64_t ranks) const;
  /// Throws UserError if no sample has a reference text and no text has a training target: nothing could be scored.
  void check_references(const Config& config) const;
  /// Returns the whole texts, indexed by sample of the data set, with their training targets marked.
  const std::vector<TokenizedText>& texts() const { return texts_; }

 private:
  void read_texts();
  const GenerationModel& model_;
  int64_t samples_ = 0;                    // generate.samples
  PromptSet prompts_;
  std::vector<TokenizedText> texts_;
  int64_t longest_text_ = 0, longest_source_ = 0, longest_instruction_ = 0;
  TextNeed most_;                          // of the pictures in a text
};

}  // namespace blipft
