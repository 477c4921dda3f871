// Opens the data of a run; see run_data.h.
#include "engine/run_data.h"

#include <algorithm>
#include <limits>

#include "blipft/error.h"
#include "blipft/family.h"
#include "blipft/pictures.h"
#include "datasets/picture_table.h"
#include "engine/decode/generate_settings.h"
#include "engine/settings.h"
#include "io/digest.h"
#include "loading/picture_reader.h"
#include "loading/step_order.h"
#include "loading/text_survey.h"

namespace blipft {

namespace {

struct Datasets {
  std::shared_ptr<const Dataset> training, validation;
};

Datasets open_datasets(const EngineSettings& config, const TextSettings& texts, int64_t threads) {
  const DataSection& data = config.data;
  BLIPFT_USER_CHECK(dataset_exists(data.path), location_of(config, "data.path"), ": data.path: ", data.path,
                    " does not exist; expected a JSON, JSONL or CSV file or a folder of them, an ImageFolder, COCO's captions or "
                    "WebDataset tars");
  Datasets sets{open_dataset(data.path, data.format, texts), nullptr};
  if (!data.val_path.empty()) {
    BLIPFT_USER_CHECK(dataset_exists(data.val_path), location_of(config, "data.val_path"),
                      ": data.val_path: ", data.val_path,
                      " does not exist; expected samples in a format of data.path");
    sets.validation = open_dataset(data.val_path, data.format, texts);
  }
  if (data.val_split_fraction > 0) {
    Split split = split_samples(config, *sets.training, threads);
    sets.validation = std::make_shared<DatasetSubset>(sets.training, std::move(split.validation));
    sets.training = std::make_shared<DatasetSubset>(sets.training, std::move(split.training));
  }
  return sets;
}

}  // namespace

std::shared_ptr<const Dataset> open_validation(const EngineSettings& config, const TextSettings& texts) {
  return open_datasets(config, texts, std::max<int64_t>(1, config.data.num_workers)).validation;
}

std::string end_token_warning(const EngineSettings& config, const ModelInputs& inputs, const RunData& data) {
  const Tokenizer& tokenizer = *data.tokenizer;
  try {
    const Dataset& dataset = *data.training.dataset;
    if (!dataset.read_prompt(0).whole) return {};
    const std::string split = end_token_warning(data.texts, tokenizer, config.model.path);
    if (!split.empty()) return split;
    const TokenizedText text = tokenize(dataset.read(0), tokenizer, std::numeric_limits<int64_t>::max() / 2, inputs.text.vocabulary, {}, -1,
                                        data.training.pictures.get());
    const auto trained = std::find(text.is_label.rbegin(), text.is_label.rend(), 1);
    const std::vector<int32_t> ends = generate_settings(config, config.model.path, &tokenizer, inputs).ends;
    if (trained == text.is_label.rend()) return {};
    const int32_t end = text.ids[static_cast<size_t>(text.is_label.rend() - trained) - 1];
    if (ends.empty() || std::count(ends.begin(), ends.end(), end) > 0) return {};
    return concat("answers end with \"", brief(tokenizer.decode(std::vector{end}, {.skip_special_tokens = false})), "\" (id ", end,
                  "), and generation stops only at other tokens: ", config.model.path, "/generation_config.json, else config.json: "
                  "eos_token_id. Add the id there.");
  } catch (const UserError&) {             // the loader or the generation reports the error
    return {};
  }
}

std::unique_ptr<Tokenizer> load_model_tokenizer(const std::string& model_directory) {
  return load_tokenizer(model_directory, family_of(model_directory).tokenizer);
}

bool reads_pictures_in_texts(const EngineSettings& config) {
  try {
    return read_model(config.model.path)(model_settings(config))->inputs().text.pictures;
  } catch (const UserError&) {             // the code that makes the model reports the error
    return false;
  }
}

std::string digest_of_pictures(const SampleSet& samples) {
  if (!samples.pictures || !samples.texts) return "";
  io::Digest digest;
  for (const int64_t sample : samples.texts->samples()) digest.add(sample);
  for (const PictureShape& picture : samples.texts->pictures())
    for (const int64_t number : {picture.rows, picture.count, picture.largest, picture.windows}) digest.add(number);
  return concat(samples.texts->pictures().size(), " texts, digest ", digest.text());
}

bool refuses_pictures(const std::string& model, const ModelInputs& inputs) {
  return !inputs.text.pictures && !family_of(model).picture_tokens.placeholder.empty();
}

std::shared_ptr<const PictureReader> open_picture_reader(const EngineSettings& config, const ModelInputs& inputs) {
  if (!inputs.text.pictures) return nullptr;
  BLIPFT_USER_CHECK(config.data.text_padding != TextPadding::max, location_of(config, "data.text_padding"),
                    ": data.text_padding: found max, expected auto, packed or longest: the rows of pictures in a text have no ",
                    "maximum. Remove data.text_padding.");
  const std::string& folder = config.model.path;
  const FamilySpec& family = family_of(folder);
  const PatchInputs& patches = inputs.patches;
  PictureReader reader{family.picture_tokens, inputs.text.picture_id, inputs.text.max_tokens, patches,
                       ImageProcessor::from_directory(folder, family.pixels), picture_decoding(config), config.data.max_pictures};
  ImageProcessor& processor = reader.processor;
  if (config.data.pixel_library != PixelLibraryChoice::automatic)
    processor.resize.library = config.data.pixel_library == PixelLibraryChoice::pillow ? PixelLibrary::pillow : PixelLibrary::torchvision;
  const auto check = [&](const char* key, int64_t found, int64_t expected) {
    BLIPFT_USER_CHECK(found == expected, folder, "/preprocessor_config.json: ", key, ": found ", found, ", expected ", expected,
                      ", as vision_config in config.json says. Use the processor's file that the model was published with.");
  };
  if (patches.picture_side > 0) {
    check("size", processor.image_size, patches.picture_side * patches.merge * patches.side);
    for (const char* key : {"data.min_pixels", "data.max_pixels"})
      BLIPFT_USER_CHECK(!config.given(key), location_of(config, key), ": ", key, ": found a limit, expected none: the model in ",
                        folder, " resizes all pictures to ", processor.image_size, " x ", processor.image_size,
                        " pixels. Remove ", key, ".");
    return std::make_shared<const PictureReader>(std::move(reader));
  }
  check("patch_size", processor.patches.patch, patches.side);
  check("merge_size", processor.patches.merge, patches.merge);
  reader.set_limits(config);
  return std::make_shared<const PictureReader>(std::move(reader));
}

RunData open_run_samples(const EngineSettings& config, const ModelInputs& inputs, int64_t threads) {
  RunData data;
  if (inputs.has_picture()) {
    const ImageProcessor processor = ImageProcessor::from_directory(config.model.path);
    BLIPFT_USER_CHECK(processor.image_size == inputs.picture_size, config.model.path,
                      "/preprocessor_config.json: size: found ", processor.image_size, ", expected ",
                      inputs.picture_size, ", the image_size in config.json");
    data.pixel_statistics = processor.statistics;
  }
  const auto pictures = open_picture_reader(config, inputs);
  if (pictures) data.pixel_statistics = pictures->statistics();
  data.tokenizer = load_model_tokenizer(config.model.path);
  data.texts = text_settings(config.data, config, config.model.path, *data.tokenizer);
  data.texts.pictures_in_texts = pictures != nullptr;
  data.texts.refuses_pictures = refuses_pictures(config.model.path, inputs);
  check_text_inputs(config, config.model.path, inputs, *data.tokenizer);
  data.instructions = open_instruction_reader(config.model.path, inputs.instruction, config.data.max_text_tokens);
  const Datasets datasets = open_datasets(config, data.texts, threads);
  BLIPFT_USER_CHECK(!inputs.has_picture() || datasets.training->has_pictures(), location_of(config, "data.path"),
                    ": data.path: ", config.data.path, " has texts alone, and the model in ", config.model.path,
                    " reads a picture with each; choose an ImageFolder or a WebDataset, or a model of text",
                    picture_table_advice(config.data.path, data.texts));
  if ((inputs.has_picture() || pictures) && config.data.on_bad_sample != FaultAction::skip) {
    datasets.training->check_picture_formats();
    if (!config.data.val_path.empty()) datasets.validation->check_picture_formats();
  }
  data.training = {datasets.training, config.data.num_train_samples, nullptr, pictures};
  data.validation = {datasets.validation, 0, nullptr, pictures};
  data.has_source = inputs.has_source();
  return data;
}

RunData open_run_data(const EngineSettings& config, const ModelInputs& inputs, int64_t world, int64_t threads) {
  RunData data = open_run_samples(config, inputs, threads);
  const LoadingSettings loading = config;
  const auto survey = [&](SampleSet& samples, const char* key) {
    if (samples.dataset && !inputs.has_picture())
      samples = survey_samples(loading, samples, *data.tokenizer, inputs, threads, key);
  };
  survey(data.training, "data.path");
  (void)make_training_order(loading, 0, world, data.training.dataset->size(), data.training.epoch_samples);  // or throws
  survey(data.validation, config.data.val_path.empty() ? "data.path" : "data.val_path");
  if (data.validates()) (void)validation_steps(loading, world, data.validation.dataset->size());  // checks; throws
  data.text_shapes = text_shapes_of(config, world, data);
  return data;
}

std::vector<TextShape> text_shapes_of(const EngineSettings& config, int64_t world, const RunData& data) {
  return data.surveyed() ? surveyed_text_shapes(config, world, data.training, data.validation)
                         : possible_text_shapes(config, data.has_source);
}

TextShape mean_text_shape_of(const EngineSettings& config, int64_t world, const RunData& data) {
  const std::vector<TextShape> shapes = text_shapes_of(config, world, data);
  return data.surveyed() && config.data.text_padding != TextPadding::max
             ? mean_text_shape(config, world, data.training, shapes)
             : shapes.back();
}

std::string text_shapes_text(const std::vector<TextShape>& shapes) {
  const bool packed = shapes.back().packed();
  const auto size = [&](const TextShape& shape) { return packed ? shape.packed_rows : shape.tokens; };
  std::string text = concat("steps of ", size(shapes.front()));
  if (shapes.size() > 1) text += concat(" to ", size(shapes.back()));
  text += packed ? " packed text rows" : " text tokens";
  const auto source = [&](const TextShape& shape) { return packed ? shape.packed_source_rows : shape.source_tokens; };
  if (shapes.back().source_tokens > 0) text += concat(" and up to ", source(shapes.back()), " of their sources");
  if (shapes.size() > 1) text += concat(" (", shapes.size(), " shapes)");
  if (packed) text += concat(", texts of up to ", shapes.back().tokens, " tokens");
  const PictureShape& pictures = shapes.back().pictures;
  return pictures.rows > 0 ? concat(text, ", ", shapes.front().pictures.rows, " to ", pictures.rows, " of their rows from pictures") : text;
}

}  // namespace blipft
