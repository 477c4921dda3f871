// Records of JSON files: their keys, and the text made from them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "blipft/datasets.h"
#include "datasets/record_chat.h"

namespace blipft {

/// The text of a record, by the first kind of which it has all the keys:
///   messages: a conversation, a list of {role, content}; labels are what assistants say, except with weight 0
///   instruction, output and perhaps input: settings.prompt_style, then the output
///   prompt, completion: both as they are
///   text: as it is
///   conversations: messages by another name
/// The messages of both may have {from, value} in place of {role, content}, as ShareGPT has. settings.keys says what
/// records call these keys; where it names keys of some kinds, no other kind counts.
/// Throws UserError naming `location` (file and line), what was found and what was expected.
Dataset::Sample sample_of_record(const nlohmann::ordered_json& record, const TextSettings& settings, const std::string& location);

/// Returns what generation uses of a record: the text before the output, the completion or the assistant's last message
/// that is a training target. This answer may be absent. The prompt of a conversation ends with the template's
/// generation prompt. A `text` has no prompt.
Dataset::Prompt prompt_of_record(const nlohmann::ordered_json& record, const TextSettings& settings, const std::string& location);

/// The record's question_id, else image_id, else id, as JSON; empty: none that is a number or a text.
template <class AnyJson>
std::string record_id(const AnyJson& record);

/// Returns true if a record has all keys of a text with a prompt: of an instruction, a completion or a conversation.
bool has_prompted_text(const nlohmann::json& record, const TextSettings& settings);

/// Returns a text that identifies the prompt of a record, whatever prompt style or template renders it. A `text` is
/// identified by itself.
/// Records with equal groups stay together when a part is held out. Empty: the record has an empty prompt.
std::string prompt_group_of_record(const nlohmann::ordered_json& record, const TextSettings& settings, const std::string& location);

/// The first key of a record, or of one of its messages, that carries training data but that no prompt style or chat
/// template renders: `tool_calls`, `tools`, `reasoning_content`, `system`, `history` and the like. A key whose value is empty,
/// or that settings.keys names, does not count. Empty: there is none. Throws UserError as sample_of_record() does.
std::string unrendered_key_of_record(const nlohmann::ordered_json& record, const TextSettings& settings,
                                     const std::string& location);
/// The keys of a record that nothing reads.
std::vector<std::string> unread_keys_of_record(const nlohmann::ordered_json& record, const TextSettings& settings,
                                               const std::string& location);
/// Counts the keys of records that nothing reads.
class UnreadKeys {
 public:
  void add(const std::vector<std::string>& keys) {
    for (const std::string& key : keys) ++counts_[key];
  }
  std::string text() const;                 ///< "category (300), id (300)"

 private:
  std::map<std::string, int64_t> counts_;
};
/// Finds keys with data that is not rendered in the records of pictures with prompts.
class UnrenderedKeys {
 public:
  explicit UnrenderedKeys(const TextSettings& settings) : settings_(settings) {}
  void look_at(const nlohmann::json& record, const std::string& location);
  /// Throws UserError with the first place and the number of records if such a key was found.
  void check() const;
  bool found() const { return found_ > 0; }

 private:
  const TextSettings& settings_;
  std::string first_key_, first_location_;
  int64_t found_ = 0, records_ = 0;
};
/// Throws this UserError.
[[noreturn]] void refuse_unrendered(const std::string& location, const std::string& key, int64_t found, int64_t records);

/// The prompt of an instruction by data.prompt_style. alpaca: the wording of Stanford Alpaca, as LitGPT has it.
/// Throws UserError naming `location` when a style of one's own has no {input} for one that is there.
std::string prompt_of(const ChoiceOrText<PromptStyle>& style, const std::string& instruction, const std::string& input,
                      const std::string& location);

}  // namespace blipft
