// Records of JSON files: their keys, and the text made from them.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "blipft/datasets.h"

namespace blipft {

/// Returns the text of a record, by the first kind whose keys the record has:
///   messages: a conversation, a list of {role, content}; targets are assistant messages whose weight is not 0
///   instruction, output and optionally input: settings.prompt_style, then the output
///   prompt, completion: both unchanged
///   text: unchanged
///   conversations: the same as messages
/// Messages may have {from, value} instead of {role, content}, as in ShareGPT. settings.keys may rename these keys; if
/// it names keys of some kinds, only these kinds are considered. Throws UserError naming `place` (file and line), what
/// was found and what was expected.
Dataset::Sample sample_of_record(const nlohmann::json& record, const TextSettings& settings, const std::string& place);

/// Returns the prompt of a record for generation: the text before the output, the completion, or the last assistant
/// message with weight 1. The answer may be absent. A conversation ends with the template's generation prompt. A `text`
/// has no prompt.
Dataset::Prompt prompt_of_record(const nlohmann::json& record, const TextSettings& settings, const std::string& place);

/// Returns the record's question_id, else image_id, else id, as JSON; "" if none of these is a whole number or a text.
std::string record_id(const nlohmann::json& record);

/// Returns true if a record has all keys of a text with a prompt: of an instruction, a completion or a conversation.
bool has_prompted_text(const nlohmann::json& record, const TextSettings& settings);

/// Returns a text that identifies the prompt of a record, independent of prompt style and template; for a `text`, the
/// text itself. Records with equal groups stay together in a split. Returns "" if the prompt is empty.
std::string prompt_group_of_record(const nlohmann::json& record, const TextSettings& settings, const std::string& place);

/// Returns the first key of a record, or of one of its messages, that contains training data but that no prompt style
/// or chat template renders: `tool_calls`, `tools`, `reasoning_content`, `system`, `history` and the like. Keys with an
/// empty value and keys that settings.keys names are ignored. Returns "" if there is none. Throws UserError as
/// sample_of_record() does.
std::string unrendered_key_of_record(const nlohmann::json& record, const TextSettings& settings,
                                     const std::string& place);
/// Finds such keys in the records of pictures with prompts.
class UnrenderedKeys {
 public:
  explicit UnrenderedKeys(const TextSettings& settings) : settings_(settings) {}
  void look_at(const nlohmann::json& record, const std::string& place);
  /// Throws UserError with the first place and the number of records if such a key was found.
  void check() const;
  bool found() const { return found_ > 0; }

 private:
  const TextSettings& settings_;
  std::string first_key_, first_place_;
  int64_t found_ = 0, records_ = 0;
};
/// Throws this UserError.
[[noreturn]] void refuse_unrendered(const std::string& place, const std::string& key, int64_t found, int64_t records);

/// Returns the name that the records use for `key`.
std::string name_of(const TextSettings& settings, const std::string& key);

/// Returns the prompt for an instruction by data.prompt_style. alpaca is the wording of Stanford Alpaca, as in LitGPT.
/// Throws UserError naming `place` if there is an input but the user's own style contains no {input}.
std::string prompt_of(const ChoiceOrText<PromptStyle>& style, const std::string& instruction, const std::string& input,
                      const std::string& place);

}  // namespace blipft
