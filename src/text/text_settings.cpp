// Settings that convert records to text, from the run file and the tokenizer's files.
#include <algorithm>
#include <ctime>
#include <filesystem>

#include "blipft/error.h"
#include "blipft/text.h"
#include "io/file.h"
#include "io/json.h"
#include "text/chat_template.h"

namespace blipft {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// Returns the result of `read`, or nullopt if it throws UserError.
template <class Read>
auto or_nothing(const Read& read) -> decltype(read()) {
  try {
    return read();
  } catch (const UserError&) {
    return {};
  }
}

/// Returns a JSON file of a model's folder, or an empty object if it cannot be read, because it may not be needed.
Json folder_json(const fs::path& file) {
  const Json json = or_nothing([&] { return io::read_json_file<Json>(file.string()); });
  return json.is_object() ? json : Json::object();
}

/// Returns the template under "chat_template" of a file, or null. If the file has several named templates, returns that
/// with `name`; a single template has the name "default".
std::shared_ptr<const ChatTemplate> template_in(const fs::path& file, const char* name) {
  const Json json = folder_json(file);
  const auto made = [&](const Json& text) {
    return std::make_shared<const ChatTemplate>(text.get<std::string>(), file.string() + ": chat_template");
  };
  const auto value = json.find("chat_template");
  if (value == json.end()) return nullptr;
  if (value->is_string()) return std::string_view(name) == "default" ? made(*value) : nullptr;
  for (const Json& named : value->is_array() ? *value : Json::array())
    if (named.is_object() && named.contains("template") && named["template"].is_string() &&
        named.value("name", Json()) == name)
      return made(named["template"]);
  return nullptr;
}

void set_special_tokens(const fs::path& folder, const Tokenizer& tokenizer, TextSettings& settings) {
  const Json config = folder_json(folder / "tokenizer_config.json");
  for (const auto& item : config.items()) {
    const Json& value = item.value();
    const Json& token = value.is_object() && value.contains("content") ? value["content"] : value;
    if (item.key().ends_with("_token") && token.is_string())
      settings.special_tokens[item.key()] = token.get<std::string>();
  }
  for (const auto& [name, token] :
       {std::pair{"bos_token", tokenizer.bos_token()}, {"eos_token", tokenizer.eos_token()}})
    if (!token.empty()) settings.special_tokens[name] = token;
}

void check_date(const std::string& date, const KeyLocations& places) {
  std::tm day{};
  const char* const end = strptime(date.c_str(), "%Y-%m-%d", &day);
  BLIPFT_USER_CHECK(end && !*end && date.size() == 10, location_of(places, "data.chat_date"), ": data.chat_date: found ",
                    brief(date), ", expected a day as 2024-07-26");
}

}  // namespace

void set_chat_template(const TextKeys& keys, const std::string& model_folder, TextSettings& settings) {
  const auto& choice = keys.chat_template;
  const fs::path folder = model_folder;
  const auto read = [](const std::string& file) { return io::read_whole_file(file, io::max_json_bytes); };
  if (choice != TemplateChoice::automatic) {
    settings.chosen_template = chosen_chat_template(keys);
    settings.chat_template = std::make_shared<const ChatTemplate>(settings.chosen_template, choice.text);
    return;
  }
  const std::string file = (folder / "chat_template.jinja").string(), text = or_nothing([&] { return read(file); });
  if (!text.empty()) settings.chat_template = std::make_shared<const ChatTemplate>(text, file);
  for (const char* name : {"tokenizer_config.json", "chat_template.json", "processor_config.json"}) {
    if (settings.chat_template) return;
    settings.chat_template = template_in(folder / name, "default");
    settings.tool_template = template_in(folder / name, "tool_use");
  }
}

std::string chosen_chat_template(const TextKeys& keys) {
  const auto& choice = keys.chat_template;
  if (choice == TemplateChoice::automatic) return {};
  const std::string format = chat_format_text(choice.text);
  return format.empty() ? io::read_whole_file(choice.text, io::max_json_bytes) : format;
}

std::string end_token_warning(const TextSettings& settings, const Tokenizer& tokenizer, const std::string& model_path) {
  const std::string end = settings.chat_template ? end_of_answers(settings) : "";
  const std::vector<int32_t> ids = tokenizer.encode_plain(end);
  // Some templates add a second token after the one that ends the answer.
  const bool has_token = std::any_of(ids.begin(), ids.end(), [&](const int32_t id) {
    return or_nothing([&] { return std::optional(tokenizer.decode(std::vector{id})); }).value_or("").empty();
  });
  if (ids.size() < 2 || has_token) return {};
  return concat("the chat template ends answers with ", Json(end).dump(), ", which the tokenizer in ", model_path, " splits into ",
                ids.size(), " tokens: generation does not stop there. Set data.chat_template to a template with an end token of "
                "this model, or take a model that has this one.");
}

TextSettings text_settings(const TextKeys& keys, const KeyLocations& places, const std::string& model_folder,
                           const Tokenizer& tokenizer) {
  check_date(keys.chat_date, places);
  TextSettings settings{keys, {}, {}, {}, {}};
  set_chat_template(keys, model_folder, settings);
  if (keys.append_eos != AutoSwitch::automatic) settings.append_eos = keys.append_eos == AutoSwitch::on;
  set_special_tokens(model_folder, tokenizer, settings);
  return settings;
}

}  // namespace blipft
