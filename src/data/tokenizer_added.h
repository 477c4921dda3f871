// Added tokens: those that are looked for in the text before the model sees the rest.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace blipft {

/// A token that is found in the text before it is split into words.
struct AddedToken {
  std::string content;
  int32_t id = -1;
  bool special = false;      ///< not looked for where special tokens count as text
  bool lstrip = false;       ///< swallows the white space before it
  bool rstrip = false;       ///< swallows the white space behind it
  bool single_word = false;  ///< only where no word character touches it
  bool normalized = true;    ///< looked for in the normalised text, after the others were found in the text as given
};

/// A part of a text: an added token (id >= 0) or plain text.
struct TextPiece {
  int32_t id = -1;
  std::string_view text;
};

/// Finds added tokens: leftmost first, and the longest of those that start at one place.
class AddedTokenFinder {
 public:
  /// White space as lstrip and rstrip see it: \s, or what Python's str.strip() takes.
  enum class Space { regex, python };
  explicit AddedTokenFinder(Space space = Space::regex) : space_(space) {}
  void add(const AddedToken& token, const std::string& content);
  /// Appends the pieces of `text`, well-formed UTF-8, in order; text between added tokens is never empty.
  void split(std::string_view text, bool split_special_tokens, std::vector<TextPiece>& pieces) const;

 private:
  struct Entry {
    std::string content;
    AddedToken token;
  };
  const Entry* match(std::string_view text) const;
  bool is_space(uint32_t code_point) const;
  size_t trailing_space(std::string_view text) const;
  size_t leading_space(std::string_view text) const;

  Space space_;
  std::array<std::vector<Entry>, 256> by_first_byte_;
};

}  // namespace blipft
