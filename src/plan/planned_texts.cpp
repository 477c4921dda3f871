// The texts of a plan; see planned_texts.h.
#include "plan/planned_texts.h"

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "base/process_info.h"
#include "blipft/error.h"
#include "loading/picture_reader.h"
#include "loading/step_order.h"
#include "loading/text_sample.h"
#include "loading/text_shapes.h"
#include "loading/text_survey.h"

namespace blipft {

namespace {

// Returns the generation for prompts that were not read: each has the maximum length of a text.
EvaluationWork assumed_work(const Config& config, const ModelInputs& inputs) {
  std::unique_ptr<Tokenizer> tokenizer;
  if (has_tokenizer(config.model.path)) tokenizer = load_model_tokenizer(config.model.path);
  EvaluationWork work{generate_settings(config, config.model.path, tokenizer.get(), inputs), inputs};
  work.longest_prompt = config.data.max_text_tokens;
  if (const auto reader = open_picture_reader(config, inputs)) {
    work.pictures = largest_picture(inputs.patches, reader->max_cells());
    work.longest_prompt += work.pictures.rows;
  }
  work.longest_prompt = std::clamp<int64_t>(work.longest_prompt, 1, inputs.text.max_tokens);
  work.prompts = config.evaluate.samples;
  work.batch_size = config.generate.batch_size;
  return work;
}

}  // namespace

void PlannedTexts::look_at_captions(const Config& config, const ModelInputs& inputs, const Dataset& dataset,
                                    const Tokenizer& tokenizer) {
  if (possible_text_shapes(config, has_source_).size() == 1) return;  // every step has the same shape
  captions_ = sampled_text_lengths(config, dataset, tokenizer, inputs.text.vocabulary);
  if (captions_.empty()) return;
  const auto sum = static_cast<double>(std::accumulate(captions_.begin(), captions_.end(), int64_t{0}));
  char mean[32];
  std::snprintf(mean, sizeof mean, "%.1f", sum / static_cast<double>(captions_.size()));
  text_ = concat("captions of ", mean, " tokens, the mean of ", captions_.size(), ", for the time; of up to ",
                 config.data.max_text_tokens, " for the memory\n");
}

PlannedTexts::PlannedTexts(const Config& config, const ModelInputs& inputs, const RunData& data,
                           const ValidationPrompts* prompts, bool captions)
    : data_(data.surveyed() ? &data : nullptr), has_source_(inputs.has_source()) {
  if (!data_ && captions) look_at_captions(config, inputs, *data.training.dataset, *data.tokenizer);
  if (prompts) evaluation_ = prompts->work(config);
}

PlannedTexts::PlannedTexts(const Config& config, const ModelInputs& inputs, int64_t world)
    : has_source_(inputs.has_source()) {
  check_text_length(config, inputs);
  std::string pictures;
  if (const auto reader = open_picture_reader(config, inputs)) {
    assumed_ = [reader](const LoadingSettings& loading) { return largest_shape(loading, reader->patches, reader->max_cells()); };
    pictures = concat(" with ", counted(std::max<int64_t>(config.data.max_pictures, 1), "picture"), " of ", reader->max_cells(), " rows");
  }
  std::string missing;
  if (!dataset_exists(config.data.path)) missing = concat("data.path ", config.data.path, " is not there");
  else if (!has_tokenizer(config.model.path)) missing = concat("model.path ", config.model.path, " has no tokenizer");
  if (inputs.has_picture() || !missing.empty()) {  // the data is not read, only the run file's keys are checked
    const int64_t samples = config.data.num_train_samples;
    if (samples > 0) (void)make_training_order(config, 0, world, samples, samples);
    if (!inputs.has_picture())
      text_ = concat("assumed: texts of up to ", config.data.max_text_tokens, " tokens (data.max_text_tokens)", pictures, ", since ",
                     brief(missing, 300), "; a run needs it\n");
    else if (missing.empty()) {
      const std::shared_ptr<Tokenizer> tokenizer = load_model_tokenizer(config.model.path);
      const TextSettings texts = text_settings(config.data, config, config.model.path, *tokenizer);
      look_at_captions(config, inputs, *open_dataset(config.data.path, config.data.format, texts), *tokenizer);
    }
    if (!generates(config)) return;
    evaluation_ = assumed_work(config, inputs);
    text_ += concat("assumed: validation prompts of up to ", evaluation_->longest_prompt, " tokens\n");
    return;
  }
  opened_ = std::make_unique<RunData>(open_run_data(config, inputs, world, machine_cores()));
  data_ = opened_.get();
  if (const auto prompts = open_validation_prompts(config, config.evaluate.samples, inputs, *data_)) evaluation_ = prompts->work(config);
  text_ = concat(survey_text(config, *data_->training.texts), "\n", text_shapes_text(data_->text_shapes), "\n");
}

int64_t PlannedTexts::samples_of_epoch() const {
  if (!data_) return 0;
  return data_->training.epoch_samples > 0 ? data_->training.epoch_samples : data_->training.dataset->size();
}

std::vector<TextShape> PlannedTexts::possible_shapes(const Config& config) const {
  return assumed_ ? std::vector{assumed_(config)} : possible_text_shapes(config, has_source_);
}

std::vector<TextShape> PlannedTexts::shapes(const Config& config, int64_t world) const {
  if (!data_) return possible_shapes(config);
  try {
    return text_shapes_of(config, world, *data_);
  } catch (const UserError&) {
    return {possible_shapes(config).back()};
  }
}

TextShape PlannedTexts::mean(const Config& config, int64_t world) const {
  if (data_) {
    try {
      return mean_text_shape_of(config, world, *data_);
    } catch (const UserError&) {           // the data has fewer samples than one step
    }
  }
  const LoadingSettings loading = config;
  return mean_text_shape(loading, captions_, possible_shapes(config));
}

}  // namespace blipft
