// Opening what a run reads; see run_data.h.
#include "run/run_data.h"

#include "blipft/error.h"
#include "data/text_survey.h"

namespace blipft {

RunData open_run_data(const Config& config, const ModelInputs& inputs, int64_t world, int64_t threads) {
  RunData data;
  if (inputs.has_picture()) {
    const ImageProcessor processor = ImageProcessor::from_directory(config.model.path);
    BLIPFT_USER_CHECK(processor.image_size == inputs.picture_size, config.model.path,
                      "/preprocessor_config.json: size: found ", processor.image_size, ", expected ",
                      inputs.picture_size, ", the image_size in config.json");
    data.pixel_statistics = processor.statistics;
  }
  data.tokenizer = load_tokenizer(config.model.path);
  check_text_inputs(config, inputs, *data.tokenizer);
  std::shared_ptr<const Dataset> dataset = open_dataset(config.data.path, config.data.format,
                                                        text_settings(config, *data.tokenizer));
  if (inputs.has_picture()) data.training = {std::move(dataset), config.data.num_train_samples, nullptr};
  else data.training = survey_training(config, std::move(dataset), *data.tokenizer, inputs.vocabulary, threads);
  data.text_shapes = text_shapes_of(config, world, data);
  return data;
}

std::vector<TextShape> text_shapes_of(const Config& config, int64_t world, const RunData& data) {
  return data.surveyed() ? surveyed_text_shapes(config, world, data.training) : possible_text_shapes(config);
}

std::string text_shapes_text(const std::vector<TextShape>& shapes) {
  const bool packed = shapes.back().packed();
  const auto size = [&](const TextShape& shape) { return packed ? shape.packed_rows : shape.tokens; };
  std::string text = concat("steps of ", size(shapes.front()));
  if (shapes.size() > 1) text += concat(" to ", size(shapes.back()));
  text += packed ? " packed text rows" : " text tokens";
  if (shapes.size() > 1) text += concat(" (", shapes.size(), " shapes)");
  return packed ? concat(text, ", texts of up to ", shapes.back().tokens, " tokens") : text;
}

}  // namespace blipft
