// PlannedTexts: the text lengths that a plan is made for. If the model reads no pictures, they are those of the data,
// if it exists. For captions, memory is planned for the longest possible text; a sample of them serves to estimate the
// step time.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "blipft/config.h"
#include "engine/decode/prompt_set.h"
#include "engine/run_data.h"

namespace blipft {

class PlannedTexts {
 public:
  /// If the data or the tokenizer does not exist yet, assumes texts of the maximum length. If they exist and are
  /// invalid, throws UserError as a run of `config` would.
  PlannedTexts(const Config& config, const ModelInputs& inputs, int64_t world);
  /// Uses open data, which must outlive this object. `captions`: samples the lengths of captions to estimate the step
  /// time.
  PlannedTexts(const Config& config, const ModelInputs& inputs, const RunData& data, const ValidationPrompts* prompts,
               bool captions);
  /// Returns the text shapes of steps of `config` on `world` ranks, ascending. If the data has fewer samples than one
  /// step, returns the largest possible shape alone.
  std::vector<TextShape> shapes(const Config& config, int64_t world) const;
  /// Returns the average text shape of such a step, or the largest possible one if the average is unknown.
  TextShape mean(const Config& config, int64_t world) const;
  /// The texts that validations generate; null: none.
  const EvaluationWork* evaluation() const { return evaluation_ ? &*evaluation_ : nullptr; }
  /// Returns the number of training samples in an epoch; 0 if the data was not surveyed.
  int64_t samples_of_epoch() const;
  /// Lines for the printed plan; may be empty.
  const std::string& text() const { return text_; }

 private:
  void look_at_captions(const Config& config, const ModelInputs& inputs, const Dataset& dataset,
                        const Tokenizer& tokenizer);
  std::vector<TextShape> possible_shapes(const Config& config) const;
  /// The shape of steps whose pictures are not known; null: the model reads none in texts.
  std::function<TextShape(const LoadingSettings&)> assumed_;
  std::unique_ptr<RunData> opened_;
  std::vector<int64_t> captions_;          // token counts of a sample of the captions
  const RunData* data_ = nullptr;          // null: not surveyed
  bool has_source_ = false;
  std::string text_;
  std::optional<EvaluationWork> evaluation_;
};

}  // namespace blipft
