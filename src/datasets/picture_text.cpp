// Texts of pictures; see picture_text.h.
#include "datasets/picture_text.h"

#include <algorithm>
#include <set>

#include <nlohmann/json.hpp>

#include "blipft/error.h"
#include "datasets/dataset_formats.h"
#include "datasets/record_text.h"
#include "io/json.h"

namespace blipft {
namespace {

using nlohmann::json;

constexpr std::string_view hole = "{}";

/// Returns the text before the answer or caption; may be empty.
std::string prompt_in(const PictureText& text, const TextSettings& settings, const std::string& location) {
  const std::string& style = settings.prompt_template;
  const bool has_prompts = style.find(hole) != std::string::npos;
  if (!text.prompt) {
    BLIPFT_USER_CHECK(!has_prompts, location, ": has a caption and no prompt, for which data.prompt_template has {} in it; give a ",
                      "text without {}, which stands before each caption, or none");
    return style;
  }
  if (style.empty()) return *text.prompt;
  BLIPFT_USER_CHECK(has_prompts, location, ": has a prompt, for which data.prompt_template has no place: put {} into it");
  std::string out;
  size_t at = 0;
  for (size_t found; (found = style.find(hole, at)) != std::string::npos; at = found + hole.size())
    out.append(style, at, found - at).append(*text.prompt);
  return out.append(style, at);
}

void add_answer(std::vector<Dataset::Answer>& answers, const std::string& text, double weight) {
  const auto known = std::find_if(answers.begin(), answers.end(),
                                  [&](const Dataset::Answer& answer) { return answer.text == text; });
  if (known != answers.end())
    known->weight += weight;
  else
    answers.push_back({text, weight});
}

/// The turns that show a picture and give an answer; without one, the turn before it.
Conversation conversation_about_picture(const std::string& prompt, const std::string* answer) {
  nlohmann::ordered_json content = {{{"type", "image"}}};
  if (!prompt.empty()) content.push_back({{"type", "text"}, {"text", prompt}});
  Conversation conversation{{{{"role", "user"}, {"content", content}}}, {}, {false}};
  if (!answer) return conversation;
  conversation.messages.push_back({{"role", "assistant"}, {"content", *answer}});
  conversation.trains.push_back(true);
  return conversation;
}

const Dataset::Answer& common(const std::vector<Dataset::Answer>& answers) {
  return *std::max_element(answers.begin(), answers.end(),
                           [](const auto& a, const auto& b) { return a.weight < b.weight; });
}

}  // namespace

bool PictureText::is_empty() const {
  if (prompt) return std::all_of(answers.begin(), answers.end(), [](const auto& answer) { return answer.text.empty(); });
  return captions.empty() || captions.front().empty();
}

std::vector<Dataset::Answer> answers_from_json(const json& value, const std::string& key, const std::string& location) {
  const json list = value.is_array() ? value : json::array({value});
  std::vector<Dataset::Answer> answers;
  for (const json& one : list) {
    const json& text = one.is_object() && one.contains("answer") ? one["answer"] : one;
    BLIPFT_USER_CHECK(text.is_string(), location, ": key \"", key, "\" is ", io::brief(value), ", expected a text, or a list ",
                      "of texts or of {\"answer\": ..., \"weight\": ...}");
    const json weight = one.is_object() && one.contains("weight") ? one["weight"] : json(1);
    BLIPFT_USER_CHECK(weight.is_number() && weight.get<double>() > 0 && weight.get<double>() < 1e9, location, ": key \"", key,
                      "\": the weight of \"", brief(text.get<std::string>()), "\" is ", io::brief(weight),
                      ", expected a number above 0");
    add_answer(answers, text.get<std::string>(), weight.get<double>());
  }
  BLIPFT_USER_CHECK(!answers.empty(), location, ": key \"", key, "\" is an empty list, expected at least one answer");
  return answers;
}

namespace {

bool has_prompt_in(const json& object, const TextSettings& settings) {
  if (settings.keys.contains("prompt") || settings.keys.contains("answer")) return true;
  return object.contains(name_of(settings, "prompt")) && (object.contains(name_of(settings, "answer")) || settings.for_prompts);
}

}  // namespace

std::vector<std::string> unread_keys_of_picture(const json& object, const TextSettings& settings) {
  std::set<std::string> read = {name_of(settings, "file_name"), "question_id", "image_id", "id"};
  if (has_prompt_in(object, settings)) read.insert({name_of(settings, "prompt"), name_of(settings, "answer")});
  else if (settings.keys.contains("text") || object.contains("text")) read.insert(name_of(settings, "text"));
  else read.insert("caption");
  std::vector<std::string> unread;
  for (const auto& item : object.items())
    if (!read.contains(item.key())) unread.push_back(item.key());
  return unread;
}

PictureText picture_text_from_json(const json& object, const TextSettings& settings, const std::string& location) {
  BLIPFT_USER_CHECK(object.is_object(), location, ": found a JSON ", object.type_name(),
                    ", expected an object with \"text\", or with \"prompt\" and \"answer\"");
  const std::string prompt_key = name_of(settings, "prompt"), answer_key = name_of(settings, "answer");
  const bool has_prompt = object.contains(prompt_key), has_answer = object.contains(answer_key);
  PictureText text;
  text.id = record_id(object);
  if (!has_prompt_in(object, settings)) {
    text.captions = captions_from_json(object, settings, location);
    return text;
  }
  BLIPFT_USER_CHECK(has_prompt, location, ": no key \"", prompt_key, "\", expected the picture's prompt; where another key "
                    "has it, say which: data.keys={prompt: KEY} (in quotes on a command line)");
  const json& prompt = object[prompt_key];
  BLIPFT_USER_CHECK(prompt.is_string(), location, ": key \"", prompt_key, "\" is ", io::brief(prompt), ", expected a text");
  text.prompt = prompt.get<std::string>();
  BLIPFT_USER_CHECK(has_answer || settings.for_prompts, location, ": no key \"", answer_key, "\", expected the answer to the "
                    "picture's prompt; where another key has it, say which: data.keys={answer: KEY} (in quotes on a "
                    "command line)");
  if (has_answer) text.answers = answers_from_json(object[answer_key], answer_key, location);
  return text;
}

std::vector<PictureText> by_answers(PictureText text, const TextSettings& settings) {
  if (settings.answers != AnswerSelection::all || text.answers.size() < 2 || settings.for_prompts) return {std::move(text)};
  std::vector<PictureText> texts;
  for (const Dataset::Answer& answer : text.answers) {
    // An answer becomes as many samples as people gave it (its weight), so that it is trained on that often.
    const auto times = std::max<int64_t>(1, static_cast<int64_t>(answer.weight + 0.5));
    for (int64_t i = 0; i < times; ++i) texts.push_back({text.prompt, {}, {{answer.text, 1}}, text.id});
  }
  return texts;
}

void fill_sample(const PictureText& text, const TextSettings& settings, const std::string& location,
                 Dataset::Sample& sample) {
  const std::string prompt = prompt_in(text, settings, location);
  if (!text.prompt && prompt.empty() && !settings.pictures_in_texts) {
    sample.segments = {{text.captions.empty() ? "" : text.captions.front()}};
    sample.ends = settings.append_eos;
    return;
  }
  sample.answers = text.answers;
  if (!text.prompt) sample.answers = {{text.captions.empty() ? "" : text.captions.front(), 1}};
  if (sample.answers.empty()) sample.answers = {{"", 1}};
  if (settings.answers == AnswerSelection::common) sample.answers = {{common(sample.answers).text, 1}};
  if (settings.pictures_in_texts) {
    check_template_of_pictures(settings, location);
    for (Dataset::Answer& answer : sample.answers)
      answer.segments = render_chat(conversation_about_picture(prompt, &answer.text), settings, location);
    sample.segments = common(sample.answers).segments;
    sample.whole = true;
    return;
  }
  sample.segments = {{prompt, false}, {common(sample.answers).text, true}};
  sample.ends = text.prompt ? std::optional(settings.append_eos.value_or(true)) : settings.append_eos;
}

void fill_prompt(const PictureText& text, const TextSettings& settings, const std::string& location,
                 Dataset::Prompt& prompt) {
  prompt.text = prompt_in(text, settings, location);
  prompt.whole = settings.pictures_in_texts;
  if (prompt.whole) {
    check_template_of_pictures(settings, location);
    prompt.text = render_prompt(conversation_about_picture(prompt.text, nullptr), settings, location);
  }
  prompt.id = text.id;
  prompt.references = text.captions;
  for (const Dataset::Answer& answer : text.answers) {   // metrics of answers count people
    const double times = std::clamp(answer.weight + 0.5, 1.0, 100.0);
    prompt.references.insert(prompt.references.end(), static_cast<size_t>(times), answer.text);
  }
  std::erase(prompt.references, "");
}

}  // namespace blipft
