// RunData: what a run reads, and what is known of it before memory is planned.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "blipft/loading.h"

namespace blipft {

struct RunData {
  PixelStatistics pixel_statistics;          ///< of the pictures, if the model reads any
  std::shared_ptr<const Tokenizer> tokenizer;
  InstructionReader instructions;            ///< where the model reads any
  SampleSet training, validation;            ///< the latter without a dataset: nothing to validate with
  bool has_source = false;                   ///< as the model's inputs say
  std::vector<TextShape> text_shapes;        ///< those that steps may have, ascending
  /// Whether all texts were tokenized before: where the model reads no pictures. Then each of the shapes comes.
  bool surveyed() const { return training.texts != nullptr; }
  bool validates() const { return validation.dataset != nullptr; }
};

/// Opens what `config` names for a run on `world` ranks; `threads` of this rank tokenize. Throws UserError when files
/// are missing or do not fit the model.
RunData open_run_data(const Config& config, const ModelInputs& inputs, int64_t world, int64_t threads);

/// The tokenizer in a model's folder, read by the rules of the model's family. Throws UserError.
std::unique_ptr<Tokenizer> load_model_tokenizer(const std::string& model_directory);

/// The validation samples alone, opened anew with other `texts`.
std::shared_ptr<const Dataset> open_validation(const Config& config, const TextSettings& texts);

/// The text shapes of a run of `data` with another batch size.
std::vector<TextShape> text_shapes_of(const Config& config, int64_t world, const RunData& data);

/// What a step of such a run has on the average; where texts are not known before, the largest.
TextShape mean_text_shape_of(const Config& config, int64_t world, const RunData& data);

/// "steps of 512 to 1536 packed text rows (16 shapes), texts of up to 512 tokens"
std::string text_shapes_text(const std::vector<TextShape>& shapes);

}  // namespace blipft
