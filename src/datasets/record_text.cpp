// The text of a JSON record; see record_text.h.
#include "datasets/record_text.h"

#include <algorithm>
#include <map>

#include <nlohmann/json.hpp>

#include "blipft/error.h"
#include "io/json.h"
#include "text/chat_template.h"

namespace blipft {
namespace {

using nlohmann::json;

std::string keys_of(const json& record) {
  std::string keys;
  for (const auto& item : record.items()) keys += (keys.empty() ? "\"" : ", \"") + item.key() + "\"";
  return keys.empty() ? "no keys" : brief(keys, 200);
}

std::string text_at(const json& object, const std::string& key, const std::string& place) {
  BLIPFT_USER_CHECK(object.contains(key), place, ": found ", keys_of(object), ", expected a key \"", key, "\" too");
  const json& value = object.at(key);
  const bool messages = value.is_array() && !value.empty() && value.front().is_object() && value.front().contains("content");
  BLIPFT_USER_CHECK(value.is_string(), place, ": key \"", key, "\" is ", io::brief(value), ", expected a string",
                    messages ? "; a conversation stands whole under the key \"messages\": put prompt and completion into one list" : "");
  return value.get<std::string>();
}

/// Returns a name in the form that data.keys accepts.
std::string quoted_name(const std::string& name) { return io::brief(json(name)); }

/// Replaces the marks in one pass, so that marks inside an instruction or input stay unchanged.
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

/// Returns the role's name in this program, or null for an unknown role.
const char* known_role(const std::string& role) {
  static const std::map<std::string, const char*> roles = {
      {"system", "system"}, {"user", "user"}, {"human", "user"}, {"assistant", "assistant"}, {"gpt", "assistant"}};
  const auto found = roles.find(role);
  return found == roles.end() ? nullptr : found->second;
}

/// Returns the key with this meaning in a message: the name that settings.keys has for it, else our default, else
/// ShareGPT's name.
std::string message_key(const json& message, const TextSettings& settings, const char* ours, const char* sharegpt) {
  const bool theirs = !settings.keys.contains(ours) && !message.contains(ours) && message.contains(sharegpt);
  return theirs ? sharegpt : name_of(settings, ours);
}

/// Returns the weight of a message: 0 or 1, as in fine-tuning records of other programs. The default is 1.
bool has_weight(const json& message, const TextSettings& settings, const std::string& here) {
  const std::string& key = name_of(settings, "weight");
  if (!message.contains(key) || message[key].is_null()) return true;
  const json& value = message[key];
  BLIPFT_USER_CHECK(value.is_number() && (value == 0 || value == 1), here, ": key \"", key, "\" is ",
                    io::brief(value), ", expected 0 (do not train on this answer) or 1");
  return value == 1;
}

ChatMessage message_of(const json& message, const TextSettings& settings, size_t number, const std::string& place) {
  const std::string here = concat(place, ": message ", number);
  BLIPFT_USER_CHECK(message.is_object(), here, " is ", io::brief(message), ", expected an object with \"role\" and ",
                    "\"content\"");
  const std::string role_key = message_key(message, settings, "role", "from");
  const std::string content_key = message_key(message, settings, "content", "value");
  for (const std::string& key : {role_key, content_key})
    BLIPFT_USER_CHECK(message.contains(key), here, " has no key \"", key, "\"; found ", keys_of(message),
                      "; say what they are called here, as in data.keys: {role: speaker, content: words}");
  const char* const role = known_role(text_at(message, role_key, here));
  BLIPFT_USER_CHECK(role, here, " is of role ", io::brief(message[role_key]), ", expected system, user (or human) or ",
                    "assistant (or gpt); the templates have no place for others: rename the role, or take the record ",
                    "out");
  return {role, text_at(message, content_key, here), has_weight(message, settings, here)};
}

std::vector<ChatMessage> messages_of(const json& record, const std::string& key, const TextSettings& settings,
                                     const std::string& place) {
  const json& list = record[key];
  BLIPFT_USER_CHECK(list.is_array(), place, ": key \"", key, "\" is ", io::brief(list),
                    ", expected a list of {\"role\": ..., \"content\": ...}");
  BLIPFT_USER_CHECK(!list.empty(), place, ": key \"", key, "\" is an empty list, expected at least one message");
  std::vector<ChatMessage> messages;
  for (const json& message : list) messages.push_back(message_of(message, settings, messages.size() + 1, place));
  return messages;
}

/// Return the key of the list of messages in a record.
std::string messages_key(const TextSettings& settings) { return name_of(settings, "messages"); }
std::string conversations_key(const TextSettings&) { return "conversations"; }

template <auto key_of>
void read_messages(const json& record, const TextSettings& settings, const std::string& place,
                   Dataset::Sample& sample) {
  const std::vector<ChatMessage> messages = messages_of(record, key_of(settings), settings, place);
  sample.segments = render_chat(settings.chat_template, messages, settings, place);
  sample.whole = true;
}

template <auto key_of>
void read_messages_prompt(const json& record, const TextSettings& settings, const std::string& place,
                          Dataset::Prompt& prompt) {
  std::vector<ChatMessage> messages = messages_of(record, key_of(settings), settings, place);
  const auto is_answer = [](const ChatMessage& message) { return message.role == "assistant" && message.learnt; };
  if (const auto last = std::find_if(messages.rbegin(), messages.rend(), is_answer); last != messages.rend()) {
    prompt.references = {last->content};
    messages.erase(last.base() - 1, messages.end());
  }
  BLIPFT_USER_CHECK(!messages.empty(), place, ": the conversation begins with the only answer that there is, so there is "
                    "nothing to answer; take the record out");
  prompt.text = render_prompt(settings.chat_template, messages, settings, place);
  prompt.whole = true;
}

void read_answer(const std::string& prompt, const std::string& answer, const TextSettings& settings,
                 Dataset::Sample& sample) {
  sample.segments = {{prompt, !settings.mask_prompt}, {answer, true}};
  sample.ends = settings.append_eos.value_or(true);
}

std::string instruction_prompt(const json& record, const TextSettings& settings, const std::string& place) {
  const std::string& input_key = name_of(settings, "input");
  const bool has_input = record.contains(input_key) && !record[input_key].is_null();
  const std::string input = has_input ? text_at(record, input_key, place) : "";
  return prompt_of(settings.prompt_style, text_at(record, name_of(settings, "instruction"), place), input, place);
}

void read_instruction(const json& record, const TextSettings& settings, const std::string& place,
                      Dataset::Sample& sample) {
  const std::string prompt = instruction_prompt(record, settings, place);
  read_answer(prompt, text_at(record, name_of(settings, "output"), place), settings, sample);
}

/// Sets the answer under `key` as the reference, if the record has one.
void read_reference(const json& record, const std::string& key, const std::string& place, Dataset::Prompt& prompt) {
  if (record.contains(key)) prompt.references = {text_at(record, key, place)};
}

void read_instruction_prompt(const json& record, const TextSettings& settings, const std::string& place,
                             Dataset::Prompt& prompt) {
  prompt.text = instruction_prompt(record, settings, place);
  read_reference(record, name_of(settings, "output"), place, prompt);
}

void read_prompt(const json& record, const TextSettings& settings, const std::string& place, Dataset::Sample& sample) {
  read_answer(text_at(record, name_of(settings, "prompt"), place),
              text_at(record, name_of(settings, "completion"), place), settings, sample);
}

void read_prompt_prompt(const json& record, const TextSettings& settings, const std::string& place,
                        Dataset::Prompt& prompt) {
  prompt.text = text_at(record, name_of(settings, "prompt"), place);
  read_reference(record, name_of(settings, "completion"), place, prompt);
}

void read_text(const json& record, const TextSettings& settings, const std::string& place, Dataset::Sample& sample) {
  sample.segments = {{text_at(record, name_of(settings, "text"), place)}};
  sample.ends = settings.append_eos;
}

void read_text_prompt(const json& record, const TextSettings& settings, const std::string& place,
                      Dataset::Prompt& prompt) {
  read_reference(record, name_of(settings, "text"), place, prompt);
}

struct Kind {
  std::vector<const char*> keys;            ///< required keys; for prompts only the first is required
  std::vector<const char*> more;            ///< optional keys of this kind
  void (*read)(const json&, const TextSettings&, const std::string& place, Dataset::Sample&);
  void (*read_prompt)(const json&, const TextSettings&, const std::string& place, Dataset::Prompt&);

