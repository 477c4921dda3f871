// The text of a picture: a caption, or a prompt with one or more answers; and the sample made from this text.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "blipft/datasets.h"

namespace blipft {

struct PictureText {
  std::optional<std::string> prompt;               ///< nullopt: the text is a caption
  std::vector<std::string> captions;               ///< the first is the training target; others are references
  std::vector<Dataset::Answer> answers = {};       ///< answers to the prompt, without duplicates
  std::string id = {};                             ///< see record_id()
  bool is_empty() const;                           ///< true if there is no text to train on
};

/// Reads the text from a JSON object: the values of "prompt" and "answer" (or the names that settings.keys has for
/// them), else its captions. An answer is a text, a list of texts, or a list of objects with "answer" and optionally
/// "weight". Equal answers are merged, and their weights are added. With settings.for_prompts there may be no answer.
/// Throws UserError naming `location` (file and line).
PictureText picture_text_from_json(const nlohmann::json& object, const TextSettings& settings, const std::string& location);
/// The keys of such an object that nothing reads. The id of a record and the name of its picture are read.
std::vector<std::string> unread_keys_of_picture(const nlohmann::json& object, const TextSettings& settings);
/// Returns the answers in a JSON value; `key` is the key of this value, for messages.
std::vector<Dataset::Answer> answers_from_json(const nlohmann::json& value, const std::string& key,
                                               const std::string& location);

/// Returns one text per answer if settings.answers is all; else the text itself.
std::vector<PictureText> by_answers(PictureText text, const TextSettings& settings);

/// Fills the text of a sample. The training target is the caption, or only the answer. Throws UserError naming `location`
/// if settings.prompt_template does not fit the text.
void fill_sample(const PictureText& text, const TextSettings& settings, const std::string& location, Dataset::Sample& sample);
/// Fills a prompt: its text and references. Throws UserError as fill_sample() does.
void fill_prompt(const PictureText& text, const TextSettings& settings, const std::string& location, Dataset::Prompt& prompt);

}  // namespace blipft
