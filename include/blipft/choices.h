// Choices: the conversion between the enums that a run file sets and the words for their values.
//
// Each enum is declared once, with its words, in the header of the room that acts on it; those that several rooms act on
// are here. Only choice_word() and find_choice() convert, so no other code compares strings of a run file.
#pragma once

#include <array>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace blipft {

/// The words of an enum in a run file, in the order of its enumerators.
template <class E>
struct ChoiceWords;

#define BLIPFT_CHOICE_WORDS(type, ...)                            \
  template <>                                                     \
  struct ChoiceWords<type> {                                      \
    static constexpr std::array words = std::to_array<std::string_view>({__VA_ARGS__}); \
  }

/// A switch that can be left to the program: data.append_eos, generate.do_sample.
enum class AutoSwitch { automatic, on, off };
BLIPFT_CHOICE_WORDS(AutoSwitch, "auto", "true", "false");
/// data.on_bad_sample, train.on_nonfinite: end the run, or continue without the sample or update.
enum class FaultAction { stop, skip };
BLIPFT_CHOICE_WORDS(FaultAction, "stop", "skip");

template <class E>
concept Choice = requires { ChoiceWords<E>::words; };

/// The word of `value` in a run file.
template <Choice E>
constexpr std::string_view choice_word(E value) {
  return ChoiceWords<E>::words[static_cast<size_t>(value)];
}

/// The value that `word` stands for; null if there is none.
template <Choice E>
constexpr std::optional<E> find_choice(std::string_view word) {
  for (size_t i = 0; i < ChoiceWords<E>::words.size(); ++i)
    if (ChoiceWords<E>::words[i] == word) return static_cast<E>(i);
  return std::nullopt;
}

/// Prints the word, so that messages can quote a setting.
template <Choice E>
std::ostream& operator<<(std::ostream& out, E value) {
  return out << choice_word(value);
}

/// The words of a list: "optimizer,parameters".
template <Choice E>
std::string choice_list(const std::vector<E>& values) {
  std::string text;
  for (const E value : values) text.append(text.empty() ? "" : ",").append(choice_word(value));
  return text;
}

/// A choice, or a user's text in its place: a path, a name, a number.
template <Choice E>
struct ChoiceOrText {
  std::string text;                          ///< the word of the choice, or the user's text

  ChoiceOrText(E value) : text(choice_word(value)) {}
  ChoiceOrText(std::string given) : text(std::move(given)) {}
  ChoiceOrText(const char* given) : text(given) {}
  bool operator==(E value) const { return text == choice_word(value); }
  bool operator==(const ChoiceOrText&) const = default;
};

template <Choice E>
std::ostream& operator<<(std::ostream& out, const ChoiceOrText<E>& value) {
  return out << value.text;
}

}  // namespace blipft
