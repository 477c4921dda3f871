// The texts of a plan; see planned_texts.h.
#include "run/planned_texts.h"

#include <algorithm>
#include <thread>

#include "blipft/error.h"
#include "data/text_survey.h"

namespace blipft {

PlannedTexts::PlannedTexts(const Config& config, const ModelInputs& inputs, int64_t world) {
  if (inputs.has_picture()) return;
  try {
    data_ = std::make_unique<RunData>(
        open_run_data(config, inputs, world, std::max<int64_t>(1, std::thread::hardware_concurrency())));
    text_ = concat(survey_text(config, *data_->training.texts), "\n", text_shapes_text(data_->text_shapes), "\n");
  } catch (const UserError& error) {
    text_ = concat("assumed: texts of up to ", config.data.max_text_tokens,
                   " tokens (data.max_text_tokens); the data's own were not seen: ", error.what(), "\n");
  }
}

std::vector<TextShape> PlannedTexts::shapes(const Config& config, int64_t world) const {
  if (!data_) return possible_text_shapes(config);
  try {
    return text_shapes_of(config, world, *data_);
  } catch (const UserError&) {
    return {possible_text_shapes(config).back()};
  }
}

TextShape PlannedTexts::mean(const Config& config, int64_t world) const {
  if (data_) {
    try {
      return mean_text_shape_of(config, world, *data_);
    } catch (const UserError&) {           // not one step of so many samples
    }
  }
  return possible_text_shapes(config).back();
}

}  // namespace blipft
