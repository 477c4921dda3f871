// Prompts; see prompts.h.
#include "blipft/prompts.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "blipft/error.h"
#include "loading/picture_reader.h"
#include "text/chat_template.h"

namespace blipft {
namespace {

void append(std::vector<int32_t>& ids, const std::vector<int32_t>& more) { ids.insert(ids.end(), more.begin(), more.end()); }

/// Returns the ids of a prompt. A `whole` text already contains the special tokens of its template; for other texts the
/// tokenizer's special tokens are added.
std::vector<int32_t> ids_of(const std::string& text, bool whole, const Tokenizer& tokenizer,
                            const PromptSettings& settings, const std::string& name, bool* cut) {
  std::vector<int32_t> ids = whole ? std::vector<int32_t>() : tokenizer.prefix_ids();
  append(ids, tokenizer.encode_plain(text));
  if (settings.ends && !whole) append(ids, tokenizer.suffix_ids());
  for (const int32_t id : ids)
    BLIPFT_USER_CHECK(id >= 0 && id < settings.vocabulary, name, ": its prompt has a token with id ", id,
                      ", the model's vocabulary has ", settings.vocabulary,
                      " ids (vocab_size in config.json); use the tokenizer that belongs to the model");
  const auto size = static_cast<int64_t>(ids.size());
  if (settings.max_tokens > 0 && size > settings.max_tokens) {
    // Keep the end of a prompt, which contains the request, and the special tokens at its start, which many models
    // expect.
    int64_t kept = 0;
    for (const int32_t id : whole ? std::vector{tokenizer.bos_id().value_or(-1)} : tokenizer.prefix_ids())
      kept += kept < settings.max_tokens && ids[static_cast<size_t>(kept)] == id;
    ids.erase(ids.begin() + kept, ids.begin() + kept + (size - settings.max_tokens));
    if (cut) *cut = true;
  }
  return ids;
}

/// Sets the ids of a prompt, and its pictures if the model reads any in texts.
void set_ids(const std::string& text, bool whole, std::vector<PictureFile> pictures, const Tokenizer& tokenizer,
             const PromptSettings& settings, PromptedSample& sample) {
  const PictureReader* const reader = settings.pictures;
  std::vector<TextSegment> segments = {{text, false}};
  std::vector<PictureSegment> sizes;
  if (reader) {
    sizes = reader->sizes(pictures, sample.name);
    reader->expand(segments, sizes, sample.name);
  }
  TokenizedText tokenized;
  tokenized.ids = ids_of(segments.front().text, whole, tokenizer, settings, sample.name, &sample.cut);
  tokenized.is_label.assign(tokenized.ids.size(), 0);
  if (reader) reader->locate(tokenized, std::move(sizes), sample.name);
  sample.ids = std::move(tokenized.ids);
  sample.pictures = std::move(tokenized.pictures);
  sample.picture_files = std::move(pictures);
}

PromptedSample prompted(const Dataset::Prompt& prompt, const Tokenizer& tokenizer, const PromptSettings& settings,
                        int64_t index) {
  PromptedSample sample{.name = prompt.name, .id = prompt.id, .ids = {}, .references = {},
                        .picture = prompt.picture.empty() ? -1 : index, .cut = false};
  set_ids(prompt.text, prompt.whole, prompt.pictures, tokenizer, settings, sample);
  sample.instruction = settings.instructions.ids(prompt.text, prompt.name);
  return sample;
}

/// Adds the references that earlier samples did not have. Duplicates within one sample, such as equal answers of
/// several people, are kept.
void add_references(PromptedSample& sample, const std::vector<std::string>& references) {
  const std::vector<std::string> before = sample.references;
  for (const std::string& reference : references)
    if (std::find(before.begin(), before.end(), reference) == before.end()) sample.references.push_back(reference);
}

}  // namespace

PromptedSample prompt_of_sample(const Dataset& dataset, int64_t index, const Tokenizer& tokenizer,
                                const PromptSettings& settings) {
  const Dataset::Prompt prompt = dataset.read_prompt(index);
  PromptedSample sample = prompted(prompt, tokenizer, settings, index);
  add_references(sample, prompt.references);
  return sample;
}

std::vector<PromptedSample> prompts_of_dataset(const Dataset& dataset, const Tokenizer& tokenizer,
                                               const PromptSettings& settings, int64_t maximum,
                                               const std::function<void(const UserError&)>& bad) {
  std::vector<PromptedSample> samples;
  std::map<std::tuple<std::string, std::string, std::string>, size_t> indices;  // (picture, id, text) -> sample
  const int64_t count = maximum > 0 ? std::min(maximum, dataset.size()) : dataset.size();
  for (int64_t i = 0; i < count; ++i) try {
    const Dataset::Prompt prompt = dataset.read_prompt(i);
    const std::tuple key{prompt.picture, prompt.id, prompt.text};
    const auto same = prompt.picture.empty() ? indices.end() : indices.find(key);
    const size_t number = same == indices.end() ? samples.size() : same->second;
    if (number == samples.size()) {
      samples.push_back(prompted(prompt, tokenizer, settings, i));
      if (!prompt.picture.empty()) indices.emplace(key, number);
    }
    add_references(samples[number], prompt.references);
  } catch (const UserError& error) {
    if (!bad) throw;
    bad(error);
  }
  return samples;
}

std::vector<int32_t> prompt_of_text(const std::string& text, const Tokenizer& tokenizer, const PromptSettings& settings,
                                    const std::string& location) {
  return ids_of(text, false, tokenizer, settings, location, nullptr);
}

std::vector<int32_t> prompt_of_conversation(const Conversation& conversation, const Tokenizer& tokenizer,
                                            const TextSettings& texts, const PromptSettings& settings, const std::string& location) {
  return ids_of(render_prompt(conversation, texts, location), true, tokenizer, settings, location, nullptr);
}

PromptedSample prompt_with_pictures(const Conversation& conversation, std::vector<PictureFile> pictures, const Tokenizer& tokenizer,
                                    const TextSettings& texts, const PromptSettings& settings, const std::string& location) {
  PromptedSample sample{.name = location, .id = {}, .ids = {}, .references = {}};
  set_ids(render_prompt(conversation, texts, location), true, std::move(pictures), tokenizer, settings, sample);
  return sample;
}

Dataset::Prompt Dataset::read_prompt(int64_t index) const {
  const Sample sample = read(index);
  Prompt prompt{.name = sample.name, .id = "", .picture = sample.picture ? sample.name : "", .text = "", .whole = false,
                .references = {}};
  for (const Segment& segment : sample.segments)
    if (!segment.text.empty()) prompt.references.push_back(segment.text);
  return prompt;
}

Dataset::SplitGroup Dataset::split_group(int64_t index) const {
  try {
    const Prompt prompt = read_prompt(index);
    if (!prompt.picture.empty()) return {prompt.picture, false};
    return {prompt.text, true};
  } catch (const UserError&) {             // read() reports the error
    return {};
  }
}

}  // namespace blipft
