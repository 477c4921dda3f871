// The split patterns, written by hand: each alternative of the regular expression is one function or branch, tried in
// the expression's order.
#include "text/tokenizer_split.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "text/unicode.h"

namespace blipft {
namespace {

enum class CharacterClass { end, letter, number, space, other };

/// The class of the character at text[position]; `next` is where the one behind it starts.
CharacterClass class_at(std::string_view text, size_t position, size_t& next) {
  next = position;
  if (position >= text.size()) return CharacterClass::end;
  const uint32_t code_point = unicode::next_code_point(text, next);
  if (unicode::is_letter(code_point)) return CharacterClass::letter;
  if (unicode::is_space(code_point)) return CharacterClass::space;
  if (unicode::is_number(code_point)) return CharacterClass::number;
  return CharacterClass::other;
}

/// The end of the run of `wanted` characters that starts at `position`, of `limit` characters at most.
size_t run_end(std::string_view text, size_t position, CharacterClass wanted, size_t limit = SIZE_MAX) {
  size_t next = position;
  for (size_t count = 0; count < limit && class_at(text, position, next) == wanted; ++count) position = next;
  return position;
}

bool is_line_end(char c) { return c == '\r' || c == '\n'; }

/// Length of an English contraction at the start of `text`, or 0.
size_t contraction_length(std::string_view text) {
  for (std::string_view suffix : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"})
    if (text.starts_with(suffix)) return suffix.size();
  return 0;
}

/// The same whatever the case. U+017F, the long s, is an s to a regular expression that ignores case.
size_t contraction_length_any_case(std::string_view text) {
  if (!text.starts_with('\'')) return 0;
  if (text.starts_with("'\u017f")) return std::string_view("'\u017f").size();
  std::array<char, 3> lower{};
  const size_t count = std::min(text.size(), lower.size());
  for (size_t i = 0; i < count; ++i)
    lower[i] = text[i] >= 'A' && text[i] <= 'Z' ? static_cast<char>(text[i] | 0x20) : text[i];
  return contraction_length({lower.data(), count});
}

/// \s+(?!\S)|\s+ : white space leaves its last character to the word behind it, unless it is that character alone.
size_t space_end(std::string_view text, size_t begin) {
  size_t last = begin, position = begin, next = begin;
  while (class_at(text, position, next) == CharacterClass::space) {
    last = position;
    position = next;
  }
  return position == text.size() || last == begin ? position : last;
}

size_t gpt2_word_end(std::string_view text, size_t begin) {
  if (const size_t length = contraction_length(text.substr(begin))) return begin + length;
  size_t next = begin;
  CharacterClass found = class_at(text, begin, next);
  if (found == CharacterClass::space) {
    size_t behind = next;
    const CharacterClass follower = class_at(text, next, behind);
    if (text[begin] != ' ' || follower == CharacterClass::space || follower == CharacterClass::end)
      return space_end(text, begin);
    found = follower;
    next = behind;
  }
  return run_end(text, next, found);
}

/// What a character may be in tekken's words: in capitals that they begin with, in small letters that they end with.
struct LetterCase {
  bool capital = false, small = false;
};
LetterCase case_at(std::string_view text, size_t position, size_t& next) {
  next = position;
  if (position >= text.size()) return {};
  const uint32_t code_point = unicode::next_code_point(text, next);
  if (unicode::is_capital(code_point)) return {true, false};
  if (unicode::is_small_letter(code_point)) return {false, true};
  const bool other = unicode::is_letter(code_point) || unicode::is_mark(code_point);
  return {other, other};
}

/// The end of U*S+ or, where that is nowhere, of U+S* from `begin` on; `begin`: neither is there.
/// U* takes all it can. Where no S follows, it gives back what it took until S+ has one.
size_t cased_word_end(std::string_view text, size_t begin, bool& small) {
  size_t end = begin, next = begin, last_small = begin;
  for (LetterCase found = case_at(text, end, next); found.capital; found = case_at(text, end, next)) {
    end = next;
    if (found.small) last_small = end;
  }
  size_t small_end = end;
  while (case_at(text, small_end, next).small) small_end = next;
  small = small_end > end || last_small > begin;
  return small_end > end ? small_end : last_small > begin ? last_small : end;
}

/// `o200k`: contractions belong to the word before them, and numbers have up to three digits.
size_t tekken_word_end(std::string_view text, size_t begin, bool o200k) {
  size_t next = begin, behind = begin;
  const CharacterClass found = class_at(text, begin, next);
  const bool may_lead = found != CharacterClass::letter && found != CharacterClass::number && !is_line_end(text[begin]);
  for (const bool wants_small : {true, false})             // the two alternatives, each with and without a character before
    for (const size_t from : {next, begin}) {
      if (from == next && !may_lead) continue;
      bool small = false;
      const size_t end = cased_word_end(text, from, small);
      if (end > from && (small || !wants_small))
        return o200k ? end + contraction_length_any_case(text.substr(end)) : end;
    }
  if (found == CharacterClass::number) return run_end(text, begin, CharacterClass::number, o200k ? 3 : 1);
  //  ?[^\s\p{L}\p{N}]+[\r\n/]*
  const CharacterClass follower = class_at(text, next, behind);
  if (found == CharacterClass::other || (text[begin] == ' ' && follower == CharacterClass::other)) {
    size_t end = run_end(text, next, CharacterClass::other);
    while (end < text.size() && (is_line_end(text[end]) || text[end] == '/')) ++end;
    return end;
  }
  const size_t spaces_end = run_end(text, begin, CharacterClass::space);
  for (size_t end = spaces_end; end > begin; --end)
    if (is_line_end(text[end - 1])) return end;
  return space_end(text, begin);
}

size_t llama3_word_end(std::string_view text, size_t begin, size_t digits) {
  if (const size_t length = contraction_length_any_case(text.substr(begin))) return begin + length;
  size_t next = begin, behind = begin;
  const CharacterClass found = class_at(text, begin, next);
  const CharacterClass follower = class_at(text, next, behind);
  // [^\r\n\p{L}\p{N}]?\p{L}+
  if (found == CharacterClass::letter) return run_end(text, next, CharacterClass::letter);
  if (follower == CharacterClass::letter && found != CharacterClass::number && !is_line_end(text[begin]))
    return run_end(text, behind, CharacterClass::letter);
  // \p{N}{1,3}
  if (found == CharacterClass::number) return run_end(text, begin, CharacterClass::number, digits);
  //  ?[^\s\p{L}\p{N}]+[\r\n]*
  if (found == CharacterClass::other || (text[begin] == ' ' && follower == CharacterClass::other)) {
    size_t end = run_end(text, next, CharacterClass::other);
    while (end < text.size() && is_line_end(text[end])) ++end;
    return end;
  }
  // \s*[\r\n]+ : to behind the last line end of the white space.
  const size_t spaces_end = run_end(text, begin, CharacterClass::space);
  for (size_t end = spaces_end; end > begin; --end)
    if (is_line_end(text[end - 1])) return end;
  return space_end(text, begin);
}

}  // namespace

const std::string_view qwen2_expression =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

std::optional<SplitPattern> known_pattern(std::string_view expression) {
  if (expression == R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)")
    return SplitPattern::gpt2;
  if (expression == R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
                    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)")
    return SplitPattern::llama3;
  if (expression == qwen2_expression) return SplitPattern::qwen2;
  if (expression == R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
                    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
                    R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)")
    return SplitPattern::tekken;
  if (expression == R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
                    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
                    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)")
    return SplitPattern::o200k;
  return std::nullopt;
}

std::vector<std::string_view> split_words(std::string_view text, SplitPattern pattern) {
  if (pattern == SplitPattern::none && !text.empty()) return {text};
  std::vector<std::string_view> words;
  if (pattern == SplitPattern::gpt2_digits) {
    for (size_t begin = 0, next = 0; begin < text.size(); begin = next) {
      if (class_at(text, begin, next) == CharacterClass::number) {
        words.push_back(text.substr(begin, next - begin));
        continue;
      }
      for (size_t behind = next; class_at(text, next, behind) != CharacterClass::number && behind > next;) next = behind;
      for (const std::string_view word : split_words(text.substr(begin, next - begin), SplitPattern::gpt2))
        words.push_back(word);
    }
    return words;
  }
  const bool o200k = pattern == SplitPattern::o200k;
  const size_t digits = pattern == SplitPattern::llama3 ? 3 : 1;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = pattern == SplitPattern::gpt2     ? gpt2_word_end(text, begin)
                       : pattern == SplitPattern::tekken || o200k ? tekken_word_end(text, begin, o200k)
                                                                  : llama3_word_end(text, begin, digits);
    words.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return words;
}

}  // namespace blipft
