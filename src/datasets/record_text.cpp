// The text of a JSON record; see record_text.h.
#include "datasets/record_text.h"

#include <algorithm>
#include <set>

#include <nlohmann/json.hpp>

#include "blipft/error.h"
#include "io/json.h"
#include "datasets/record_chat.h"
#include "datasets/record_pictures.h"

namespace blipft {
namespace {

using Json = nlohmann::ordered_json;

/// A name as data.keys takes it.
std::string quoted_name(const std::string& name) { return io::brief(Json(name)); }

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

/// Returns the key under which the records have the list of messages.
std::string messages_key(const TextSettings& settings) { return name_of(settings, "messages"); }
std::string conversations_key(const TextSettings&) { return "conversations"; }

/// The conversation under `key`, or of lists under "prompt" and "completion" if the key is empty; with its pictures if the
/// model reads any in texts.
PictureConversation conversation_in(const Json& record, const std::string& key, const TextSettings& settings,
                                    const std::string& location) {
  if (settings.pictures_in_texts) return picture_conversation_of(record, key, settings, location);
  return {key.empty() ? conversation_of_prompt(record, settings, location) : conversation_of(record, key, settings, location), {}};
}

std::vector<PictureFile> files_of(const std::vector<std::string>& names, const TextSettings& settings, const std::string& location) {
  std::vector<PictureFile> files;
  for (const std::string& name : names) {
    const std::string path = picture_path(name, settings.pictures, settings, location);
    files.push_back({concat(location, ": ", path), path});
  }
  return files;
}

void read_conversation(const PictureConversation& read, const TextSettings& settings, const std::string& location,
                       Dataset::Sample& sample) {
  sample.segments = render_chat(read.conversation, settings, location);
  sample.whole = true;
  sample.pictures = files_of(read.pictures, settings, location);
}

/// The messages before the last answer that is trained on; that answer is the reference.
void read_conversation_prompt(PictureConversation read, const TextSettings& settings, const std::string& location,
                              Dataset::Prompt& prompt) {
  Conversation& conversation = read.conversation;
  Json& messages = conversation.messages;
  size_t last = messages.size();
  while (last > 0 && !conversation.trains[last - 1]) --last;
  if (last > 0) {
    prompt.references = {content_text(messages[last - 1])};
    messages.erase(messages.begin() + static_cast<std::ptrdiff_t>(last) - 1, messages.end());
  }
  BLIPFT_USER_CHECK(!messages.empty(), location, ": the conversation begins with the only answer that there is, so there is "
                    "nothing to answer; take the record out");
  prompt.text = render_prompt(conversation, settings, location);
  prompt.whole = true;
  read.pictures.resize(count_pictures(messages));
  prompt.pictures = files_of(read.pictures, settings, location);
}

template <auto key_of>
void read_messages(const Json& record, const TextSettings& settings, const std::string& location, Dataset::Sample& sample) {
  read_conversation(conversation_in(record, key_of(settings), settings, location), settings, location, sample);
}

template <auto key_of>
void read_messages_prompt(const Json& record, const TextSettings& settings, const std::string& location,
                          Dataset::Prompt& prompt) {
  read_conversation_prompt(conversation_in(record, key_of(settings), settings, location), settings, location, prompt);
}

void read_answer(const std::string& prompt, const std::string& answer, const TextSettings& settings,
                 Dataset::Sample& sample) {
  sample.segments = {{prompt, !settings.mask_prompt}, {answer, true}};
  sample.ends = settings.append_eos.value_or(true);
}

std::string instruction_prompt(const Json& record, const TextSettings& settings, const std::string& location) {
  const std::string& input_key = name_of(settings, "input");
  const bool has_input = record.contains(input_key) && !record[input_key].is_null();
  const std::string input = has_input ? text_at(record, input_key, location) : "";
  return prompt_of(settings.prompt_style, text_at(record, name_of(settings, "instruction"), location), input, location);
}

void read_instruction(const Json& record, const TextSettings& settings, const std::string& location,
                      Dataset::Sample& sample) {
  if (settings.prompt_style == PromptStyle::chat)
    return read_conversation({conversation_of_instruction(record, settings, location), {}}, settings, location, sample);
  const std::string prompt = instruction_prompt(record, settings, location);
  read_answer(prompt, text_at(record, name_of(settings, "output"), location), settings, sample);
}

/// The answer under `key`, where there is one.
void read_reference(const Json& record, const std::string& key, const std::string& location, Dataset::Prompt& prompt) {
  if (record.contains(key)) prompt.references = {text_at(record, key, location)};
}

void read_instruction_prompt(const Json& record, const TextSettings& settings, const std::string& location,
                             Dataset::Prompt& prompt) {
  if (settings.prompt_style == PromptStyle::chat)
    return read_conversation_prompt({conversation_of_instruction(record, settings, location), {}}, settings, location, prompt);
  prompt.text = instruction_prompt(record, settings, location);
  read_reference(record, name_of(settings, "output"), location, prompt);
}

/// A prompt and its completion as lists of messages.
bool is_conversation(const Json& record, const TextSettings& settings) {
  const std::string completion = name_of(settings, "completion");
  return record[name_of(settings, "prompt")].is_array() && (!record.contains(completion) || record[completion].is_array());
}

void read_prompt(const Json& record, const TextSettings& settings, const std::string& location, Dataset::Sample& sample) {
  if (is_conversation(record, settings))
    return read_conversation(conversation_in(record, "", settings, location), settings, location, sample);
  read_answer(text_at(record, name_of(settings, "prompt"), location),
              text_at(record, name_of(settings, "completion"), location), settings, sample);
}

void read_prompt_prompt(const Json& record, const TextSettings& settings, const std::string& location,
                        Dataset::Prompt& prompt) {
  if (is_conversation(record, settings))
    return read_conversation_prompt(conversation_in(record, "", settings, location), settings, location, prompt);
  prompt.text = text_at(record, name_of(settings, "prompt"), location);
  read_reference(record, name_of(settings, "completion"), location, prompt);
}

void read_text(const Json& record, const TextSettings& settings, const std::string& location, Dataset::Sample& sample) {
  sample.segments = {{text_at(record, name_of(settings, "text"), location)}};
  sample.ends = settings.append_eos;
}

void read_text_prompt(const Json& record, const TextSettings& settings, const std::string& location,
                      Dataset::Prompt& prompt) {
  read_reference(record, name_of(settings, "text"), location, prompt);
}

struct Kind {
  std::vector<const char*> keys;            ///< all must be there; of a prompt the first
  std::vector<const char*> more;            ///< others of this kind, which settings.keys may name
  void (*read)(const Json&, const TextSettings&, const std::string& location, Dataset::Sample&);
  void (*read_prompt)(const Json&, const TextSettings&, const std::string& location, Dataset::Prompt&);

