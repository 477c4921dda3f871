// Config: reads a run file with yaml-cpp, applies the overrides of the command line, and writes a Config as YAML.
// config_schema.cpp defines the keys and their allowed values, config_rules.cpp the conflicts between keys.
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <sstream>
#include <type_traits>

#include "base/nearest.h"
#include "blipft/error.h"
#include "config/config_rules.h"
#include "config/config_schema.h"
#include "io/file.h"

namespace blipft {

namespace {

/// A key, and where its value was written.
struct Target {
  const Key& key;
  std::string location;  ///< "inputs/fsdp.yaml:9" or: override "train.lr=fast"
};

[[noreturn]] void refuse(const Target& target, const std::string& found, const std::string& advice = "") {
  throw UserError(concat(target.location, ": ", target.key.full(), ": found ", brief(found, 100), ", expected ",
                         expected_value(target.key), advice));
}

std::string shown(const std::string& text) { return "\"" + brief(text) + "\""; }

/// Describes a YAML node in words, for error messages.
std::string found_text(const YAML::Node& node) {
  if (node.IsNull()) return "nothing";
  if (node.IsMap()) return "a section";
  if (node.IsSequence()) return "a list";
  return shown(node.Scalar());
}

/// Written without quotes: only such a scalar can be a number or a boolean.
bool is_plain(const YAML::Node& node) { return node.Tag() == "?" || node.Tag().empty(); }

ScalarKind kind_of(const YAML::Node& node) { return is_plain(node) ? scalar_kind(node.Scalar()) : ScalarKind::text; }

void check_bounds(const Target& target, double value, const std::string& text) {
  const Allowed& allowed = target.key.allowed;
  const bool low = allowed.above_min ? value <= allowed.min : value < allowed.min;
  const bool high = allowed.below_max ? value >= allowed.max : value > allowed.max;
  if (low || high || (value == 0 && !allowed.zero)) refuse(target, text);
}

void check_choice(const Target& target, const std::string& text) {
  const std::vector<std::string>& choices = target.key.allowed.choices;
  const std::string& part = target.key.allowed.or_containing;
  if (!part.empty() && text.find(part) != std::string::npos) return;
  if (choices.empty() || std::find(choices.begin(), choices.end(), text) != choices.end()) return;
  std::string near = nearest_name(text, choices);
  for (const auto& [word, choice] : target.key.allowed.meant)
    if (name_distance(word, text) == 0) near = choice;
  refuse(target, shown(text), near.empty() ? "" : "; did you mean " + near + "?");
}

/// The scalar's text, or an error that says what is there instead.
std::string scalar_of(const Target& target, const YAML::Node& node) {
  if (node.IsNull() || !node.IsScalar()) refuse(target, found_text(node));
  return node.Scalar();
}

std::string number_text_of(const Target& target, const YAML::Node& node) {
  const std::string text = scalar_of(target, node);
  if (kind_of(node) == ScalarKind::number) return text[0] == '+' ? text.substr(1) : text;
  const bool quoted_number = !is_plain(node) && scalar_kind(text) == ScalarKind::number;
  refuse(target, shown(text), quoted_number ? "; write it without quotes" : "");
}

void read_value(const Target& target, const YAML::Node& node, int64_t& value) {
  if (const std::string& word = target.key.allowed.zero_word; !word.empty() && node.IsScalar()) {
    if (node.Scalar() == word) {
      value = 0;
      return;
    }
    // A word can only be meant for that one.
    if (kind_of(node) == ScalarKind::text && !nearest_name(node.Scalar(), {word}).empty())
      refuse(target, shown(node.Scalar()), "; did you mean " + word + "?");
  }
  const std::string text = number_text_of(target, node);
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc::result_out_of_range) refuse(target, text, "; it is too large");
  if (error != std::errc() || stop != end) refuse(target, text);
  check_bounds(target, static_cast<double>(value), text);
}

void read_value(const Target& target, const YAML::Node& node, double& value) {
  const std::string text = number_text_of(target, node);
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::result_out_of_range) refuse(target, text, "; it does not fit a double");
  if (!std::isfinite(value)) refuse(target, text);
  check_bounds(target, value, text);
}

