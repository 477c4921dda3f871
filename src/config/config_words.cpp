// Config words: what a name or a scalar of a run file was meant to be, and how a text is written there.
#include <algorithm>
#include <charconv>

#include "blipft/error.h"
#include "config/config_schema.h"
#include "config/nearest.h"

namespace blipft {

std::string suggest_key(const std::string& section, const std::string& name) {
  std::vector<std::string> elsewhere, own_names, other_names;
  for (const Key& key : config_keys()) {
    const bool alias = std::find(key.aliases.begin(), key.aliases.end(), name) != key.aliases.end();
    if (alias) return "; did you mean " + key.full() + "?";
    if (key.name == name) elsewhere.push_back(key.full());
    if (key.section == section) own_names.push_back(key.name);
    other_names.push_back(key.name);
  }
  if (!elsewhere.empty()) return "; " + brief(name) + " belongs elsewhere: did you mean " + join_names(elsewhere) + "?";
  std::string near = nearest_name(name, own_names);
  if (!near.empty()) return "; did you mean " + section + "." + near + "?";
  near = nearest_name(name, other_names);
  for (const Key& key : config_keys())
    if (!near.empty() && key.name == near) return "; did you mean " + key.full() + "?";
  if (own_names.empty()) return "; the sections are " + join_names(config_sections(), " and ");
  return "; the keys of " + section + " are " + join_names(own_names, " and ");
}

ScalarKind scalar_kind(const std::string& text) {
  static const std::vector<std::string> nulls = {"", "~", "null", "Null", "NULL"};
  static const std::vector<std::string> booleans = {"true", "True", "TRUE", "false", "False", "FALSE"};
  if (std::find(nulls.begin(), nulls.end(), text) != nulls.end()) return ScalarKind::null;
  if (std::find(booleans.begin(), booleans.end(), text) != booleans.end()) return ScalarKind::boolean;
  const char* begin = text.data() + (text[0] == '+' ? 1 : 0);
  const char* end = text.data() + text.size();
  double value = 0;
  const auto [stop, error] = std::from_chars(begin, end, value);
  const bool signs_twice = begin != text.data() && begin != end && *begin == '-';
  const bool number = stop == end && stop != begin && !signs_twice && error != std::errc::invalid_argument;
  return number ? ScalarKind::number : ScalarKind::text;
}

std::string quote_scalar(const std::string& text) {
  static const std::string safe = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-+";
  static const std::vector<std::string> old_booleans = {"yes", "no", "on", "off", "y", "n"};  // of YAML 1.1
  const bool is_old_boolean = std::any_of(old_booleans.begin(), old_booleans.end(),
                                          [&](const std::string& word) { return name_distance(word, text) == 0; });
  const bool plain = text.find_first_not_of(safe) == std::string::npos && scalar_kind(text) == ScalarKind::text &&
                     text[0] != '-' && !is_old_boolean;
  if (plain) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    const char* digits = "0123456789abcdef";
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') quoted += {'\\', c};
    else if (byte < 0x20 || byte == 0x7f) quoted += {'\\', 'x', digits[byte >> 4], digits[byte & 15]};
    else quoted += c;
  }
  return quoted + "\"";
}

}  // namespace blipft