  bool is_named(const TextSettings& settings) const {
    const auto named = [&](const char* key) { return settings.keys.contains(key); };
    return std::any_of(keys.begin(), keys.end(), named) || std::any_of(more.begin(), more.end(), named);
  }
  bool is_in(const Json& record, const TextSettings& settings) const {
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

/// The value of data.keys that may suit such a record, ready to be given.
std::string suggested_keys(const Json& record) {
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

/// None of the kinds' keys are in the record.
[[noreturn]] void refuse_keys(const Json& record, const TextSettings& settings, bool named, const std::string& location) {
  if (!named)
    throw UserError(concat(location, ": found ", keys_of(record), ", expected \"instruction\" and \"output\" (and perhaps ",
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
  throw UserError(concat(location, ": found ", keys_of(record), ", expected ", expected, " by data.keys"));
}

}  // namespace

std::string prompt_of(const ChoiceOrText<PromptStyle>& style, const std::string& instruction, const std::string& input,
                      const std::string& location) {
  if (style == PromptStyle::alpaca) {
    const std::string task = "Below is an instruction that describes a task";
    const std::string request = "Write a response that appropriately completes the request.\n\n";
    const std::string begin = "### Instruction:\n" + instruction + "\n\n", end = "### Response:\n";
    if (input.empty()) return task + ". " + request + begin + end;
    return task + ", paired with an input that provides further context. " + request + begin + "### Input:\n" + input +
           "\n\n" + end;
  }
  if (style == PromptStyle::none) return input.empty() ? instruction : instruction + "\n" + input;
  BLIPFT_USER_CHECK(input.empty() || style.text.find("{input}") != std::string::npos, location,
                    ": has an \"input\", for which data.prompt_style has no place: put {input} into it");
  return filled(style.text, instruction, input);
}

namespace {

/// The kind that counts for a record.
const Kind& kind_of(const Json& record, const TextSettings& settings, const std::string& location) {
  BLIPFT_USER_CHECK(record.is_object(), location, ": found a JSON ", record.type_name(), ", expected an object");
  const bool named = std::any_of(std::begin(kKinds), std::end(kKinds),
                                 [&](const Kind& kind) { return kind.is_named(settings); });
  for (const Kind& kind : kKinds) {
    if ((named && !kind.is_named(settings)) || !kind.is_in(record, settings)) continue;
    return kind;
  }
  refuse_keys(record, settings, named, location);
}

/// Throws UserError if a record has a picture that its sample or prompt, with `pictures`, does not have.
void check_pictures(const Json& record, const TextSettings& settings, const std::vector<PictureFile>& pictures,
                    const std::string& location) {
  if (!(settings.pictures_in_texts || settings.refuses_pictures) || !pictures.empty()) return;
  if (!record.contains("image") && !record.contains("images")) return;
  if (!RecordPictures(record, location).any()) return;
  throw UserError(concat(location, ": found a picture, ",
                         settings.refuses_pictures
                             ? "and with model.pictures: false the model reads texts alone. Set model.pictures: true, or remove "
                               "the pictures."
                             : "expected one only in a record of messages, where <image> in a message or a part {\"type\": "
                               "\"image\"} stands for it. Write the record as \"messages\"."));
}

}  // namespace

Dataset::Sample sample_of_record(const Json& record, const TextSettings& settings, const std::string& location) {
  Dataset::Sample sample;
  sample.name = location;
  kind_of(record, settings, location).read(record, settings, location, sample);
  check_pictures(record, settings, sample.pictures, location);
  return sample;
}

Dataset::Prompt prompt_of_record(const Json& record, const TextSettings& settings, const std::string& location) {
  Dataset::Prompt prompt;
  prompt.name = location;
  const Kind& kind = kind_of(record, settings, location);
  kind.read_prompt(record, settings, location, prompt);
  // A prompt of messages ends before the answer, and pictures may stand behind it. Their reader checks all of them.
  const std::string_view key = kind.keys.front();
  if (key != "messages" && key != "conversations") check_pictures(record, settings, prompt.pictures, location);
  prompt.id = record_id(record);
  return prompt;
}

bool has_prompted_text(const nlohmann::json& record, const TextSettings& settings) {
  const auto has = [&](const char* key) { return record.contains(name_of(settings, key)); };
  return std::any_of(std::begin(kKinds), std::end(kKinds), [&](const Kind& kind) {
    return std::string_view(kind.keys.front()) != "text" && std::all_of(kind.keys.begin(), kind.keys.end(), has);
  });
}

std::string prompt_group_of_record(const Json& ordered, const TextSettings& settings, const std::string& location) {
  using nlohmann::json;
  const json record = ordered;             // sorted: the same prompt is the same group
  std::vector<const char*> keys = kind_of(ordered, settings, location).keys;
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

/// The first of `names` that a JSON object has, with a value that is not empty.
template <class AnyJson>
std::string first_filled(const AnyJson& object, const Names& names, const TextSettings& settings) {
  for (const char* name : names) {
    const auto found = object.find(name);
    if (found == object.end() || found->is_null() || *found == "" || (found->is_structured() && found->empty())) continue;
    const auto is_named = [&](const auto& key) { return key.second == name; };
    if (std::none_of(settings.keys.begin(), settings.keys.end(), is_named)) return name;
  }
  return "";
}

}  // namespace

std::string unrendered_key_of_record(const Json& record, const TextSettings& settings, const std::string& location) {
  const Kind& kind = kind_of(record, settings, location);
  const std::string_view first = kind.keys.front();
  const auto unrendered = [&](const Json& object, Names names) {
    std::erase_if(names, [&](const char* name) { return chat_renders(name, settings); });
    return first_filled(object, names, settings);
  };
  if (first == "text") return "";          // it is the whole text
  if (first == "instruction" && settings.prompt_style == PromptStyle::chat) return unrendered(record, {"tools", "functions", "system_prompt", "context"});
  if (first == "instruction") return first_filled(record, {"tools", "functions", "system", "system_prompt", "history", "context"}, settings);
  if (first == "prompt" && !is_conversation(record, settings))
    return first_filled(record, {"tools", "functions", "system", "system_prompt", "history"}, settings);
  std::string key = unrendered(record, {"tools", "functions", "system_prompt", "history"});
  const auto look_at = [&](const std::string& list) {
    if (!record.contains(list) || !record[list].is_array()) return;
    for (const Json& message : record[list])
      if (message.is_object() && key.empty())
        key = unrendered(message, {"tool_calls", "function_call", "reasoning_content", "reasoning", "thinking"});
  };
  if (first == "prompt") look_at(name_of(settings, "prompt")), look_at(name_of(settings, "completion"));
  else look_at(first == "messages" ? messages_key(settings) : conversations_key(settings));
  return key;
}

std::vector<std::string> unread_keys_of_record(const Json& record, const TextSettings& settings, const std::string& location) {
  const Kind& kind = kind_of(record, settings, location);
  const std::string_view first = kind.keys.front();
  const bool chat = first == "messages" || first == "conversations" || (first == "prompt" && is_conversation(record, settings)) ||
                    (first == "instruction" && settings.prompt_style == PromptStyle::chat);
  std::set<std::string> read;
  for (const char* key : kind.keys) read.insert(name_of(settings, key));
  if (first == "instruction") read.insert({name_of(settings, "input"), chat ? "history" : ""});
  if (chat) read.insert({"system", "tools"});
  if (chat && settings.pictures_in_texts) read.insert({"image", "images"});
  std::vector<std::string> unread;
  for (const auto& item : record.items())
    if (!read.contains(item.key())) unread.push_back(item.key());
  return unread;
}

std::string UnreadKeys::text() const {
  std::string text;
  for (const auto& [key, count] : counts_) text += concat(text.empty() ? "" : ", ", brief(key), " (", count, ")");
  return brief(text, 500);
}

void UnrenderedKeys::look_at(const nlohmann::json& record, const std::string& location) {
  ++records_;
  const bool has_prompts = record.is_object() && (record.contains(name_of(settings_, "prompt")) || record.contains("question"));
  const std::string key = has_prompts ? first_filled(record, {"history", "system", "system_prompt"}, settings_) : "";
  if (key.empty()) return;
  if (found_++ == 0) first_key_ = key, first_location_ = location;
}

void UnrenderedKeys::check() const {
  if (found_ > 0) refuse_unrendered(first_location_, first_key_, found_, records_);
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

void refuse_unrendered(const std::string& location, const std::string& key, int64_t found, int64_t records) {
  throw UserError(concat(location, ": key \"", key, "\": found training data that no prompt style or chat template renders, in ",
                         found, " of ", counted(records, "record"), ". ", unrendered_advice(key)));
}

template <class AnyJson>
std::string record_id(const AnyJson& record) {
  for (const char* key : {"question_id", "image_id", "id"})
    if (const auto found = record.find(key); found != record.end() && (found->is_number_integer() || found->is_string()))
      return found->dump();
  return {};
}
template std::string record_id(const nlohmann::json&);
template std::string record_id(const nlohmann::ordered_json&);

}  // namespace blipft
