// PlannedTexts: the texts that a plan is for. Where the model reads no pictures they are the data's own, if it is here; of
// captions some are looked at, for the time of a step: its memory is for the longest that may come.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/decode/prompt_set.h"
#include "engine/run_data.h"

namespace blipft {

class PlannedTexts {
 public:
  /// Where the data or the tokenizer is not there yet, texts are assumed. Throws UserError as a run of `config` would where
  /// they are there and something is wrong with them.
  PlannedTexts(const Config& config, const ModelInputs& inputs, int64_t world);
  /// Of data that is open, and outlives this. `captions`: some of the texts of pictures are looked at, for the time of a step.
  PlannedTexts(const Config& config, const ModelInputs& inputs, const RunData& data, const ValidationPrompts* prompts,
               bool captions);
  /// The text shapes of steps of `config` on `world` ranks, ascending; what texts may take at most where the data has
  /// not one step of so many samples.
  std::vector<TextShape> shapes(const Config& config, int64_t world) const;
  /// What such a step has on the average; the largest where that is not known.
  TextShape mean(const Config& config, int64_t world) const;
  /// What is generated at validations, null: nothing.
  const EvaluationWork* evaluation() const { return evaluation_ ? &*evaluation_ : nullptr; }
  /// Of the training data; 0 where it was not seen.
  int64_t samples_of_epoch() const;
  /// Lines of the plan, or nothing.
  const std::string& text() const { return text_; }

 private:
  void look_at_captions(const Config& config, const ModelInputs& inputs, const Dataset& dataset,
                        const Tokenizer& tokenizer);
  std::unique_ptr<RunData> opened_;
  std::vector<int64_t> captions_;          // tokens of some of them
  const RunData* data_ = nullptr;          // null: not seen
  bool has_source_ = false;
  std::string text_;
  std::optional<EvaluationWork> evaluation_;
};

}  // namespace blipft
