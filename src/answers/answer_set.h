// The prompts of a data set, as this rank's texts to generate.
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "blipft/comm.h"
#include "blipft/data.h"
#include "blipft/prompts.h"
#include "generate/generation.h"

namespace blipft {

/// A picture as the model reads it: u8 [P, P, 3].
std::vector<uint8_t> pixels_of(const std::vector<uint8_t>& encoded, const std::string& name, int64_t size,
                               const DecodeSettings& settings);

class AnswerSet {
 public:
  /// Opens generate.path, and tokenizes all prompts. Throws UserError where a prompt is empty or too long for the model, and
  /// with data.on_bad_sample skip leaves it out.
  AnswerSet(const Config& config, const Generation& generation);

  const std::vector<PromptedSample>& prompts() const { return prompts_; }
  const std::string& path() const { return path_; }
  /// Samples that were left out, and why.
  const std::vector<std::string>& left_out() const { return left_out_; }
  /// What this rank of so many has to do at most; ranks take prompts in turn.
  TextsToGenerate work(int64_t ranks) const;
  /// Tokenizes the whole texts, too, for their loss; then this is the number of samples that have any.
  int64_t read_texts();
  /// This rank's requests, one after the other, with pictures read ahead by `threads` threads. A picture that cannot be read
  /// is a UserError, or left out.
  std::function<std::optional<TextRequest>()> requests(int64_t rank, int64_t ranks, int64_t threads);
  /// After read_texts(): the whole text of sample `index` of the data set, what is learnt of it marked.
  const TokenizedText& text(int64_t index) const { return texts_[static_cast<size_t>(index)]; }
  std::vector<uint8_t> pixels(int64_t index) const;

 private:
  struct Ahead;
  void check_prompts(const Config& config);
  int64_t new_tokens(const PromptedSample& prompt) const;
  void leave_out(const std::string& why);

  const Generation& generation_;
  std::string path_;
  bool skips_ = false;
  DecodeSettings pictures_;
  std::shared_ptr<Dataset> dataset_;
  std::vector<PromptedSample> prompts_;
  std::vector<std::string> left_out_;
  std::vector<TokenizedText> texts_;
  int64_t samples_ = 0;                    // generate.samples
  int64_t longest_ = 1, longest_text_ = 0, longest_instruction_ = 0;
};

}  // namespace blipft
