// --generate and --evaluate: texts for the prompts of a data set, or for one on the command line, and their scores.
#pragma once

#include <string>

#include "blipft/comm.h"
#include "blipft/config.h"

namespace blipft {

struct AnswerRequest {
  std::string prompt;                      ///< prompt of the command line; with `image` it may be empty
  std::string image;                       ///< file of a picture
  bool evaluate = false;                   ///< true: texts are scored, and the loss of the set is computed
  bool one() const { return !prompt.empty() || !image.empty(); }
};

/// Generates and prints or saves the texts. Called by all ranks. Throws UserError.
void answer_prompts(const Config& asked, const AnswerRequest& request, const World& world);

}  // namespace blipft
