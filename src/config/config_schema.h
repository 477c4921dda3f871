// Config schema: the one table of every key of a run file. Reading, overriding, printing, --help and the suggestions
// of error messages all come from it.
#pragma once

#include <functional>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "blipft/config.h"
#include "blipft/config_rules.h"

namespace blipft {

/// The member of a Config that holds an enum, read and written by its word.
struct ChoiceField {
  void* value;                                          ///< the enum
  std::string_view (*word_of)(const void* value);
  bool (*assign)(void* value, std::string_view word);   ///< false if no enumerator has this word

  std::string word() const { return std::string(word_of(value)); }
  void set(const ChoiceField& other) const { assign(value, other.word()); }
};

/// The member of a Config that holds a list of such enums.
struct ChoiceListField {
  void* value;                                          ///< std::vector of the enum
  std::vector<std::string> (*words_of)(const void* value);
  void (*assign)(void* value, const std::vector<std::string>& words);  ///< leaves out words of no enumerator

  std::vector<std::string> words() const { return words_of(value); }
  void set(const ChoiceListField& other) const { assign(value, other.words()); }
};

/// A pointer to the member of a Config that a key sets.
using Field = std::variant<std::string*, int64_t*, double*, bool*, ChoiceField, ChoiceListField,
                           std::vector<std::string>*, std::vector<int64_t>*, std::map<std::string, std::string>*>;

/// The allowed values of a key. Bounds are for numbers, elements of lists of numbers, and integers written for a choice;
/// choices are for text, and for the names of a map.
struct Allowed {
  std::vector<std::string> choices;  ///< empty: any text
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool above_min = false;            ///< min itself is not allowed
  bool below_max = false;            ///< max itself is not allowed
  bool zero = true;                  ///< 0 is allowed
  bool required = false;             ///< text that must be given
  std::string zero_word;             ///< an integer's 0 is written so; empty: as a number
  bool or_integer = false;           ///< an integer may stand in place of a choice
  std::string or_containing;         ///< text with this in it may stand in place of a choice; empty: no text may
  std::string form;                  ///< how messages call such a text; empty: by what is in it
  std::vector<std::pair<std::string, std::string>> meant = {};  ///< other programs' word for a choice, for suggestions
};

struct Key {
  std::string section, name;
  std::function<Field(Config&)> field;
  Allowed allowed;
  std::string doc;                   ///< one line
  std::vector<std::string> aliases;  ///< names that other programs give it, for suggestions only
  std::string other_name = {};       ///< a second name under which it may be given; empty: none
  OnResume on_resume = OnResume::refused;
  bool of_each_rank = false;         ///< see KeyRules
  bool absence_counts = false;       ///< not given is not the same as given with the default value

  std::string full() const { return section + "." + name; }
  Key& on_resume_is(OnResume how) { return on_resume = how, *this; }
  Key& may_differ_between_ranks() { return of_each_rank = true, *this; }
  Key& absence_has_a_meaning() { return absence_counts = true, *this; }
};

/// Every key, in the order of the sections.
const std::vector<Key>& config_keys();
/// The sections in order: model, adapter, data, train, parallel, checkpoint, generate, evaluate, trace, output.
const std::vector<std::string>& config_sections();
/// Null when there is none.
const Key* find_key(const std::string& section, const std::string& name);
/// The key of a full name, "train.lr". Throws Error if there is none.
const Key& key_of(const std::string& full_name);
/// Gives `to` the value that `from` has for a key.
void copy_value(const Key& key, const Config& from, Config& to);

/// "a number > 0", "one of none, half or full", "true or false": what a value of this key must be.
std::string expected_value(const Key& key);
/// The value of a key in YAML.
std::string value_text(const Key& key, const Config& config);
/// "; did you mean train.batch_size?", "; devices belongs to parallel: parallel.devices", or the section's keys.
std::string suggest_key(const std::string& section, const std::string& name);

/// The type of an unquoted YAML scalar.
enum class ScalarKind { null, boolean, number, text };
ScalarKind scalar_kind(const std::string& text);
/// `text` as a YAML scalar: plain where that is safe, else quoted.
std::string quote_scalar(const std::string& text);

/// The beginning of Config::locations for a key that the command line gives.
constexpr const char* override_location = "override \"";
/// The beginning of an override by --smoke, and of such a key's location in Config::locations.
constexpr const char* smoke_override = "--smoke: ";
/// The location, for Config::locations, and the section.key=value of an override.
struct Override {
  std::string location, text;
};
Override override_of(const std::string& argument);

/// The values that `text`, the content of `file`, gives. Throws UserError on unknown keys and wrong values; conflicts
/// are not refused.
Config read_values(const std::string& file, const std::string& text);

/// Notes where train.batch_size, given alone on the command line, changes the samples of a step, because the run file has
/// micro-batches beside it. `of_file`: what the file says.
void note_samples_of_a_step(Config& config, const StepsSection& of_file);

/// Throws UserError, with file and line, on a combination of values that cannot work.
void check_combinations(const Config& config);

}  // namespace blipft