void read_value(const Target& target, const YAML::Node& node, bool& value) {
  const std::string text = scalar_of(target, node);
  if (kind_of(node) != ScalarKind::boolean)
    refuse(target, shown(text), scalar_kind(text) == ScalarKind::boolean ? "; write it without quotes" : "");
  value = text[0] == 't' || text[0] == 'T';
}

// The value that an integer in place of a choice has, or nothing where the key takes none or the text is none.
std::optional<int64_t> integer_in_place_of_choice(const Target& target, const std::string& text) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (!target.key.allowed.or_integer || error != std::errc() || stop != end) return std::nullopt;
  return value;
}

void read_value(const Target& target, const YAML::Node& node, std::string& value) {
  const std::string text = scalar_of(target, node);
  if (const auto integer = integer_in_place_of_choice(target, text)) {
    check_bounds(target, static_cast<double>(*integer), text);
    value = text;
    return;
  }
  check_choice(target, text);
  if (!target.key.allowed.choices.empty()) {
    value = text;
    return;
  }
  const ScalarKind kind = kind_of(node);
  if (kind == ScalarKind::boolean) refuse(target, text + " (a boolean)", "; write it in quotes");
  if (kind == ScalarKind::number) refuse(target, text + " (a number)", "; write it in quotes");
  if (text.empty() && target.key.allowed.required) refuse(target, "\"\"");
  value = text;
}

void read_value(const Target& target, const YAML::Node& node, const ChoiceField& field) {
  const std::string text = scalar_of(target, node);
  check_choice(target, text);
  field.assign(field.value, text);
}

/// The elements of "q, v", which is a list too.
std::vector<YAML::Node> split_list(const std::string& text) {
  std::vector<YAML::Node> elements;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const size_t first = std::min(text.find_first_not_of(" \t", begin), end), last = text.find_last_not_of(" \t", end - 1);
    elements.emplace_back(first < end ? text.substr(first, last + 1 - first) : "");
    begin = end + 1;
  }
  return elements;
}

template <class T>
void read_value(const Target& target, const YAML::Node& node, std::vector<T>& values) {
  const bool text = node.IsScalar() && !node.Scalar().empty();
  if (!node.IsSequence() && !text) {
    const std::vector<std::string>& choices = target.key.allowed.choices;
    const std::string names = "[" + (choices.empty() ? "name" : choices[0]) + "]";
    refuse(target, found_text(node), "; write for example " + (std::is_same_v<T, std::string> ? names : "[0, 1]"));
  }
  const std::vector<YAML::Node> elements = text ? split_list(node.Scalar()) : std::vector<YAML::Node>(node.begin(), node.end());
  std::vector<T> read;
  for (const YAML::Node& element : elements) {
    if (text && element.Scalar().empty()) refuse(target, shown(node.Scalar()), "; nothing stands before or behind a comma");
    T value{};
    read_value(target, element, value);
    if (std::find(read.begin(), read.end(), value) != read.end())
      throw UserError(concat(target.location, ": ", target.key.full(), ": ", found_text(element), " is listed twice"));
    read.push_back(std::move(value));
  }
  values = std::move(read);
}

void read_value(const Target& target, const YAML::Node& node, const ChoiceListField& field) {
  std::vector<std::string> words;
  read_value(target, node, words);
  field.assign(field.value, words);
}

void read_value(const Target& target, const YAML::Node& node, std::map<std::string, std::string>& values) {
  if (!node.IsMap()) refuse(target, found_text(node));
  std::map<std::string, std::string> read;
  for (const auto& entry : node) {
    if (!entry.first.IsScalar()) refuse(target, found_text(entry.first));
    const std::string name = entry.first.Scalar();
    check_choice(target, name);
    if (!entry.second.IsScalar() || entry.second.Scalar().empty())
      throw UserError(concat(target.location, ": ", target.key.full(), ": ", name, ": found ", found_text(entry.second),
                             ", expected the name that the records have for it"));
    if (!read.emplace(name, entry.second.Scalar()).second)
      throw UserError(concat(target.location, ": ", target.key.full(), ": ", name, " is given twice; remove one"));
  }
  values = std::move(read);
}

