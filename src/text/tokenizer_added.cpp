// Cutting added tokens out of a text.
#include "text/tokenizer_added.h"

#include <algorithm>

#include "text/unicode.h"

namespace blipft {
namespace {

/// Returns the start of the last character of `text`, which is not empty.
size_t last_character(std::string_view text) {
  size_t position = text.size() - 1;
  while (position > 0 && (static_cast<uint8_t>(text[position]) & 0xC0) == 0x80) --position;
  return position;
}

bool starts_with_word(std::string_view text) {
  size_t position = 0;
  return !text.empty() && unicode::is_word_character(unicode::next_code_point(text, position));
}

bool ends_with_word(std::string_view text) {
  if (text.empty()) return false;
  size_t position = last_character(text);
  return unicode::is_word_character(unicode::next_code_point(text, position));
}

}  // namespace

bool AddedTokenFinder::is_space(uint32_t code_point) const {
  return unicode::is_space(code_point) || (space_ == Space::python && code_point >= 0x1C && code_point <= 0x1F);
}

/// Returns the start of the white space at the end of `text`.
size_t AddedTokenFinder::trailing_space(std::string_view text) const {
  while (!text.empty()) {
    const size_t last = last_character(text);
    size_t position = last;
    if (!is_space(unicode::next_code_point(text, position))) break;
    text = text.substr(0, last);
  }
  return text.size();
}

/// Returns the length of the white space at the start of `text`.
size_t AddedTokenFinder::leading_space(std::string_view text) const {
  for (size_t position = 0; position < text.size();) {
    const size_t begin = position;
    if (!is_space(unicode::next_code_point(text, position))) return begin;
  }
  return text.size();
}

void AddedTokenFinder::add(const AddedToken& token, const std::string& content) {
  if (content.empty()) return;
  Group& group = by_first_byte_[static_cast<uint8_t>(content[0])];
  group.lengths.insert(content.size());
  group.tokens.emplace(content, token);    // of two tokens with equal content the first counts
}

const AddedTokenFinder::Entry* AddedTokenFinder::match(std::string_view text) const {
  const Group& group = by_first_byte_[static_cast<uint8_t>(text[0])];
  for (const size_t length : group.lengths) {
    if (length > text.size()) continue;
    if (const auto found = group.tokens.find(text.substr(0, length)); found != group.tokens.end()) return &*found;
  }
  return nullptr;
}

void AddedTokenFinder::split(std::string_view text, bool split_special_tokens, std::vector<TextPiece>& pieces) const {
  size_t done = 0, space_end = 0;          // space_end: end of the last examined white space
  for (size_t at = 0; at < text.size();) {
    const Entry* entry = match(text.substr(at));
    if (entry == nullptr) {
      ++at;
      continue;
    }
    const size_t found = at;
    at += entry->first.size();
    const AddedToken& token = entry->second;
    if (token.special && split_special_tokens) continue;
    if (token.single_word && (ends_with_word(text.substr(0, found)) || starts_with_word(text.substr(at)))) continue;
    // White space that an earlier token's rstrip removed is skipped.
    size_t begin = std::max(found, done), end = at;
    if (token.lstrip && found > done) begin = done + trailing_space(text.substr(done, found - done));
    if (token.rstrip) {
      if (at >= space_end) space_end = at + leading_space(text.substr(at));
      end = std::max(at, space_end);
    }
    if (begin > done) pieces.push_back({-1, text.substr(done, begin - done)});
    pieces.push_back({token.id, text.substr(begin, end - begin)});
    done = end;
  }
  if (done < text.size()) pieces.push_back({-1, text.substr(done)});
}

}  // namespace blipft
