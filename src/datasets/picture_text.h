// What stands beside a picture: a caption, or a prompt with one or more answers; and the sample that it makes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "blipft/datasets.h"

namespace blipft {

struct PictureText {
  std::optional<std::string> prompt;               ///< nullopt: a caption
  std::vector<std::string> captions;               ///< the first is what is learnt; the others are right too
  std::vector<Dataset::Answer> answers = {};       ///< of a prompt, each once
  std::string id = {};                             ///< see record_id()
  bool is_empty() const;                           ///< there is nothing to learn
};

/// Of a JSON object: under "prompt" and "answer" (or what settings.keys has for these), else its captions. An answer is a
/// text, or a list of texts, or of objects with "answer" and perhaps "weight"; equal ones become one of their weights' sum.
/// With settings.for_prompts there may be none. Throws UserError naming `place` (file and line).
PictureText picture_text_from_json(const nlohmann::json& object, const TextSettings& settings, const std::string& place);
/// The answers in a JSON value; `key` is what it stands under.
std::vector<Dataset::Answer> answers_from_json(const nlohmann::json& value, const std::string& key,
                                               const std::string& place);

/// One for each answer where settings.answers is all; else the text itself.
std::vector<PictureText> by_answers(PictureText text, const TextSettings& settings);

/// Fills the text of a sample: what is learnt is the caption, or the answer alone. Throws UserError naming `place` where
/// settings.prompt_template does not suit it.
void fill_sample(const PictureText& text, const TextSettings& settings, const std::string& place, Dataset::Sample& sample);
/// The same of a prompt: its text and references.
void fill_prompt(const PictureText& text, const TextSettings& settings, const std::string& place, Dataset::Prompt& prompt);

}  // namespace blipft