void set_value(Config& config, const Target& target, const YAML::Node& node) {
  std::visit(
      [&]<class F>(const F& field) {
        if constexpr (!std::is_pointer_v<F>) read_value(target, node, field);
        else read_value(target, node, *field);
      },
      target.key.field(config));
  config.locations[target.key.full()] = target.location;
}

/// "inputs/fsdp.yaml:12"; lines of yaml-cpp begin at 0 and are negative where it knows none.
std::string location_in(const std::string& file, const YAML::Mark& mark) {
  return mark.line < 0 ? file : concat(file, ":", mark.line + 1);
}

std::string key_name(const std::string& file, const YAML::Node& key) {
  if (!key.IsScalar())
    throw UserError(concat(location_in(file, key.Mark()), ": found ", found_text(key), " where a key is expected"));
  return key.Scalar();
}

void read_section(Config& config, const std::string& section, const YAML::Node& node) {
  std::map<std::string, std::string> seen;
  for (const auto& entry : node) {
    const std::string name = key_name(config.file, entry.first);
    const std::string location = location_in(config.file, entry.first.Mark());
    const Key* key = find_key(section, name);
    if (!key) throw UserError(concat(location, ": unknown key ", section, ".", brief(name), suggest_key(section, name)));
    const auto [first, is_new] = seen.emplace(key->name, location);
    if (!is_new)
      throw UserError(concat(location, ": ", key->full(), " is given twice",
                             name == key->name ? "" : " (as " + brief(name) + ")",
                             ", first at ", first->second, "; remove one"));
    set_value(config, {*key, location}, entry.second);
  }
}

[[noreturn]] void refuse_section(const std::string& location, const std::string& name) {
  const std::vector<std::string>& sections = config_sections();
  const size_t dot = name.find('.');
  std::string advice;
  if (const std::string near = nearest_name(name, sections); !near.empty())
    advice = "; did you mean " + near + "?";
  else if (dot != std::string::npos && find_key(name.substr(0, dot), name.substr(dot + 1)))
    advice = concat("; in a file write ", name.substr(dot + 1), " indented below ", name.substr(0, dot), ":");
  else
    advice = suggest_key("", name);
  throw UserError(concat(location, ": unknown section ", brief(name), advice));
}

void read_sections(Config& config, const YAML::Node& root) {
  const std::vector<std::string>& sections = config_sections();
  const std::string all = join_names(sections, " and ");
  if (!root || root.IsNull())
    throw UserError(concat(config.file, ": the file is empty; expected the sections ", all));
  if (!root.IsMap())
    throw UserError(concat(location_in(config.file, root.Mark()), ": found ", found_text(root),
                           ", expected the sections ", all, ", each as \"name:\" with indented keys"));
  std::map<std::string, std::string> seen;
  for (const auto& entry : root) {
    const std::string name = key_name(config.file, entry.first);
    const std::string location = location_in(config.file, entry.first.Mark());
    if (std::find(sections.begin(), sections.end(), name) == sections.end()) refuse_section(location, name);
    const auto [first, is_new] = seen.emplace(name, location);
    if (!is_new)
      throw UserError(concat(location, ": section ", name, " is given twice, first at ", first->second, "; join them"));
    if (entry.second.IsNull())
      throw UserError(concat(location, ": section ", name, " is empty; give it keys, indented below it, or remove it"));
    if (!entry.second.IsMap())
      throw UserError(concat(location, ": section ", name, ": found ", found_text(entry.second),
                             ", expected keys, indented below it"));
    read_section(config, name, entry.second);
  }
}

