// Added tokens: those that are looked for in the text before the model sees the rest.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
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
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  /// Tokens that begin with the same byte, by their content, and the lengths that there are. A file may add any number.
  struct Group {
    std::set<size_t, std::greater<>> lengths;
    std::unordered_map<std::string, AddedToken, Hash, std::equal_to<>> tokens;
  };
  using Entry = std::pair<const std::string, AddedToken>;
  const Entry* match(std::string_view text) const;
  bool is_space(uint32_t code_point) const;
  size_t trailing_space(std::string_view text) const;
  size_t leading_space(std::string_view text) const;

  Space space_;
  std::array<Group, 256> by_first_byte_;
};

}  // namespace blipft
