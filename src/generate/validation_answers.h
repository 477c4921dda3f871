// ValidationAnswers: generates texts at the validations of a training run, with the current weights in memory, and
// scores them. No weights are loaded: Engine::decoder uses the weights of the training.
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
  std::vector<Score> scores;               ///< equal on all ranks; by_sample only on rank 0
  std::vector<ScoredText> texts;           ///< on rank 0, in the order of samples, including those without references
  std::vector<int64_t> tokens;             ///< number of new tokens of each text
  int64_t samples = 0;                     ///< number of scored samples
};

class ValidationAnswers {
 public:
  struct Parts {
    const Config* config = nullptr;
    const World* world = nullptr;
    std::shared_ptr<const Tokenizer> tokenizer;
    std::shared_ptr<ValidationPrompts> prompts;
    DecodeProgram* program = nullptr;
    bool synchronous = true;               ///< the device computes during the call
    bool all_take_part = false;            ///< true if each pass gathers weights from all ranks
    std::function<void()> alive;           ///< called during the generation
  };
  /// Throws UserError if a metric does not fit the validation samples' references. Called by all ranks.
  explicit ValidationAnswers(const Parts& parts);
  /// Generates and scores with the current weights. Called by all ranks. Throws UserError.
  ValidationScores evaluate();
  /// Returns the number of validation samples of all ranks that were skipped so far (data.on_bad_sample: skip).
  int64_t left_out() const { return left_out_; }

 private:
  std::vector<Score> scores_of(const std::vector<ScoredText>& texts, int64_t& samples) const;

  Parts parts_;
  std::vector<std::string> metrics_;
  int64_t left_out_ = 0;
};

}  // namespace blipft
