// --generate and --evaluate: texts for the prompts of a data set, or for one on the command line, and their scores.
#pragma once

#include "generate/terminal.h"

namespace blipft {

struct AnswerRequest : TerminalRequest {
  bool chat = false;                       ///< true: lines of standard input are answered
  bool evaluate = false;                   ///< true: texts are scored, and the loss of the set is computed
  bool at_terminal() const { return chat || !prompt.empty() || !image.empty(); }
};

/// Generates and prints or saves the texts. Called by all ranks. An error of one rank ends all ranks with code 1; the
/// texts that it has finished are in its partial file. Throws UserError.
void answer_prompts(const Config& requested, const AnswerRequest& request, const World& world);

}  // namespace blipft
