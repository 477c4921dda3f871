// GenerationModel: the model that generates, as described by the run file and the model's files; without device and
// weights.
#pragma once

#include <memory>

#include "blipft/model.h"
#include "blipft/text.h"
#include "engine/decode/generate_settings.h"
#include "generate/weight_source.h"

namespace blipft {

struct GenerationModel {
  /// Throws UserError if the model does not generate text, or if one of its files is missing or wrong. `planned`: only
  /// a plan is made, and the tokenizer may be missing.
  explicit GenerationModel(const GenerationSource& requested, bool planned = false);

  WeightSource source;
  const Config& config() const { return source.config; }  ///< of the weights that generate
  std::unique_ptr<Model> model;
  ModelInputs inputs;
  std::unique_ptr<Tokenizer> tokenizer;    ///< null if there is none
  InstructionReader instructions;
  GenerateSettings settings;
  /// Returns the largest number of ids of a text, prompt and answer together.
  int64_t max_ids() const { return inputs.text.max_tokens; }
};

/// Returns the settings of a model that only generates.
ModelSettings untrained(const Config& config);

}  // namespace blipft
