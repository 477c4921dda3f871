// A data set's prompts; see answer_set.h.
#include "answers/answer_set.h"

#include <algorithm>
#include <deque>

#include "data/sample_text.h"

namespace blipft {

namespace {

std::string data_path(const Config& config) {
  if (!config.generate.path.empty()) return config.generate.path;
  return config.data.val_path.empty() ? config.data.path : config.data.val_path;
}

}  // namespace

std::vector<uint8_t> pixels_of(const std::vector<uint8_t>& encoded, const std::string& name, int64_t size,
                               const DecodeSettings& settings) {
  return resize_bicubic(decode_image(encoded.data(), encoded.size(), name, settings), size, size).rgb;
}

AnswerSet::AnswerSet(const Config& config, const Generation& generation)
    : generation_(generation), path_(data_path(config)), skips_(config.data.on_bad_sample == "skip"),
      pictures_{config.data.exif_orientation, config.data.transparency == "white"}, samples_(config.generate.samples) {
  BLIPFT_USER_CHECK(dataset_exists(path_), place_of(config, "generate.path"), ": generate.path: ", path_,
                    " does not exist; expected samples in a format of data.path");
  TextSettings texts = text_settings(config, generation.tokenizer());
  texts.for_prompts = true;
  if (!config.generate.prompt.empty()) texts.prompt_template = config.generate.prompt;
  dataset_ = open_dataset(path_, config.data.format, texts);
  const ModelInputs& inputs = generation.inputs();
  BLIPFT_USER_CHECK(!inputs.has_picture() || dataset_->has_pictures(), place_of(config, "generate.path"), ": generate.path: ",
                    path_, " has texts alone, and the model reads a picture with each; choose pictures, or a model of text");
  const PromptSettings settings{.vocabulary = inputs.vocabulary, .ends = inputs.has_source()};
  prompts_ = prompts_of_dataset(*dataset_, generation.tokenizer(), settings, config.generate.samples);
  check_prompts(config);
}

void AnswerSet::leave_out(const std::string& why) {
  BLIPFT_USER_CHECK(skips_, why, "; data.on_bad_sample=skip leaves such samples out");
  left_out_.push_back(why);
}

void AnswerSet::check_prompts(const Config&) {
  const int64_t most = generation_.most_ids();
  std::erase_if(prompts_, [&](const PromptedSample& prompt) {
    const auto ids = static_cast<int64_t>(prompt.ids.size());
    if (ids == 0)
      leave_out(concat(prompt.name, ": the prompt is empty, and the tokenizer puts nothing before a text; expected some text"));
    else if (ids >= most)
      leave_out(concat(prompt.name, ": the prompt has ", ids, " tokens, and the model has positions for ", most,
                       ", the answer's among them; shorten it"));
    else if (generation_.inputs().has_picture() && prompt.picture < 0)
      leave_out(concat(prompt.name, ": there is no picture, and the model reads one"));
    else return false;
    return true;
  });
  BLIPFT_USER_CHECK(!prompts_.empty(), path_, ": there is no prompt to answer", left_out_.empty() ? "" : "; the first that was left out: ",
                    left_out_.empty() ? "" : left_out_.front());
  for (const PromptedSample& prompt : prompts_) longest_ = std::max(longest_, static_cast<int64_t>(prompt.ids.size()));
}

TextsToGenerate AnswerSet::work(int64_t ranks) const {
  return {longest_, (static_cast<int64_t>(prompts_.size()) + ranks - 1) / ranks, longest_text_};
}

int64_t AnswerSet::new_tokens(const PromptedSample& prompt) const {
  return std::min(generation_.settings().max_new_tokens,
                  generation_.most_ids() - static_cast<int64_t>(prompt.ids.size()));
}

std::vector<uint8_t> AnswerSet::pixels(int64_t index) const {
  if (!generation_.inputs().has_picture()) return {};
  const Dataset::Sample sample = dataset_->read(index);
  BLIPFT_USER_CHECK(sample.picture, sample.name, ": there is no picture, and the model reads one");
  return pixels_of(*sample.picture, sample.name, generation_.inputs().picture_size, pictures_);
}

int64_t AnswerSet::read_texts() {
  const int64_t count = samples_ > 0 ? std::min(samples_, dataset_->size()) : dataset_->size();
  for (int64_t i = 0; i < count; ++i) {
    texts_.push_back(tokenize(dataset_->read(i), generation_.tokenizer(), generation_.most_ids(),
                              generation_.inputs().vocabulary, generation_.inputs().decoder_start));
    longest_text_ = std::max(longest_text_, texts_.back().size());
    longest_ = std::max(longest_, texts_.back().source_size());
  }
  return count;
}

// Pictures that other threads read, in order.
struct AnswerSet::Ahead {
  size_t next = 0, step = 1, threads = 1;
  std::deque<std::pair<size_t, std::future<std::vector<uint8_t>>>> reading;
};

std::function<std::optional<TextRequest>()> AnswerSet::requests(int64_t rank, int64_t ranks, int64_t threads) {
  auto ahead = std::make_shared<Ahead>();
  ahead->next = static_cast<size_t>(rank), ahead->step = static_cast<size_t>(ranks);
  ahead->threads = static_cast<size_t>(std::max<int64_t>(1, threads));
  return [this, ahead]() -> std::optional<TextRequest> {
    for (;;) {
      while (ahead->reading.size() < ahead->threads && ahead->next < prompts_.size()) {
        const size_t i = ahead->next;
        ahead->next += ahead->step;
        const auto read = [this, picture = prompts_[i].picture] { return pixels(picture); };
        const auto policy = generation_.inputs().has_picture() ? std::launch::async : std::launch::deferred;
        ahead->reading.emplace_back(i, std::async(policy, read));
      }
      if (ahead->reading.empty()) return std::nullopt;
      auto [i, pixels] = std::move(ahead->reading.front());
      ahead->reading.pop_front();
      try {
        return TextRequest{static_cast<int64_t>(i), prompts_[i].ids, new_tokens(prompts_[i]), pixels.get()};
      } catch (const UserError& error) {
        leave_out(error.what());
      }
    }
  };
}

}  // namespace blipft
