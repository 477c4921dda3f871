// Chat templates: how the messages of a conversation become one text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "blipft/text.h"

namespace blipft {

struct ChatMessage {
  std::string role;  ///< system, user or assistant
  std::string content;
  bool learnt = true;  ///< false: this answer of the assistant's is not to be learnt
};

/// The names of the templates, as data.chat_template takes them.
std::vector<std::string> chat_template_names();
/// The name of the template that has been published as this Jinja text, by a digest of all its characters; empty: none.
std::string known_chat_template(std::string_view jinja);

/// The conversation as one text, in segments (Sample::whole): what transformers' apply_chat_template() makes of it with
/// the published template. What an assistant says is learnt, with the token that ends its turn. Throws UserError naming
/// `place` (file and line) where the template cannot have these messages, or the tokenizer names no token that the
/// template puts.
std::vector<TextSegment> render_chat(const std::string& chat_template, const std::vector<ChatMessage>& messages,
                                     const TextSettings& settings, const std::string& place);

/// The text that an answer follows: what apply_chat_template() makes with add_generation_prompt.
std::string render_prompt(const std::string& chat_template, const std::vector<ChatMessage>& messages,
                          const TextSettings& settings, const std::string& place);

}  // namespace blipft
