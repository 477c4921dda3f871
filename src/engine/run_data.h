// RunData: the data of a run, and the facts about it that are known before memory is planned.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "blipft/engine_settings.h"

namespace blipft {

struct RunData {
  PixelStatistics pixel_statistics;          ///< normalization of the pictures, if the model reads any
  std::shared_ptr<const Tokenizer> tokenizer;
  TextSettings texts;                        ///< how records become text
  InstructionReader instructions;            ///< used if the model reads instructions
  SampleSet training, validation;            ///< validation.dataset is null if the run does not validate
  bool has_source = false;                   ///< as the model's inputs say
  std::vector<TextShape> text_shapes;        ///< of all possible steps, ascending
  /// True if all texts were tokenized in advance, because the model reads no pictures. Each of text_shapes then occurs.
  bool surveyed() const { return training.texts != nullptr; }
  bool validates() const { return validation.dataset != nullptr; }
};

/// Returns the digest of which samples are trained and of the sizes of their pictures; "" if they are not surveyed, or have
/// no pictures in texts.
std::string digest_of_pictures(const SampleSet& samples);

/// Returns true if records with pictures are refused: the family of the folder `model` can read pictures in texts, and this
/// model does not (model.pictures: false).
bool refuses_pictures(const std::string& model, const ModelInputs& inputs);

/// Returns the reader of pictures that stand anywhere in the texts of the model; null if it reads none. Throws UserError if
/// the processor's files or data.min_pixels and data.max_pixels do not suit the model.
std::shared_ptr<const PictureReader> open_picture_reader(const EngineSettings& config, const ModelInputs& inputs);

/// Opens the samples of `config` and checks that they suit the model; tokenizes nothing and chooses no text shapes.
/// Throws UserError as open_run_data() does.
RunData open_run_samples(const EngineSettings& config, const ModelInputs& inputs, int64_t threads);

/// Opens the data of `config` for a run on `world` ranks; this rank tokenizes with `threads` threads. Throws UserError
/// if files are missing or do not suit the model.
RunData open_run_data(const EngineSettings& config, const ModelInputs& inputs, int64_t world, int64_t threads);

/// Returns a warning if the samples are conversations whose answers end with no token, or with one at which generation
/// does not stop; else "".
std::string end_token_warning(const EngineSettings& config, const ModelInputs& inputs, const RunData& data);

/// Loads the tokenizer of a model folder, by the rules of the model's family. Throws UserError.
std::unique_ptr<Tokenizer> load_model_tokenizer(const std::string& model_directory);

/// Opens only the validation samples, with the text settings `texts`.
std::shared_ptr<const Dataset> open_validation(const EngineSettings& config, const TextSettings& texts);

/// Returns the text shapes of a run on `data` with the batch size of `config`.
std::vector<TextShape> text_shapes_of(const EngineSettings& config, int64_t world, const RunData& data);

/// Returns the average text shape of the steps of such a run, or the largest shape if texts were not surveyed.
TextShape mean_text_shape_of(const EngineSettings& config, int64_t world, const RunData& data);

/// "steps of 512 to 1536 packed text rows (16 shapes), texts of up to 512 tokens"
std::string text_shapes_text(const std::vector<TextShape>& shapes);

}  // namespace blipft
