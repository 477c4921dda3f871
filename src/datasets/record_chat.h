// Conversations in JSON records: messages as OpenAI, ShareGPT, Alpaca and TRL write them.
#pragma once

#include <string>

#include "text/chat_template.h"

namespace blipft {

class RecordPictures;

/// The messages under `key` of a record: {role, content} or {from, value}, with content as a text, a list of parts of text,
/// or null; with tool_calls (function_call); with a "system" message and "tools" beside them in the record.
/// Throws UserError naming `location` (file and line), what was found and what was expected. With `pictures`, contents may hold
/// placeholders of the record's pictures, which become parts (record_pictures.h); without, these are texts or refused.
Conversation conversation_of(const nlohmann::ordered_json& record, const std::string& key, const TextSettings& settings,
                             const std::string& location, RecordPictures* pictures = nullptr);
/// The messages of a prompt and of its completion: both lists.
Conversation conversation_of_prompt(const nlohmann::ordered_json& record, const TextSettings& settings,
                                    const std::string& location, RecordPictures* pictures = nullptr);
/// The messages of an instruction with data.prompt_style chat: "system", "history" (pairs of texts), then instruction
/// and input as the user's message, and the output, which may be absent, as the answer.
Conversation conversation_of_instruction(const nlohmann::ordered_json& record, const TextSettings& settings,
                                         const std::string& location);

/// Throws UserError naming `here` if the chat template reads texts alone.
void check_template_of_pictures(const TextSettings& settings, const std::string& here);

/// Returns true if the chat template prints the value of this key of a message or record.
bool chat_renders(const std::string& key, const TextSettings& settings);

/// Returns the value of `key` in a record. Throws UserError if the key is missing or its value is no text.
std::string text_at(const nlohmann::ordered_json& object, const std::string& key, const std::string& location);
/// The keys of a record, for messages.
std::string keys_of(const nlohmann::ordered_json& record);
/// The key of a message that has this meaning: what settings.keys says, else ours, else ShareGPT's.
std::string message_key(const nlohmann::ordered_json& message, const TextSettings& settings, const char* ours,
                        const char* sharegpt);
/// Returns the name that the records use for `key`.
std::string name_of(const TextSettings& settings, const std::string& key);

}  // namespace blipft
