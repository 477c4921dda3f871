// How records become text, by the run file and the tokenizer's files.
#include <filesystem>

#include "blipft/data.h"
#include "blipft/error.h"
#include "data/chat_template.h"
#include "io/file.h"
#include "io/json.h"

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
      [&] { return io::read_whole_file((directory / "chat_template.jinja").string(), io::most_json_bytes); });
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

}  // namespace

TextSettings text_settings(const Config& config, const Tokenizer& tokenizer) {
  const DataSection& data = config.data;
  TextSettings settings;
  settings.allow_outside = data.allow_outside;
  settings.keys = data.keys;
  settings.pictures = data.pictures;
  settings.prompt_style = data.prompt_style;
  settings.chat_template = data.chat_template == "auto" ? known_chat_template(published_template(config.model.path))
                                                        : data.chat_template;
  settings.mask_prompt = data.mask_prompt;
  if (data.append_eos != "auto") settings.append_eos = data.append_eos == "true";
  settings.bos_token = tokenizer.bos_token();
  settings.eos_token = tokenizer.eos_token();
  return settings;
}

}  // namespace blipft
