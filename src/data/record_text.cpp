// The text of a JSON record; see record_text.h.
#include "data/record_text.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "blipft/error.h"
#include "data/chat_template.h"
#include "io/json.h"

namespace blipft {
namespace {

using nlohmann::json;

std::string keys_of(const json& record) {
  std::string keys;
  for (const auto& item : record.items()) keys += (keys.empty() ? "\"" : ", \"") + item.key() + "\"";
  return keys.empty() ? "no keys" : brief(keys, 200);
}

std::string text_at(const json& object, const char* key, const std::string& place) {
  const json& value = object.at(key);
  BLIPFT_USER_CHECK(value.is_string(), place, ": key \"", key, "\" is ", io::brief(value), ", expected a string");
  return value.get<std::string>();
}

/// One pass, so that what an instruction holds is left as it is.
std::string filled(const std::string& style, const std::string& instruction, const std::string& input) {
  static const std::string instruction_mark = "{instruction}", input_mark = "{input}";
  std::string text;
  for (size_t at = 0; at < style.size();) {
    const bool is_instruction = style.compare(at, instruction_mark.size(), instruction_mark) == 0;
    const bool is_input = style.compare(at, input_mark.size(), input_mark) == 0;
    text += is_instruction ? instruction : is_input ? input : std::string(1, style[at]);
    at += is_instruction ? instruction_mark.size() : is_input ? input_mark.size() : 1;
  }
  return text;
}

ChatMessage message_of(const json& message, size_t number, const std::string& place) {
  const std::string here = concat(place, ": message ", number);
  BLIPFT_USER_CHECK(message.is_object(), here, " is ", io::brief(message), ", expected an object with \"role\" and ",
                    "\"content\"");
  for (const char* key : {"role", "content"})
    BLIPFT_USER_CHECK(message.contains(key), here, " has no key \"", key, "\"; found ", keys_of(message));
  const std::string role = text_at(message, "role", here);
  BLIPFT_USER_CHECK(role == "system" || role == "user" || role == "assistant", here, " is of role ",
                    io::brief(message["role"]), ", expected system, user or assistant");
  return {role, text_at(message, "content", here)};
}

void read_messages(const json& record, const TextSettings& settings, const std::string& place,
                   Dataset::Sample& sample) {
  const json& list = record["messages"];
  BLIPFT_USER_CHECK(list.is_array(), place, ": key \"messages\" is ", io::brief(list),
                    ", expected a list of {\"role\": ..., \"content\": ...}");
  BLIPFT_USER_CHECK(!list.empty(), place, ": key \"messages\" is an empty list, expected at least one message");
  std::vector<ChatMessage> messages;
  for (const json& message : list) messages.push_back(message_of(message, messages.size() + 1, place));
  sample.segments = render_chat(settings.chat_template, messages, settings, place);
  sample.whole = true;
}

void read_answer(const std::string& prompt, const std::string& answer, const TextSettings& settings,
                 Dataset::Sample& sample) {
  sample.segments = {{prompt, !settings.mask_prompt}, {answer, true}};
  sample.ends = settings.append_eos.value_or(true);
}

void read_instruction(const json& record, const TextSettings& settings, const std::string& place,
                      Dataset::Sample& sample) {
  const bool has_input = record.contains("input") && !record["input"].is_null();
  const std::string input = has_input ? text_at(record, "input", place) : "";
  const std::string prompt = prompt_of(settings.prompt_style, text_at(record, "instruction", place), input, place);
  read_answer(prompt, text_at(record, "output", place), settings, sample);
}

void read_prompt(const json& record, const TextSettings& settings, const std::string& place, Dataset::Sample& sample) {
  read_answer(text_at(record, "prompt", place), text_at(record, "completion", place), settings, sample);
}

void read_text(const json& record, const TextSettings& settings, const std::string& place, Dataset::Sample& sample) {
  sample.segments = {{text_at(record, "text", place)}};
  sample.ends = settings.append_eos;
}

struct Kind {
  std::vector<const char*> keys;            ///< all must be there
  void (*read)(const json&, const TextSettings&, const std::string& place, Dataset::Sample&);
};

const Kind kKinds[] = {{{"messages"}, read_messages},
                       {{"instruction", "output"}, read_instruction},
                       {{"prompt", "completion"}, read_prompt},
                       {{"text"}, read_text}};

}  // namespace

std::string prompt_of(const std::string& style, const std::string& instruction, const std::string& input,
                      const std::string& place) {
  if (style == "alpaca") {
    const std::string task = "Below is an instruction that describes a task";
    const std::string request = "Write a response that appropriately completes the request.\n\n";
    const std::string begin = "### Instruction:\n" + instruction + "\n\n", end = "### Response:\n";
    if (input.empty()) return task + ". " + request + begin + end;
    return task + ", paired with an input that provides further context. " + request + begin + "### Input:\n" + input +
           "\n\n" + end;
  }
  if (style == "none") return input.empty() ? instruction : instruction + "\n" + input;
  BLIPFT_USER_CHECK(input.empty() || style.find("{input}") != std::string::npos, place,
                    ": has an \"input\", for which data.prompt_style has no place: put {input} into it");
  return filled(style, instruction, input);
}

Dataset::Sample sample_of_record(const json& record, const TextSettings& settings, const std::string& place) {
  BLIPFT_USER_CHECK(record.is_object(), place, ": found a JSON ", record.type_name(), ", expected an object");
  Dataset::Sample sample;
  sample.name = place;
  for (const Kind& kind : kKinds) {
    if (!std::all_of(kind.keys.begin(), kind.keys.end(), [&](const char* key) { return record.contains(key); }))
      continue;
    kind.read(record, settings, place, sample);
    return sample;
  }
  throw UserError(concat(place, ": found ", keys_of(record), ", expected \"instruction\" and \"output\" (and perhaps ",
                         "\"input\"), or \"prompt\" and \"completion\", or \"messages\", or \"text\"; rename the ",
                         "keys"));
}

}  // namespace blipft
