// Conversations as texts: the chat template that renders them, and the parts of the text that are training targets.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "blipft/text.h"
#include "text/jinja_template.h"

namespace blipft {

struct Conversation {
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();  ///< objects with "role", as templates read them
  nlohmann::ordered_json tools;                                       ///< null if there are none
  std::vector<bool> trains = {};                                      ///< [messages]: true if the message may be trained
};

/// Returns the names of the built-in formats, which are values of data.chat_template.
std::vector<std::string> chat_format_names();
std::shared_ptr<const ChatTemplate> chat_format(const std::string& name);  ///< null if there is no such format
std::string chat_format_text(const std::string& name);                     ///< its Jinja text; empty if there is none

/// Sets the templates of `settings`: those of the model's folder, of a file, or a built-in format. A model without a
/// template has none; the first conversation is then an error. Throws UserError for a file that cannot be read.
void set_chat_template(const TextKeys& keys, const std::string& model_folder, TextSettings& settings);

/// Renders a conversation as one text, in segments (Sample::whole). If the template has {% generation %} blocks, their
/// contents are trained on. Otherwise the trained part of an answer is the text that the model would have to generate
/// after the prompt of the preceding messages, with the token that ends the turn. A template may rewrite an answer when
/// other messages follow it; then only the part that the template keeps is trained. Throws UserError naming `location`
/// (file and line) if the template refuses the messages, or if an answer does not follow its prompt in the rendered
/// text.
std::vector<TextSegment> render_chat(const Conversation& conversation, const TextSettings& settings,
                                     const std::string& location);

/// Returns the text of a message's content, also if it is a list of parts.
std::string content_text(const nlohmann::ordered_json& message);

/// Returns the text before an answer: that of apply_chat_template() with add_generation_prompt.
std::string render_prompt(const Conversation& conversation, const TextSettings& settings, const std::string& location);

/// Returns the text that ends each answer, such as "<|im_end|>"; empty if only white space ends an answer, or if the
/// template refuses a conversation of one question and one answer.
std::string end_of_answers(const TextSettings& settings);

}  // namespace blipft