std::string read_text(const std::string& file) {
  namespace fs = std::filesystem;
  const int64_t limit = 1 << 20;
  std::error_code error;
  if (!fs::exists(file, error)) throw UserError(concat(file, ": there is no such run file"));
  if (fs::is_directory(file, error)) {
    const std::string kept = (fs::path(file) / "config.yaml").string();
    throw UserError(concat(file, ": is a directory, expected a run file (YAML)",
                           fs::exists(kept, error) ? "; that of the run in it is " + kept : ""));
  }
  const io::FileDescriptor opened = io::open_for_reading(file);
  const int64_t size = io::file_size(opened, file);
  if (size > limit)
    throw UserError(concat(file, ": has ", size, " bytes, which is no run file (YAML); is it a data or model file?"));
  std::string text(static_cast<size_t>(size), '\0');
  io::read_at(opened, 0, text.data(), size, file);
  return text;
}

/// Takes what a parser finds and keeps nothing.
class IgnoreEvents : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

/// The one document of a text. YAML::Load would pass over everything after it, and YAML::LoadAll does not end on some
/// damaged texts, so a parser looks whether anything follows.
YAML::Node load_document(const std::string& file, const std::string& text) {
  std::istringstream in(text);
  YAML::Parser parser(in);
  IgnoreEvents ignore;
  if (parser.HandleNextDocument(ignore) && parser)
    throw UserError(concat(file, ": has something after the end of its first YAML document (\"---\", \"...\" or a ",
                           "closing bracket), expected one document; remove it"));
  return YAML::Load(text);
}

/// The key that an override names, or an error with the nearest.
const Key& key_of_override(const std::string& location, const std::string& name) {
  const size_t dot = name.find('.');
  const std::string section = dot == std::string::npos ? "" : name.substr(0, dot);
  const std::string leaf = dot == std::string::npos ? name : name.substr(dot + 1);
  const std::vector<std::string>& sections = config_sections();
  const bool known_section = std::find(sections.begin(), sections.end(), section) != sections.end();
  if (const Key* key = find_key(section, leaf)) return *key;
  // A misspelt section with a known key: the nearest section may have it.
  const std::string near_section = known_section ? section : nearest_name(section, sections);
  if (const Key* key = find_key(near_section, leaf))
    throw UserError(concat(location, ": unknown section ", brief(section), "; did you mean ", key->full(), "?"));
  throw UserError(concat(location, ": unknown key ", brief(name), suggest_key(near_section, leaf)));
}

/// Returns true if a text begins and ends with quotes and no quote between them ends the text earlier.
bool is_quoted(const std::string& text) {
  const bool doubles = text.starts_with('"');
  if (!doubles && !text.starts_with('\'')) return false;
  for (size_t i = 1; i < text.size(); ++i) {
    const bool escapes = doubles ? text[i] == '\\' : text.substr(i, 2) == "''";
    if (escapes) ++i;
    else if (text[i] == text[0]) return i + 1 == text.size();
  }
  return false;
}

void apply_override(Config& config, const std::string& argument) {
  const auto [location, text] = override_of(argument);
  const size_t equals = text.find('=');
  if (equals == std::string::npos) throw UserError(concat(location, ": expected section.key=value"));
  const Target target{key_of_override(location, text.substr(0, equals)), location};
  const std::string value = text.substr(equals + 1);
  // The shell took the quotes of a text away, so a text is what it is; one that still has quotes around it, and everything
  // else, is read as in a file.
  const bool text_key = std::holds_alternative<std::string*>(target.key.field(config));
  YAML::Node node;
  if (text_key && !is_quoted(value)) {
    node = YAML::Node(value);
    node.SetTag("!");
  } else {
    try {
      node = load_document(location, value);
    } catch (const YAML::Exception& error) {
      if (!text_key) refuse(target, shown(value));
      throw UserError(concat(location, ": ", target.key.full(), ": found ", shown(value), ", no text in quotes as YAML has it (",
                             error.msg, "); without them a text is what it is"));
    }
  }
  set_value(config, target, node);
}

void check_required(const Config& config) {
  for (const Key& key : config_keys()) {
    const bool missing = key.allowed.required && value_text(key, config) == quote_scalar("");
    if (missing)
      throw UserError(concat(config.file, ": ", key.full(), " is missing; give it in section ", key.section,
                             ", or on the command line as ", key.full(), "=... (", key.doc, ")"));
  }
}

