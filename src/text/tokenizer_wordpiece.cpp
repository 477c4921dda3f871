// WordPiece; see tokenizer_wordpiece.h.
#include "text/tokenizer_wordpiece.h"

#include <algorithm>

#include "text/bert_tables.h"
#include "text/unicode.h"

namespace blipft {
namespace {

constexpr uint32_t capital_i_with_dot = 0x130, dot_above = 0x307;

}  // namespace

// The steps in the library's order. Line ends and tabs are white space; other control characters are removed.
std::string bert_normalized(std::string_view text, const BertText& form) {
  std::string parted;
  for (size_t at = 0; at < text.size();) {
    const uint32_t c = unicode::next_code_point(text, at);
    if (form.cleans && unicode::is_in(bert_tables::removed, c)) continue;
    const bool alone = form.parts_chinese && unicode::is_in(bert_tables::chinese, c);
    if (alone) parted += ' ';
    unicode::append_utf8(parted, form.cleans && unicode::is_space(c) ? ' ' : c);
    if (alone) parted += ' ';
  }
  if (form.strips_accents) parted = unicode::normalized(parted, unicode::NormalForm::nfd);
  std::string out;
  for (size_t at = 0; at < parted.size();) {
    const uint32_t c = unicode::next_code_point(parted, at);
    if (form.strips_accents && unicode::is_in(bert_tables::accents, c)) continue;
    unicode::append_utf8(out, form.small_letters ? unicode::small_letter(c) : c);
    if (form.small_letters && c == capital_i_with_dot) unicode::append_utf8(out, dot_above);
  }
  return out;
}

std::vector<std::string_view> bert_words(std::string_view text) {
  std::vector<std::string_view> words;
  size_t begin = 0;                         // begin of the current word
  for (size_t at = 0; at < text.size();) {
    const size_t here = at;
    const uint32_t c = unicode::next_code_point(text, at);
    const bool mark = unicode::is_in(bert_tables::punctuation, c);
    if (!mark && !unicode::is_space(c)) continue;
    if (here > begin) words.push_back(text.substr(begin, here - begin));
    if (mark) words.push_back(text.substr(here, at - here));
    begin = at;
  }
  if (begin < text.size()) words.push_back(text.substr(begin));
  return words;
}

WordPieceModel::WordPieceModel(WordPieceSpec spec) : spec_(std::move(spec)) {
  for (const auto& [token, id] : spec_.vocab) {
    first_[token] = id;
    if (token.starts_with(spec_.prefix)) later_[token.substr(spec_.prefix.size())] = id;
    longest_ = std::max(longest_, token.size());
  }
  spec_.vocab.clear();
}

void WordPieceModel::encode_word(std::string_view word, std::vector<int32_t>& ids) const {
  std::vector<size_t> ends;                 // ends of characters
  for (size_t at = 0; at < word.size(); ends.push_back(at)) unicode::next_code_point(word, at);
  const size_t before = ids.size();
  const auto unknown = [&] {
    ids.resize(before);
    ids.push_back(spec_.unknown_id);
  };
  if (static_cast<int64_t>(ends.size()) > spec_.max_characters) return unknown();
  for (size_t begin = 0; begin < word.size();) {
    const Ids& tokens = begin == 0 ? first_ : later_;
    size_t i = ends.size();
    auto found = tokens.end();
    while (found == tokens.end() && i > 0 && ends[i - 1] > begin) {
      const std::string_view piece = word.substr(begin, ends[--i] - begin);
      if (piece.size() <= longest_) found = tokens.find(piece);
    }
    if (found == tokens.end()) return unknown();
    ids.push_back(found->second);
    begin = ends[i];
  }
}

}  // namespace blipft
