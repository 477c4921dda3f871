// Answers at the terminal: --prompt answers one text, --chat a conversation.
#pragma once

#include <string>

#include "blipft/comm.h"
#include "generate/weight_source.h"

namespace blipft {

struct TerminalRequest {
  std::string prompt;                      ///< --prompt; may be empty with `image`
  std::string image;                       ///< --image: file of the picture
  std::string system;                      ///< --system: the system message
};

/// Answers one prompt on standard output, token by token. Throws UserError.
void answer_prompt(const GenerationSource& source, const TerminalRequest& request, const World& world);

/// Answers each line of standard input until its end. With a chat template the lines and answers are one conversation,
/// else each line is a prompt. If standard input is no terminal, the first error ends the chat: UserError.
void chat(const GenerationSource& source, const TerminalRequest& request, const World& world);

}  // namespace blipft
