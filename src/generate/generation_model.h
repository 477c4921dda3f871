// GenerationModel: the model that generates, as the run file and the model's own files describe it; no device and no weights.
#pragma once

#include <memory>

#include "blipft/model.h"
#include "blipft/text.h"
#include "engine/decode/generate_settings.h"
#include "generate/weight_source.h"

namespace blipft {

struct GenerationModel {
  /// Throws UserError where the model generates no text, or a file of it is missing or wrong. `planned`: nothing will be
  /// generated, and the tokenizer may be missing.
  explicit GenerationModel(const GenerationSource& asked, bool planned = false);

  WeightSource source;
  const Config& config() const { return source.config; }  ///< of the weights that generate
  std::unique_ptr<Model> model;
  ModelInputs inputs;
  std::unique_ptr<Tokenizer> tokenizer;    ///< null: there is none
  InstructionReader instructions;
  GenerateSettings settings;
  /// Most ids that a text may have, prompt and answer together.
  int64_t max_ids() const { return inputs.max_text_tokens; }
};

/// Settings of a model that only generates.
ModelSettings untrained(const Config& config);

}  // namespace blipft
