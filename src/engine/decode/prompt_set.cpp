// Reads and checks prompts; see prompt_set.h.
#include "engine/decode/prompt_set.h"

#include <algorithm>

#include "blipft/error.h"
#include "loading/picture_reader.h"
#include "loading/text_shapes.h"

namespace blipft {

std::vector<uint8_t> pixels_of(const std::vector<uint8_t>& encoded, const std::string& name, int64_t size,
                               const DecodeSettings& settings) {
  return resize_picture(decode_image(encoded.data(), encoded.size(), name, settings), size, size).rgb;
}

PromptSet::PromptSet(const EngineSettings& config, Source source, const Tokenizer& tokenizer, const ModelInputs& inputs,
                     int64_t samples, const InstructionReader& instructions)
    : source_(std::move(source)), inputs_(inputs), skips_(config.data.on_bad_sample == FaultAction::skip),
      pictures_(picture_decoding(config)), reader_(open_picture_reader(config, inputs)) {
  BLIPFT_USER_CHECK(!inputs.has_picture() || source_.dataset->has_pictures(), location_of(config, source_.key), ": ", source_.key,
                    ": ", source_.path, " has texts alone, and the model reads a picture with each; choose pictures, or a "
                    "model of text");
  const PromptSettings settings{
      .vocabulary = inputs.text.vocabulary, .ends = inputs.has_source(), .instructions = instructions, .pictures = reader_.get()};
  prompts_ = prompts_of_dataset(*source_.dataset, tokenizer, settings, samples,
                                [this](const UserError& error) { leave_out_everywhere(error.what()); });
  check_prompts();
}

void PromptSet::leave_out(const std::string& why) {
  BLIPFT_USER_CHECK(skips_, why, "; data.on_bad_sample=skip leaves such samples out");
  left_out_.push_back(why);
}

void PromptSet::leave_out_everywhere(const std::string& why) {
  if (left_out_everywhere_.contains(why)) return;
  leave_out(why);
  left_out_everywhere_.insert(why);
}

int64_t PromptSet::left_out_of_all(const World& world) const {
  const size_t everywhere = left_out_everywhere_.size();
  return static_cast<int64_t>(everywhere) + static_cast<int64_t>(world.sum(static_cast<double>(left_out_.size() - everywhere)));
}

void PromptSet::check_prompts() {
  const int64_t maximum = inputs_.text.max_tokens;
  std::erase_if(prompts_, [&](const PromptedSample& prompt) {
    const auto ids = static_cast<int64_t>(prompt.ids.size());
    if (ids == 0)
      leave_out_everywhere(concat(prompt.name, ": the prompt is empty, and the tokenizer puts nothing before a text; ",
                                  "expected some text"));
    else if (ids > maximum)
      leave_out_everywhere(concat(prompt.name, ": the prompt has ", ids, " tokens, and the model has positions for ",
                                  maximum, "; shorten it"));
    else if (inputs_.has_picture() && prompt.picture < 0)
      leave_out_everywhere(concat(prompt.name, ": there is no picture, and the model reads one"));
    else return false;
    return true;
  });
  BLIPFT_USER_CHECK(!prompts_.empty(), source_.path, ": there is no prompt to answer",
                    left_out_.empty() ? "" : "; the first that was left out: ", left_out_.empty() ? "" : left_out_.front());
  for (const PromptedSample& prompt : prompts_) {
    longest_ = std::max(longest_, static_cast<int64_t>(prompt.ids.size()));
    longest_instruction_ = std::max(longest_instruction_, static_cast<int64_t>(prompt.instruction.size()));
    TextNeed need{0, 0, max_pictures_};
    need.include({0, 0, pictures_of(prompt.pictures, inputs_.patches)});
    max_pictures_ = need.pictures;
  }
}

std::vector<uint8_t> PromptSet::patches(const PromptedSample& prompt) const { return reader_->read(prompt.picture_files, prompt.pictures); }

bool PromptSet::about_pictures() const {
  const auto about_picture = [](const PromptedSample& prompt) { return prompt.picture >= 0; };
  return inputs_.has_picture() || (inputs_.text.pictures && std::all_of(prompts_.begin(), prompts_.end(), about_picture));
}

Image PromptSet::picture(int64_t index) const {
  const Dataset::Sample sample = source_.dataset->read(index);
  BLIPFT_USER_CHECK(sample.picture, sample.name, ": there is no picture, and the model reads one");
  return decode_image(sample.picture->data(), sample.picture->size(), sample.name, pictures_);
}

std::vector<uint8_t> PromptSet::pixels(const Image& picture) const {
  return resize_picture(picture, inputs_.picture_size, inputs_.picture_size).rgb;
}

std::optional<std::vector<uint8_t>> PromptSet::pixels_of_sample(int64_t index, TokenizedText& text) const {
  if (!inputs_.has_picture() && !reader_) return std::vector<uint8_t>();
  try {
    if (reader_) {
      std::vector<uint8_t> all = reader_->read(source_.dataset->read(index).pictures, text.pictures);
      reader_->set_patches(text.pictures, all.data());
      return all;
    }
    return pixels(picture(index));
  } catch (const UserError&) {
    if (!skips_) throw;
    return std::nullopt;
  }
}

PromptSource prompt_source(const EngineSettings& config, bool scored) {
  if (!config.generate.path.empty()) return {config.generate.path, "generate.path", false};
  if (!config.data.val_path.empty()) return {config.data.val_path, "data.val_path", false};
  return {config.data.path, "data.path", scored && config.data.val_split_fraction > 0};
}

std::string PromptSource::text(int64_t samples) const {
  return held_out ? concat(path, " (the ", counted(samples, "sample"), " held out by data.val_split_fraction)") : path;
}

void PromptSource::check(const EngineSettings& config) const {
  BLIPFT_USER_CHECK(dataset_exists(path), location_of(config, key), ": ", key, ": ", path,
                    " does not exist; expected samples in a format of data.path",
                    key == "generate.path" ? "" : ", whose prompts are answered where no generate.path is given");
}

PromptSet open_prompts(const EngineSettings& config, const Tokenizer& tokenizer, const ModelInputs& inputs,
                       const InstructionReader& instructions, bool scored) {
  const PromptSource source = prompt_source(config, scored);
  source.check(config);
  TextSettings texts = text_settings(config.data, config, config.model.path, tokenizer);
  texts.pictures_in_texts = inputs.text.pictures;
  texts.refuses_pictures = refuses_pictures(config.model.path, inputs);
  texts.for_prompts = !source.held_out;    // held-out samples of the training data have texts
  if (!config.generate.prompt.empty()) texts.prompt_template = config.generate.prompt;
  std::shared_ptr<const Dataset> dataset =
      source.held_out ? open_validation(config, texts) : open_dataset(source.path, config.data.format, texts);
  BLIPFT_USER_CHECK(inputs.has_picture() || !dataset->other_files(),
                    location_of(config, source.key), ": ", source.key, ": ", source.path,
                    " has pictures alone, and the model reads texts; choose texts, or a model of pictures");
  if (inputs.has_picture() && config.data.on_bad_sample != FaultAction::skip) dataset->check_picture_formats();
  const std::string text = source.text(dataset->size());
  return {config, {std::move(dataset), source.path, source.key, text}, tokenizer, inputs, config.generate.samples, instructions};
}

std::unique_ptr<ValidationPrompts> open_validation_prompts(const EngineSettings& config, int64_t samples, const ModelInputs& inputs,
                                                           const RunData& data) {
  if (samples == 0 || !validates(config)) return nullptr;
  std::shared_ptr<const Dataset> dataset = data.validation.dataset;
  if (!config.generate.prompt.empty()) {
    TextSettings texts = data.texts;
    texts.prompt_template = config.generate.prompt;
    dataset = open_validation(config, texts);
  }
  const char* const key = config.data.val_path.empty() ? "data.path" : "data.val_path";
  const std::string& path = config.data.val_path.empty() ? config.data.path : config.data.val_path;
  const GenerateSettings settings = generate_settings(config, config.model.path, data.tokenizer.get(), inputs);
  return std::make_unique<ValidationPrompts>(ValidationPrompts{
      settings, PromptSet(config, {dataset, path, key, path}, *data.tokenizer, inputs, samples, data.instructions)});
}

}  // namespace blipft
