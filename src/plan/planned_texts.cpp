// The texts of a plan; see planned_texts.h.
#include "plan/planned_texts.h"

#include <algorithm>
#include <thread>

#include "blipft/error.h"
#include "data/step_order.h"
#include "data/text_survey.h"

namespace blipft {

PlannedTexts::PlannedTexts(const Config& config, const ModelInputs& inputs, int64_t world)
    : has_source_(inputs.has_source()) {
  check_text_length(config, inputs);
  std::string missing;
  if (!dataset_exists(config.data.path)) missing = concat("data.path ", config.data.path, " is not there");
  else if (!has_tokenizer(config.model.path)) missing = concat("model.path ", config.model.path, " has no tokenizer");
  if (inputs.has_picture() || !missing.empty()) {  // not looked at, but for what the run file says of them
    const int64_t samples = config.data.num_train_samples;
    if (samples > 0) (void)make_training_order(config, 0, world, samples, samples);
    if (!inputs.has_picture())
      text_ = concat("assumed: texts of up to ", config.data.max_text_tokens, " tokens (data.max_text_tokens), since ",
                     brief(missing, 300), "; a run needs it\n");
    return;
  }
  opened_ = std::make_unique<RunData>(
      open_run_data(config, inputs, world, std::max<int64_t>(1, std::thread::hardware_concurrency())));
  data_ = opened_.get();
  text_ = concat(survey_text(config, *data_->training.texts), "\n", text_shapes_text(data_->text_shapes), "\n");
}

int64_t PlannedTexts::samples_of_epoch() const {
  if (!data_) return 0;
  return data_->training.epoch_samples > 0 ? data_->training.epoch_samples : data_->training.dataset->size();
}

std::vector<TextShape> PlannedTexts::shapes(const Config& config, int64_t world) const {
  if (!data_) return possible_text_shapes(config, has_source_);
  try {
    return text_shapes_of(config, world, *data_);
  } catch (const UserError&) {
    return {possible_text_shapes(config, has_source_).back()};
  }
}

TextShape PlannedTexts::mean(const Config& config, int64_t world) const {
  if (data_) {
    try {
      return mean_text_shape_of(config, world, *data_);
    } catch (const UserError&) {           // not one step of so many samples
    }
  }
  return possible_text_shapes(config, has_source_).back();
}

}  // namespace blipft
