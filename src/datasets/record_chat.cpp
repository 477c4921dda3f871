// Conversations in JSON records; see record_chat.h.
#include "datasets/record_chat.h"

#include <algorithm>
#include <map>

#include "blipft/error.h"
#include "datasets/record_pictures.h"
#include "io/json.h"

namespace blipft {
namespace {

using Json = nlohmann::ordered_json;

/// The role as templates know it; null: there is no such role in a conversation.
const char* known_role(const std::string& role) {
  static const std::map<std::string, const char*> roles = {{"system", "system"},
                                                           {"user", "user"},
                                                           {"human", "user"},
                                                           {"assistant", "assistant"},
                                                           {"gpt", "assistant"},
                                                           {"developer", "developer"},
                                                           {"tool", "tool"},
                                                           {"observation", "tool"},
                                                           {"function", "function"},
                                                           {"ipython", "ipython"},
                                                           {"function_call", "assistant"}};
  const auto found = roles.find(role);
  return found == roles.end() ? nullptr : found->second;
}

bool is_filled(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && !found->is_null() &&
         !(found->is_string() && found->get_ref<const std::string&>().empty()) &&
         !(found->is_structured() && found->empty());
}

/// Weights are 0 or 1, as in the records that other programs fine-tune chat models on.
bool has_weight(const Json& message, const TextSettings& settings, const std::string& here) {
  const std::string& key = name_of(settings, "weight");
  if (!message.contains(key) || message[key].is_null()) return true;
  const Json& value = message[key];
  BLIPFT_USER_CHECK(value.is_number() && (value == 0 || value == 1), here, ": key \"", key, "\" is ", io::brief(value),
                    ", expected 0 (do not train on this answer) or 1");
  return value == 1;
}

/// {"name", "arguments"}, or a list of them, perhaps as a text that is JSON, as tool_calls have them.
Json tool_calls_of(const Json& value, const std::string& here) {
  const Json calls = value.is_string() ? io::parse_json<Json>(value.get<std::string>(), here) : value;
  Json out = Json::array();
  for (const Json& call : calls.is_array() ? calls : Json::array({calls})) {
    BLIPFT_USER_CHECK(call.is_object() && call.contains("name"), here, ": found the call ", io::brief(call),
                      ", expected {\"name\": ..., \"arguments\": {...}}");
    out.push_back({{"type", "function"}, {"function", call}});
  }
  return out;
}

/// A content as templates read it: lists of parts become a text where the template does not read parts.
Json content_of(const Json& given, const std::string& key, bool may_be_absent, const std::string& role,
                const TextSettings& settings, const std::string& here, RecordPictures* pictures) {
  const Json value = pictures ? pictures->parts_of(given, here) : given;
  if (value.is_string() || (value.is_null() && may_be_absent) || (value.is_object() && role == "tool")) return value;
  const auto is_picture = [&](const Json& part) { return pictures && part.value("type", Json("text")) == "image"; };
  const bool parts = value.is_array() && std::all_of(value.begin(), value.end(), [&](const Json& part) {
                       return part.is_object() && (is_picture(part) || (part.value("type", Json("text")) == "text" &&
                                                   part.contains("text") && part["text"].is_string()));
                     });
  BLIPFT_USER_CHECK(parts, here, ": key \"", key, "\" is ", io::brief(value),
                    ", expected a string, or a list of parts {\"type\": \"text\", "
                    "\"text\": ...}");
  if (chat_renders("text", settings) && chat_renders("type", settings)) return value;
  if (std::any_of(value.begin(), value.end(), is_picture)) check_template_of_pictures(settings, here);
  return content_text({{"content", value}});
}

Json message_of(const Json& message, const TextSettings& settings, const std::string& here, RecordPictures* pictures) {
  BLIPFT_USER_CHECK(message.is_object(), here, " is ", io::brief(message), ", expected an object with \"role\" and ",
                    "\"content\"");
  const std::string role_key = message_key(message, settings, "role", "from");
  const std::string content_key = message_key(message, settings, "content", "value");
  const bool calls = is_filled(message, "tool_calls") || is_filled(message, "function_call");
  for (const std::string& key : {role_key, content_key})
    BLIPFT_USER_CHECK(message.contains(key) || (calls && key == content_key), here, " has no key \"", key, "\"; found ",
                      keys_of(message),
                      "; say what they are called here, as in data.keys: {role: speaker, content: words}");
  const std::string given = text_at(message, role_key, here);
  const char* const role = known_role(given);
  BLIPFT_USER_CHECK(role, here, " is of role ", io::brief(message[role_key]),
                    ", expected system, developer, user (or human), ",
                    "assistant (or gpt, function_call), tool (or observation), function or ipython. Rename the role, "
                    "or remove the record.");
  Json out = Json::object();
  for (const auto& item : message.items()) {
    if (item.key() == role_key) out["role"] = role;
    else if (item.key() == content_key && given == "function_call")
      out["content"] = "", out["tool_calls"] = tool_calls_of(item.value(), here);
    else if (item.key() == content_key)
      out["content"] = content_of(item.value(), content_key, calls, role, settings, here, pictures);
    else if (item.key() == "function_call" && !item.value().is_null())
      out["tool_calls"] = tool_calls_of(item.value(), here);
    else if (item.key() != name_of(settings, "weight")) out[item.key()] = item.value();
  }
  return out;
}

void add_messages(const Json& list, const std::string& key, const TextSettings& settings, const std::string& location,
                  RecordPictures* pictures, Conversation& out) {
  BLIPFT_USER_CHECK(list.is_array(), location, ": key \"", key, "\" is ", io::brief(list),
                    ", expected a list of {\"role\": ..., \"content\": ...}");
  BLIPFT_USER_CHECK(!list.empty(), location, ": key \"", key, "\" is an empty list, expected at least one message");
  for (const Json& message : list) {
    const std::string here = concat(location, ": message ", out.messages.size() + 1);
    out.messages.push_back(message_of(message, settings, here, pictures));
    out.trains.push_back(out.messages.back()["role"] == "assistant" && has_weight(message, settings, here));
  }
}

void add_message(const char* role, const std::string& content, Conversation& out) {
  out.messages.push_back({{"role", role}, {"content", content}});
  out.trains.push_back(std::string_view(role) == "assistant");
}

/// "system" and "tools" of the record.
void add_setting(const Json& record, const std::string& location, Conversation& out) {
  if (is_filled(record, "system")) add_message("system", text_at(record, "system", location), out);
  if (!is_filled(record, "tools")) return;
  const Json& tools = record["tools"];
  out.tools =
      tools.is_string() ? io::parse_json<Json>(tools.get<std::string>(), concat(location, ": key \"tools\"")) : tools;
  BLIPFT_USER_CHECK(out.tools.is_array(), location, ": key \"tools\" is ", io::brief(tools), ", expected a list of tools");
  if (out.tools.empty()) out.tools = nullptr;
}

}  // namespace

Conversation conversation_of(const Json& record, const std::string& key, const TextSettings& settings,
                             const std::string& location, RecordPictures* pictures) {
  Conversation out;
  add_setting(record, location, out);
  add_messages(record[key], key, settings, location, pictures, out);
  const bool twice = is_filled(record, "system") && out.messages[1]["role"] == "system";
  BLIPFT_USER_CHECK(!twice, location,
                    ": found a key \"system\" and a first message of role system, expected one of them. Remove one.");
  return out;
}

Conversation conversation_of_prompt(const Json& record, const TextSettings& settings, const std::string& location,
                                    RecordPictures* pictures) {
  Conversation out;
  add_setting(record, location, out);
  const std::string prompt = name_of(settings, "prompt"), completion = name_of(settings, "completion");
  add_messages(record[prompt], prompt, settings, location, pictures, out);
  std::fill(out.trains.begin(), out.trains.end(), false);
  if (record.contains(completion)) add_messages(record[completion], completion, settings, location, pictures, out);
  return out;
}

Conversation conversation_of_instruction(const Json& record, const TextSettings& settings, const std::string& location) {
  Conversation out;
  add_setting(record, location, out);
  const Json history = is_filled(record, "history") ? record["history"] : Json::array();
  for (const Json& pair : history) {
    BLIPFT_USER_CHECK(pair.is_array() && pair.size() == 2 && pair[0].is_string() && pair[1].is_string(), location,
                      ": key \"history\" holds ", io::brief(pair),
                      ", expected pairs of texts: what a user said and the answer");
    add_message("user", pair[0], out);
    add_message("assistant", pair[1], out);
  }
  const std::string instruction = text_at(record, name_of(settings, "instruction"), location),
                    input = name_of(settings, "input");
  const std::string more = record.contains(input) && !record[input].is_null() ? text_at(record, input, location) : "";
  add_message("user", more.empty() ? instruction : instruction + "\n" + more, out);
  if (const std::string output = name_of(settings, "output"); record.contains(output))
    add_message("assistant", text_at(record, output, location), out);
  return out;
}

void check_template_of_pictures(const TextSettings& settings, const std::string& here) {
  BLIPFT_USER_CHECK(!settings.chat_template || (chat_renders("text", settings) && chat_renders("type", settings)), here,
                    " has a picture, but the chat template reads texts alone. Choose the template of the model's folder ",
                    "with data.chat_template: auto.");
}

bool chat_renders(const std::string& key, const TextSettings& settings) {
  const auto reads = [&](const char* name) {
    return (settings.chat_template && settings.chat_template->reads(name)) ||
           (settings.tool_template && settings.tool_template->reads(name));
  };
  if (key == "reasoning_content" || key == "reasoning" || key == "thinking")
    return reads("reasoning_content") || reads("thinking") || reads("reasoning");
  return reads(key == "function_call" ? "tool_calls" : key.c_str());
}

std::string text_at(const Json& object, const std::string& key, const std::string& location) {
  BLIPFT_USER_CHECK(object.contains(key), location, ": found ", keys_of(object), ", expected a key \"", key, "\" too");
  const Json& value = object.at(key);
  const bool messages =
      value.is_array() && !value.empty() && value.front().is_object() && value.front().contains("content");
  BLIPFT_USER_CHECK(
      value.is_string(), location, ": key \"", key, "\" is ", io::brief(value), ", expected a string",
      messages
          ? "; a conversation has lists under both \"prompt\" and \"completion\", or stands whole under \"messages\""
          : "");
  return value.get<std::string>();
}

std::string keys_of(const Json& record) {
  std::vector<std::string> names;
  for (const auto& item : record.items()) names.push_back(item.key());
  std::sort(names.begin(), names.end());
  std::string keys;
  for (const std::string& name : names) keys += (keys.empty() ? "\"" : ", \"") + name + "\"";
  return keys.empty() ? "no keys" : brief(keys, 200);
}

std::string message_key(const Json& message, const TextSettings& settings, const char* ours, const char* sharegpt) {
  const bool theirs = !settings.keys.contains(ours) && !message.contains(ours) && message.contains(sharegpt);
  return theirs ? sharegpt : name_of(settings, ours);
}

std::string name_of(const TextSettings& settings, const std::string& key) {
  const auto found = settings.keys.find(key);
  return found == settings.keys.end() ? key : found->second;
}

}  // namespace blipft