  bool is_named(const TextSettings& settings) const {
    const auto named = [&](const char* key) { return settings.keys.contains(key); };
    return std::any_of(keys.begin(), keys.end(), named) || std::any_of(more.begin(), more.end(), named);
  }
  bool is_in(const json& record, const TextSettings& settings) const {
    const auto end = settings.for_prompts ? keys.begin() + 1 : keys.end();
    return std::all_of(keys.begin(), end, [&](const char* key) { return record.contains(name_of(settings, key)); });
  }
};

const Kind kKinds[] = {
    {{"messages"}, {"role", "content", "weight"}, read_messages<messages_key>, read_messages_prompt<messages_key>},
    {{"instruction", "output"}, {"input"}, read_instruction, read_instruction_prompt},
    {{"prompt", "completion"}, {}, read_prompt, read_prompt_prompt},
    {{"text"}, {}, read_text, read_text_prompt},
    {{"conversations"},
     {"role", "content", "weight"},
     read_messages<conversations_key>,
     read_messages_prompt<conversations_key>}};

/// Returns a value of data.keys that may fit such a record, ready to be copied.
std::string suggested_keys(const json& record) {
  const auto first_of = [&](std::initializer_list<const char*> names) -> std::string {
    for (const char* name : names)
      if (record.contains(name) && record[name].is_string()) return name;
    return "NAME";
  };
  if (record.size() == 1) return concat("{text: ", quoted_name(record.begin().key()), "}");
  if (record.contains("instruction"))
    return concat("{output: ", first_of({"response", "answer", "completion", "target", "output_text"}), "}");
  return concat("{prompt: ", first_of({"prompt", "question", "query", "input", "source", "article", "instruction"}),
                ", completion: ",
                first_of({"completion", "answer", "response", "output", "target", "summary", "chosen"}), "}");
}

/// Throws UserError: the record does not have the keys of any kind.
[[noreturn]] void refuse_keys(const json& record, const TextSettings& settings, bool named, const std::string& place) {
  if (!named)
    throw UserError(concat(place, ": found ", keys_of(record), ", expected \"instruction\" and \"output\" (and perhaps ",
                           "\"input\"), or \"prompt\" and \"completion\", or \"messages\" or \"conversations\", or ",
                           "\"text\"; say what they are called here: data.keys=", suggested_keys(record), " (in quotes ",
                           "on a command line)"));
  std::string expected;
  for (const Kind& kind : kKinds) {
    if (!kind.is_named(settings)) continue;
    std::string keys;
    for (const char* key : kind.keys) keys += concat(keys.empty() ? "\"" : " and \"", name_of(settings, key), "\"");
    expected += (expected.empty() ? "" : ", or ") + keys;
  }
  throw UserError(concat(place, ": found ", keys_of(record), ", expected ", expected, " by data.keys"));
}

}  // namespace

std::string prompt_of(const ChoiceOrText<PromptStyle>& style, const std::string& instruction, const std::string& input,
                      const std::string& place) {
  if (style == PromptStyle::alpaca) {
    const std::string task = "Below is an instruction that describes a task";
    const std::string request = "Write a response that appropriately completes the request.\n\n";
    const std::string begin = "### Instruction:\n" + instruction + "\n\n", end = "### Response:\n";
    if (input.empty()) return task + ". " + request + begin + end;
    return task + ", paired with an input that provides further context. " + request + begin + "### Input:\n" + input +
           "\n\n" + end;
  }
  if (style == PromptStyle::none) return input.empty() ? instruction : instruction + "\n" + input;
  BLIPFT_USER_CHECK(input.empty() || style.text.find("{input}") != std::string::npos, place,
                    ": has an \"input\", for which data.prompt_style has no place: put {input} into it");
  return filled(style.text, instruction, input);
}

namespace {

/// Returns the kind that applies to a record.
const Kind& kind_of(const json& record, const TextSettings& settings, const std::string& place) {
  BLIPFT_USER_CHECK(record.is_object(), place, ": found a JSON ", record.type_name(), ", expected an object");
  const bool named = std::any_of(std::begin(kKinds), std::end(kKinds),
                                 [&](const Kind& kind) { return kind.is_named(settings); });
  for (const Kind& kind : kKinds) {
    if ((named && !kind.is_named(settings)) || !kind.is_in(record, settings)) continue;
    return kind;
  }
  refuse_keys(record, settings, named, place);
}

}  // namespace

Dataset::Sample sample_of_record(const json& record, const TextSettings& settings, const std::string& place) {
  Dataset::Sample sample;
  sample.name = place;
  kind_of(record, settings, place).read(record, settings, place, sample);
  return sample;
}

Dataset::Prompt prompt_of_record(const json& record, const TextSettings& settings, const std::string& place) {
  Dataset::Prompt prompt;
  prompt.name = place;
  kind_of(record, settings, place).read_prompt(record, settings, place, prompt);
  prompt.id = record_id(record);
  return prompt;
}

bool has_prompted_text(const json& record, const TextSettings& settings) {
  const auto has = [&](const char* key) { return record.contains(name_of(settings, key)); };
  return std::any_of(std::begin(kKinds), std::end(kKinds), [&](const Kind& kind) {
    return std::string_view(kind.keys.front()) != "text" && std::all_of(kind.keys.begin(), kind.keys.end(), has);
  });
}

std::string prompt_group_of_record(const json& record, const TextSettings& settings, const std::string& place) {
  std::vector<const char*> keys = kind_of(record, settings, place).keys;
  if (std::string_view(keys.front()) == "instruction") keys.push_back("input");
  json parts = json::array();
  for (const std::string_view key : keys) {
    if (key == "output" || key == "completion") continue;
    const std::string name = key == "conversations" ? std::string(key) : name_of(settings, std::string(key));
    json part = record.contains(name) ? record[name] : json("");
    if (part.is_array()) {                 // for a conversation: everything before the last answer
      const auto is_answer = [&](const json& message) {
        const json role = message.is_object() ? message.value(message_key(message, settings, "role", "from"), json()) : json();
        return role == "assistant" || role == "gpt";
      };
      json::iterator last = part.end();
      while (last != part.begin() && !is_answer(*(last - 1))) --last;
      if (last != part.begin()) part.erase(last - 1, part.end());
    }
    parts.push_back(std::move(part));
  }
  const bool is_empty = std::all_of(parts.begin(), parts.end(), [](const json& part) { return part.empty() || part == ""; });
  return is_empty ? "" : parts.dump(-1, ' ', false, json::error_handler_t::replace);
}

namespace {

using Names = std::vector<const char*>;

/// Returns the first of `names` that a JSON object has with a value that is not empty, and that settings.keys does not
/// use.
std::string first_filled(const json& object, const Names& names, const TextSettings& settings) {
  for (const char* name : names) {
    const auto found = object.find(name);
    if (found == object.end() || found->is_null() || *found == "" || (found->is_structured() && found->empty())) continue;
    const auto is_named = [&](const auto& key) { return key.second == name; };
    if (std::none_of(settings.keys.begin(), settings.keys.end(), is_named)) return name;
  }
  return "";
}

}  // namespace

std::string unrendered_key_of_record(const json& record, const TextSettings& settings, const std::string& place) {
  static const Names of_message = {"tool_calls", "function_call", "reasoning_content", "reasoning", "thinking"};
  static const Names of_prompt = {"tools", "functions", "system", "system_prompt", "history"};
  static const Names of_instruction = {"tools", "functions", "system", "system_prompt", "history", "context"};
  const Kind& kind = kind_of(record, settings, place);
  const std::string_view first = kind.keys.front();
  if (first == "text") return "";          // the record is the text, so nothing is unrendered
  if (first == "instruction") return first_filled(record, of_instruction, settings);
  std::string key = first_filled(record, of_prompt, settings);
  if (first == "prompt" || !key.empty()) return key;
  const json& messages = record[first == "messages" ? messages_key(settings) : conversations_key(settings)];
  for (size_t i = 0; i < messages.size() && key.empty() && messages.is_array(); ++i)
    if (messages[i].is_object()) key = first_filled(messages[i], of_message, settings);
  return key;
}

void UnrenderedKeys::look_at(const json& record, const std::string& place) {
  ++records_;
  const bool asks = record.is_object() && (record.contains(name_of(settings_, "prompt")) || record.contains("question"));
  const std::string key = asks ? first_filled(record, {"history", "system", "system_prompt"}, settings_) : "";
  if (key.empty()) return;
  if (found_++ == 0) first_key_ = key, first_place_ = place;
}

void UnrenderedKeys::check() const {
  if (found_ > 0) refuse_unrendered(first_place_, first_key_, found_, records_);
}

namespace {

std::string unrendered_advice(const std::string& key) {
  const char* const other = "remove the key from the records, or remove these records.";
  if (key == "context") return concat("Use it as the input with data.keys={input: context} (in quotes on a command line), or ", other);
  if (key.starts_with("system")) return concat("Put its text into a message of the role system or into the prompt, or ", other);
  if (key == "history") return concat("Put the earlier turns into \"messages\" or into the prompt, or ", other);
  return concat("Put its text, as the model expects it, into the content or prompt, or ", other);
}

}  // namespace

void refuse_unrendered(const std::string& place, const std::string& key, int64_t found, int64_t records) {
  throw UserError(concat(place, ": key \"", key, "\": found training data that no prompt style or chat template renders, in ",
                         found, " of ", counted(records, "record"), ". ", unrendered_advice(key)));
}

std::string record_id(const json& record) {
  for (const char* key : {"question_id", "image_id", "id"})
    if (const auto found = record.find(key); found != record.end() && (found->is_number_integer() || found->is_string()))
      return found->dump();
  return {};
}

std::string name_of(const TextSettings& settings, const std::string& key) {
  const auto found = settings.keys.find(key);
  return found == settings.keys.end() ? key : found->second;
}

}  // namespace blipft
