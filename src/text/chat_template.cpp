// Chat templates by name, and by the text under which models publish them.
#include "text/chat_template.h"

#include <algorithm>

#include "blipft/error.h"
#include "text/chat_families.h"

namespace blipft {
namespace {

/// The family of that name, whose tokens the tokenizer has.
const ChatFamily& family_of(const std::string& chat_template, const TextSettings& settings, const std::string& place) {
  const auto& families = chat_families();
  const auto family = std::find_if(families.begin(), families.end(),
                                   [&](const ChatFamily& one) { return one.name == chat_template; });
  if (family == families.end()) {
    std::string names;
    for (const std::string& name : chat_template_names()) names += (names.empty() ? "" : ", ") + name;
    throw UserError(concat(place, ": a conversation, and the template that makes a text of it is not "
                           "known: set data.chat_template to one of ", names, " (the tokenizer's files name none of "
                           "these as chat_template)"));
  }
  for (const bool bos : {true, false}) {
    const bool puts = bos ? family->puts_bos : family->puts_eos;
    const bool has = !(bos ? settings.bos_token : settings.eos_token).empty();
    BLIPFT_USER_CHECK(has || !puts, place, ": data.chat_template ", family->name, " puts the tokenizer's ",
                      bos ? "bos_token" : "eos_token", ", but the tokenizer's files name none; name one in "
                      "tokenizer_config.json, or choose another template");
  }
  return *family;
}

}  // namespace

std::vector<std::string> chat_template_names() {
  std::vector<std::string> names;
  for (const ChatFamily& family : chat_families()) names.emplace_back(family.name);
  return names;
}

std::string known_chat_template(std::string_view jinja) {
  const uint64_t digest = jinja_digest(jinja);
  for (const ChatFamily& family : chat_families())
    for (const uint64_t published : family.published)
      if (published == digest) return family.name;
  return {};
}

std::vector<TextSegment> render_chat(const std::string& chat_template, const std::vector<ChatMessage>& messages,
                                     const TextSettings& settings, const std::string& place) {
  ChatText text;
  family_of(chat_template, settings, place).write({messages, settings, place}, text);
  std::vector<TextSegment> segments = text.take();
  if (segments.empty()) segments.push_back({"", false});
  return segments;
}

std::string render_prompt(const std::string& chat_template, const std::vector<ChatMessage>& messages,
                          const TextSettings& settings, const std::string& place) {
  ChatText text;
  family_of(chat_template, settings, place).write({messages, settings, place, true}, text);
  std::string all;
  for (const TextSegment& segment : text.take()) all += segment.text;
  return all;
}

}  // namespace blipft
