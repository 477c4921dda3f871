// Conversations as texts: which chat template renders them, and what of the text is trained.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "blipft/text.h"
#include "text/jinja_template.h"

namespace blipft {

struct Conversation {
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();  ///< objects with "role", as templates read them
  nlohmann::ordered_json tools;                                       ///< null: none
  std::vector<bool> trains = {};                                      ///< of each message: whether it may be trained
};

/// The formats that blipft brings along, by the names that data.chat_template takes.
std::vector<std::string> chat_format_names();
std::shared_ptr<const ChatTemplate> chat_format(const std::string& name);  ///< null: there is none of that name
std::string chat_format_text(const std::string& name);                     ///< its Jinja; empty: none

/// Sets the templates of `settings`: of the model's folder, of a file, or a format. Throws UserError for a file that cannot
/// be read.
void set_chat_template(const Config& config, TextSettings& settings);

/// The conversation as one text, in segments (Sample::whole). Trained is what {% generation %} marks, if the template has
/// such blocks. Otherwise it is, of each answer, what the model would have to say behind the prompt of the messages
/// before, with the token that ends the turn. Of answers that are not the last, which a template may rewrite, it is what
/// the template keeps. Throws UserError naming `place` (file and line) if the template refuses the messages, or renders
/// an answer so that it does not follow its prompt.
std::vector<TextSegment> render_chat(const Conversation& conversation, const TextSettings& settings,
                                     const std::string& place);

/// The text of a message's content, also where it is a list of parts.
std::string content_text(const nlohmann::ordered_json& message);

/// The text that an answer follows: what apply_chat_template() makes with add_generation_prompt.
std::string render_prompt(const Conversation& conversation, const TextSettings& settings, const std::string& place);

}  // namespace blipft
