// How records become text, by the run file and the tokenizer's files.
#include <cstdio>
#include <filesystem>

#include "blipft/config.h"
#include "blipft/error.h"
#include "blipft/text.h"
#include "io/file.h"
#include "io/json.h"
#include "text/chat_template.h"

namespace blipft {
namespace {

/// `read`'s result, or nothing where it cannot be read.
template <class Read>
auto or_nothing(const Read& read) -> decltype(read()) {
  try {
    return read();
  } catch (const UserError&) {
    return {};
  }
}

/// The chat template of a model directory, as transformers reads it; empty: none. What cannot be read counts as none:
/// it may be of no use here, and the tokenizer's files have been checked.
std::string published_template(const std::filesystem::path& directory) {
  const std::string own_file = or_nothing(
      [&] { return io::read_whole_file((directory / "chat_template.jinja").string(), io::max_json_bytes); });
  if (!own_file.empty()) return own_file;
  const nlohmann::json config =
      or_nothing([&] { return io::read_json_file((directory / "tokenizer_config.json").string()); });
  if (!config.is_object() || !config.contains("chat_template")) return {};
  const nlohmann::json& value = config["chat_template"];
  if (value.is_string()) return value.get<std::string>();
  for (const nlohmann::json& named : value.is_array() ? value : nlohmann::json::array()) {
    const bool is_default = named.is_object() && named.contains("name") && named["name"] == "default";
    if (is_default && named.contains("template") && named["template"].is_string()) return named["template"];
  }
  return {};
}

/// "2024-07-26" as strftime's "%d %b %Y" and "%d %B %Y" write it.
void set_date(const Config& config, TextSettings& settings) {
  static const char* const months[] = {"January", "February", "March",     "April",   "May",      "June",
                                       "July",    "August",   "September", "October", "November", "December"};
  const std::string& date = config.data.chat_date;
  int year = 0, month = 0, day = 0, end = 0;
  const bool read = std::sscanf(date.c_str(), "%4d-%2d-%2d%n", &year, &month, &day, &end) == 3;
  const bool known = read && date.size() == 10 && end == 10 && year > 0 && month >= 1 && month <= 12 && day >= 1 && day <= 31;
  BLIPFT_USER_CHECK(known, place_of(config, "data.chat_date"), ": data.chat_date: found ", brief(date),
                    ", expected a day as 2024-07-26");
  const std::string name = months[month - 1];
  settings.chat_date_short = date.substr(8) + " " + name.substr(0, 3) + " " + date.substr(0, 4);
  settings.chat_date_long = date.substr(8) + " " + name + " " + date.substr(0, 4);
}

}  // namespace

TextSettings text_settings(const Config& config, const Tokenizer& tokenizer) {
  const DataSection& data = config.data;
  TextSettings settings;
  settings.allow_outside = data.allow_outside;
  settings.keys = data.keys;
  settings.pictures = data.pictures;
  settings.prompt_style = data.prompt_style;
  settings.chat_template = data.chat_template == TemplateChoice::automatic
                               ? known_chat_template(published_template(config.model.path))
                               : data.chat_template.text;
  settings.mask_prompt = data.mask_prompt;
  if (data.append_eos != AutoSwitch::automatic) settings.append_eos = data.append_eos == AutoSwitch::on;
  settings.prompt_template = data.prompt_template;
  settings.answers = data.answers;
  set_date(config, settings);
  settings.bos_token = tokenizer.bos_token();
  settings.eos_token = tokenizer.eos_token();
  return settings;
}

}  // namespace blipft