/// `path` with the values of the $NAME and ${NAME} in it.
std::string with_environment(const Config& config, const std::string& key, const std::string& path) {
  const auto part_of_name = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
  std::string out;
  for (size_t at = 0; at < path.size(); ++at) {
    const bool braces = path[at] == '$' && path[std::min(at + 1, path.size() - 1)] == '{';
    size_t begin = at + 1 + braces, end = begin;
    while (end < path.size() && part_of_name(path[end])) ++end;
    const bool closed = !braces || (end < path.size() && path[end] == '}');
    if (path[at] != '$' || begin == end || !closed || std::isdigit(static_cast<unsigned char>(path[begin])) != 0) {
      out += path[at];
      continue;
    }
    const std::string name = path.substr(begin, end - begin);
    const char* value = std::getenv(name.c_str());
    BLIPFT_USER_CHECK(value && *value, location_of(config, key), ": ", key, ": ", shown(path), " names the environment ",
                      "variable ", name, ", which is not set here; set it (export ", name, "=...), or write the path out");
    out += value;
    at = end - !braces;
  }
  return out;
}

/// Variables, and "~/" at the begin of a path: a shell leaves these as they are behind "key=" and in quotes, and in a
/// file nothing else would know them.
void expand_paths(Config& config) {
  const char* home = std::getenv("HOME");
  const std::pair<const char*, std::string*> paths[] = {
      {"model.path", &config.model.path},           {"adapter.path", &config.adapter.path},
      {"data.path", &config.data.path},             {"data.val_path", &config.data.val_path},
      {"generate.path", &config.generate.path},     {"generate.weights", &config.generate.weights.text},
      {"checkpoint.path", &config.checkpoint.path}, {"checkpoint.resume", &config.checkpoint.resume.text},
      {"output.path", &config.output.path},         {"data.pictures", &config.data.pictures}};
  for (const auto& [key, path] : paths) {
    *path = with_environment(config, key, *path);
    if (home && path->starts_with("~/")) *path = home + path->substr(1);
  }
}

Config with_overrides(Config config, const std::vector<std::string>& overrides, int64_t ranks) {
  const StepsSection of_file = config.steps;
  for (const std::string& one : overrides) apply_override(config, one);
  resolve_conflicts(config, ranks);
  note_samples_of_a_step(config, of_file);
  expand_paths(config);
  check_required(config);
  check_combinations(config);
  return config;
}

// Sections of "section.key" with their value.
std::string yaml_of(const std::vector<std::pair<std::string, std::string>>& values) {
  std::string text, section;
  for (const auto& [key, value] : values) {
    const size_t dot = std::min(key.find('.'), key.size() - 1);
    if (key.substr(0, dot) != section) {
      text += concat(section.empty() ? "" : "\n", key.substr(0, dot), ":\n");
      section = key.substr(0, dot);
    }
    text += concat("  ", key.substr(dot + 1), ": ", value, "\n");
  }
  return text;
}

}  // namespace

Config read_values(const std::string& file, const std::string& text) {
  Config config;
  config.file = file;
  try {
    read_sections(config, load_document(file, text));
  } catch (const YAML::Exception& error) {
    throw UserError(concat(location_in(file, error.mark), ": not valid YAML: ", brief(error.msg, 200),
                           "; check indentation, colons and quotes there"));
  }
  return config;
}

Config load_config(const std::string& file, const std::vector<std::string>& overrides, int64_t ranks) {
  return with_overrides(read_values(file, read_text(file)), overrides, ranks);
}

Config config_from_values(const std::vector<std::pair<std::string, std::string>>& values, const std::string& file,
                          const std::vector<std::string>& overrides) {
  return with_overrides(read_values(file, yaml_of(values)), overrides, 0);
}

std::string to_yaml(const Config& config, bool every_key) { return yaml_of(config_values(config, every_key)); }

std::vector<std::pair<std::string, std::string>> config_values(const Config& config, bool every_key) {
  std::vector<std::pair<std::string, std::string>> all;
  for (const Key& key : config_keys())
    if (every_key || !key.absence_counts || config.locations.count(key.full()))
      all.push_back({key.full(), value_text(key, config)});
  return all;
}

}  // namespace blipft
