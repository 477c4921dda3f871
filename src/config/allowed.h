// Helpers that write the table of keys: a key of a section and its allowed values.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/config_schema.h"

namespace blipft::table {

/// The field of an enum.
template <Choice E>
ChoiceField choice_field(E& value) {
  return {&value, [](const void* stored) { return choice_word(*static_cast<const E*>(stored)); },
          [](void* stored, std::string_view word) {
            const std::optional<E> found = find_choice<E>(word);
            if (found) *static_cast<E*>(stored) = *found;
            return found.has_value();
          }};
}

template <Choice E>
ChoiceListField choice_list_field(std::vector<E>& values) {
  return {&values,
          [](const void* stored) {
            std::vector<std::string> words;
            for (const E value : *static_cast<const std::vector<E>*>(stored)) words.emplace_back(choice_word(value));
            return words;
          },
          [](void* stored, const std::vector<std::string>& words) {
            auto& list = *static_cast<std::vector<E>*>(stored);
            list.clear();
            for (const std::string& word : words)
              if (const std::optional<E> found = find_choice<E>(word)) list.push_back(*found);
          }};
}

/// Allows the words of an enum. `meant` maps other programs' words to one of them.
template <Choice E>
Allowed words_of(std::vector<std::pair<std::string, std::string>> meant = {}) {
  Allowed allowed;
  allowed.choices.assign(ChoiceWords<E>::words.begin(), ChoiceWords<E>::words.end());
  allowed.meant = std::move(meant);
  return allowed;
}

/// `section` and `member` are pointers to members, which may be of a base.
template <class Section, class Member>
Key key(Section section, Member member, const char* section_name, const char* name, Allowed allowed,
        const char* doc, std::vector<std::string> aliases = {}) {
  auto field = [section, member](Config& config) -> Field {
    using T = std::remove_reference_t<decltype(config.*section.*member)>;
    if constexpr (Choice<T>) return choice_field(config.*section.*member);
    else if constexpr (requires(T value) { choice_list(value); }) return choice_list_field(config.*section.*member);
    else if constexpr (requires(T value) { value.text; }) return &(config.*section.*member).text;
    else return &(config.*section.*member);
  };
  return {.section = section_name, .name = name, .field = field, .allowed = std::move(allowed), .doc = doc,
          .aliases = std::move(aliases)};
}

// Upper limits of numbers. They are far above useful values, but small enough that no product of them overflows and
// that memory allocated for them (an order of `max_samples` samples) fits into a machine.
constexpr double max_samples = 1e9;        // of an epoch
constexpr double max_batch = 1 << 20;      // micro-batches of a step
constexpr double max_steps = 1e12;
constexpr double max_ranks = 1 << 20;
constexpr double max_threads = 4096;
constexpr double max_factor = 1e6;         // learning rates and the like, which become f32
constexpr double min_f32 = 1e-37;

inline Allowed any() { return {}; }
inline Allowed required() {
  Allowed allowed;
  allowed.required = true;
  return allowed;
}
/// `meant`: words of other programs for one of them.
inline Allowed one_of(std::vector<std::string> choices, std::vector<std::pair<std::string, std::string>> meant = {}) {
  Allowed allowed;
  allowed.choices = std::move(choices);
  allowed.meant = std::move(meant);
  return allowed;
}
/// A choice, or a text with `part` in it, which messages call `form`.
inline Allowed one_of_or_containing(std::vector<std::string> choices, std::string part, std::string form = "") {
  Allowed allowed = one_of(std::move(choices));
  allowed.or_containing = std::move(part);
  allowed.form = std::move(form);
  return allowed;
}
/// A choice, or an integer, min <= value <= max.
inline Allowed one_of_or_integer(std::vector<std::string> choices, double min, double max) {
  Allowed allowed = one_of(std::move(choices));
  allowed.or_integer = true;
  allowed.min = min;
  allowed.max = max;
  return allowed;
}
/// An integer, min <= value <= max with min > 0, or `word`, which stands for 0.
inline Allowed word_or_from_to(std::string word, double min, double max) {
  Allowed allowed;
  allowed.zero_word = std::move(word);
  allowed.min = min;
  allowed.max = max;
  return allowed;
}
inline Allowed at_least(double min) {
  Allowed allowed;
  allowed.min = min;
  return allowed;
}
/// min <= value <= max
inline Allowed from_to(double min, double max) {
  Allowed allowed = at_least(min);
  allowed.max = max;
  return allowed;
}
/// min < value <= max
inline Allowed above(double min, double max) {
  Allowed allowed = from_to(min, max);
  allowed.above_min = true;
  return allowed;
}
/// min <= value < max
inline Allowed half_open(double min, double max) {
  Allowed allowed = from_to(min, max);
  allowed.below_max = true;
  return allowed;
}
/// -1 or 1 to `max`
inline Allowed minus_one_or_positive(double max = max_steps) {
  Allowed allowed = from_to(-1, max);
  allowed.zero = false;
  return allowed;
}

}  // namespace blipft::table
