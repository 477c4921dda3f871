// Added tokens: found in the text before the model encodes the rest.
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
  bool special = false;      ///< not searched for if special tokens count as text
  bool lstrip = false;       ///< removes the white space before it
  bool rstrip = false;       ///< removes the white space after it
  bool single_word = false;  ///< found only without an adjacent word character
  bool normalized = true;    ///< searched for in the normalized text, after the others were found in the original text
};

/// A part of a text: an added token (id >= 0) or plain text.
struct TextPiece {
  int32_t id = -1;
  std::string_view text;
};

/// Finds added tokens: leftmost first, and the longest of those that start at one position.
class AddedTokenFinder {
 public:
  /// The white space of lstrip and rstrip: \s, or that of Python's str.strip().
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
  /// Tokens that begin with the same byte, by their content, and their different lengths. A file may add any number.
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
