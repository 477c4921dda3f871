// Texts that are tokenized before a run begins, by several threads, before memory is planned. As a result, the plan
// fits the actual steps, the loader need not tokenize again, and samples without training targets are left out.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "blipft/loading.h"
#include "loading/sample_text.h"

namespace blipft {

/// A subset of a dataset's samples.
class DatasetSubset final : public Dataset {
 public:
  DatasetSubset(std::shared_ptr<const Dataset> whole, std::vector<int64_t> samples)
      : whole_(std::move(whole)), samples_(std::move(samples)) {}
  int64_t size() const override { return static_cast<int64_t>(samples_.size()); }
  Sample read(int64_t index) const override { return whole_->read(samples_.at(static_cast<size_t>(index))); }
  Prompt read_prompt(int64_t index) const override {
    return whole_->read_prompt(samples_.at(static_cast<size_t>(index)));
  }
  int64_t number_of(int64_t index) const override {
    return whole_->number_of(samples_.at(static_cast<size_t>(index)));
  }
  bool has_pictures() const override { return whole_->has_pictures(); }
  SplitGroup split_group(int64_t index) const override {
    return whole_->split_group(samples_.at(static_cast<size_t>(index)));
  }
  std::string unread_keys() const override { return whole_->unread_keys(); }
  void check_picture_formats() const override { whole_->check_picture_formats(); }
  void identify(const Take& take) const override { whole_->identify(take); }
  void identify_contents(const Take& take) const override { whole_->identify_contents(take); }

 private:
  std::shared_ptr<const Dataset> whole_;
  std::vector<int64_t> samples_;
};

class TextSurvey {
 public:
  struct Settings {
    int64_t samples = 0;                     ///< maximum number of samples, from the first on; 0: all
    int64_t max_text_tokens = 0, vocabulary = 0;
    int64_t threads = 1;
    int64_t max_bytes = int64_t{2} << 30;   ///< host memory for ids; if they need more, only lengths are kept
    bool skip_bad = false;                   ///< samples that cannot be read or tokenized are left out
    int32_t decoder_start = -1;              ///< see ModelInputs
    const PictureReader* pictures = nullptr;  ///< if the model reads pictures in texts
  };
  /// Throws the error of the first sample whose text cannot be read or tokenized, unless skip_bad is set. The result is
  /// identical on every rank.
  TextSurvey(const Dataset& dataset, const Tokenizer& tokenizer, const Settings& settings);

  int64_t surveyed() const { return surveyed_; }
  /// The samples with a training target, ascending; others are left out. The vectors and indices below refer to these
  /// samples.
  const std::vector<int64_t>& samples() const { return samples_; }
  /// Tokens of each text, cut to max_text_tokens; the maximum over several answers.
  const std::vector<int64_t>& lengths() const { return lengths_; }
  /// Tokens of each source; zeros if there are no sources.
  const std::vector<int64_t>& source_lengths() const { return source_lengths_; }
  /// The pictures of each text, without padding; the maximum over several answers. Empty if the model reads none in texts.
  const std::vector<PictureShape>& pictures() const { return pictures_; }
  /// Returns the rows that each sample has in all streams.
  std::vector<int64_t> work() const;
  bool has_texts() const { return !texts_.empty(); }
  const TokenizedAnswers& text(int64_t i) const { return texts_.at(static_cast<size_t>(i)); }

  int64_t cut() const { return cut_; }       ///< number of texts longer than max_text_tokens
  int64_t bad() const { return bad_; }       ///< number of samples that cannot be read or tokenized
  const std::vector<std::string>& bad_texts() const { return bad_texts_; }  ///< errors of the first few bad samples
  /// The number of samples without a training target, not counting bad samples.
  int64_t left_out() const { return surveyed_ - bad_ - static_cast<int64_t>(samples_.size()); }
  const std::vector<std::string>& left_out_names() const { return left_out_names_; }  ///< names of the first few

 private:
  int64_t surveyed_ = 0, cut_ = 0, bad_ = 0;
  std::vector<int64_t> samples_, lengths_, source_lengths_;
  std::vector<PictureShape> pictures_;
  std::vector<TokenizedAnswers> texts_;         // empty: they would need too much memory
  std::vector<std::string> left_out_names_, bad_texts_;
};

/// The samples of a run whose texts are surveyed: those of `dataset` with something to learn, of the first `requested` (0:
/// all; more than there are: the set repeats). Throws UserError that names `key`, where the data comes from, when none
/// has.
SampleSet survey_samples(const LoadingSettings& loading, const SampleSet& samples, const Tokenizer& tokenizer,
                         const ModelInputs& inputs, int64_t threads, const char* key = "data.path");
/// Describes the survey: the numbers of texts, of texts cut and of texts left out, and the names of the first of these.
std::string survey_text(const LoadingSettings& loading, const TextSurvey& survey);

/// Returns true if the samples of a step are dealt to the micro-batches of all ranks by their rows. This needs surveyed
/// pictures, packed texts, and a loss that does not depend on which samples share a micro-batch.
bool deals_to_ranks(const LoadingSettings& loading, const SampleSet& samples);

/// At most 16 text shapes, ascending, that hold every micro-batch of the run on `world` ranks with the least rows of
/// padding; T is the longest text, rounded up. All steps are looked at, up to some ten million samples; behind that the
/// last shape holds whatever may come. With validation samples, the steps of one validation count too. Both have texts.
/// The shapes are the same on every rank.
std::vector<TextShape> surveyed_text_shapes(const LoadingSettings& loading, int64_t world, const SampleSet& samples,
                                            const SampleSet& validation = {});

/// The mean of `shapes`, which surveyed_text_shapes() chose for such a run, over the run's steps: what a step's
/// micro-batches take on the average.
TextShape mean_text_shape(const LoadingSettings& loading, int64_t world, const SampleSet& samples,
                          const std::vector<TextShape>& shapes);

}  // namespace blipft
