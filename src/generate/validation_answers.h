// ValidationAnswers: what a training generates at its validations, and the scores of that.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "blipft/comm.h"
#include "blipft/config.h"
#include "blipft/evaluate.h"
#include "engine/decode/prompt_set.h"
#include "generate/answers/answer_text.h"
#include "generate/generator.h"

namespace blipft {

/// The generated texts of one validation and their scores.
struct ValidationScores {
  std::vector<Score> scores;               ///< the same on every rank; by_sample is rank 0's alone
  std::vector<ScoredText> texts;           ///< on rank 0, in the order of samples; those without references too
  std::vector<int64_t> tokens;             ///< of these
  int64_t samples = 0;                     ///< that were scored
};

class ValidationAnswers {
 public:
  struct Parts {
    const Config* config = nullptr;
    const World* world = nullptr;
    std::shared_ptr<const Tokenizer> tokenizer;
    std::shared_ptr<ValidationPrompts> prompts;
    DecodeProgram* program = nullptr;
    bool synchronous = true;               ///< the device computes while it is called
    bool all_take_part = false;            ///< each pass gathers from all ranks
    std::function<void()> alive;           ///< called as texts grow
  };
  /// Throws UserError where a metric does not fit the validation samples' references. Called by all ranks.
  explicit ValidationAnswers(const Parts& parts);
  /// Generates and scores, with the weights as they are. Called by all ranks. Throws UserError.
  ValidationScores evaluate();
  /// Validation samples of all ranks that could not be answered so far, as data.on_bad_sample: skip allows.
  int64_t left_out() const { return left_out_; }

 private:
  std::vector<Score> scores_of(const std::vector<ScoredText>& texts, int64_t& samples) const;

  Parts parts_;
  std::vector<std::string> metrics_;
  int64_t left_out_ = 0;
};

}  // namespace blipft
