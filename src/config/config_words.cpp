// Config words: writes values and texts as in a run file, describes the allowed values of a key, and suggests
// corrections of misspelt names and scalars.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <type_traits>

#include "base/nearest.h"
#include "blipft/error.h"
#include "config/config_schema.h"

namespace blipft {

namespace {

template <class Number>
std::string number_text(Number value) {
  char buffer[64];
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, value);  // doubles: the shortest that reads back
  return std::string(buffer, result.ptr);
}

template <class T>
std::string element_text(const T& value) {
  if constexpr (std::is_same_v<T, std::string>) return quote_scalar(value);
  else return number_text(value);
}

template <class T>
std::string field_text(const T& value) {
  if constexpr (std::is_same_v<T, bool>) return value ? "true" : "false";
  else return element_text(value);
}

template <class T>
std::string field_text(const std::vector<T>& values) {
  std::string text;
  for (const T& value : values) text += (text.empty() ? "" : ", ") + element_text(value);
  return "[" + text + "]";
}

std::string field_text(const std::map<std::string, std::string>& values) {
  std::string text;
  for (const auto& [name, value] : values) text += concat(text.empty() ? "" : ", ", name, ": ", element_text(value));
  return "{" + text + "}";
}

std::string bound_text(double bound) {
  const bool whole = bound == std::floor(bound) && std::fabs(bound) < 1e16;
  return whole ? number_text(static_cast<int64_t>(bound)) : number_text(bound);
}

std::string bounds_text(const Allowed& allowed) {
  std::string text;
  if (allowed.min > -std::numeric_limits<double>::infinity())
    text = concat(allowed.above_min ? " > " : " >= ", bound_text(allowed.min));
  if (allowed.max < std::numeric_limits<double>::infinity())
    text += concat(text.empty() ? "" : " and", allowed.below_max ? " < " : " <= ", bound_text(allowed.max));
  if (!allowed.zero) text += ", not 0";
  return text;
}

}  // namespace

std::string expected_value(const Key& key) {
  Config config;
  const Allowed& allowed = key.allowed;
  return std::visit(
      [&]<class F>(const F&) -> std::string {
        using T = std::remove_pointer_t<F>;
        if constexpr (std::is_same_v<T, bool>) return "true or false";
        else if constexpr (std::is_same_v<T, int64_t>)
          return "an integer" + bounds_text(allowed) + (allowed.zero_word.empty() ? "" : ", or " + allowed.zero_word);
        else if constexpr (std::is_same_v<T, double>) return "a number" + bounds_text(allowed);
        else if constexpr (std::is_same_v<T, std::vector<std::string>> || std::is_same_v<T, ChoiceListField>)
          return "a list of " + (allowed.choices.empty() ? "names" : join_names(allowed.choices));
        else if constexpr (std::is_same_v<T, std::vector<int64_t>>)
          return "a list of integers" + bounds_text(allowed);
        else if constexpr (std::is_same_v<T, std::map<std::string, std::string>>)
          return concat("a map, {", allowed.choices.front(), ": name}, of ", join_names(allowed.choices));
        std::vector<std::string> choices = allowed.choices;
        if (allowed.or_integer) choices.push_back("an integer" + bounds_text(allowed));
        if (!allowed.or_containing.empty())
          choices.push_back(allowed.form.empty() ? "a text with " + allowed.or_containing + " in it" : allowed.form);
        return choices.empty() ? "text" : "one of " + join_names(choices);
      },
      key.field(config));
}

std::string value_text(const Key& key, const Config& config) {
  // The table's fields are mutable pointers; nothing is written through them here.
  const Field field = key.field(const_cast<Config&>(config));
  int64_t* const* const number = std::get_if<int64_t*>(&field);
  if (number && **number == 0 && !key.allowed.zero_word.empty()) return key.allowed.zero_word;
  return std::visit(
      []<class F>(const F& value) {
        if constexpr (std::is_same_v<F, ChoiceField>) return quote_scalar(value.word());
        else if constexpr (std::is_same_v<F, ChoiceListField>) return field_text(value.words());
        else return field_text(*value);
      },
      field);
}

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
