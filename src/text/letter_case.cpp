#include "text/letter_case.h"

#include "text/unicode.h"

namespace blipft {
namespace {

constexpr char32_t capital_sigma = 0x3A3, final_sigma = 0x3C2, capital_i_with_dot = 0x130, dot_above = 0x307;

// Final_Sigma of the Unicode Standard, table 3-17, as Java implements it: joiners of words and digits are skipped.
bool ends_word(std::u32string_view text, size_t at) {
  const auto looked_through = [](char32_t c) {
    return unicode::is_mark(c) || unicode::is_number(c) || c == U'\'' || c == U'.' || c == U':' || c == U'-' ||
           c == U'_' || c == 0xAD || c == 0xB7 || c == 0x2019;
  };
  size_t before = at, behind = at + 1;
  while (before > 0 && looked_through(text[before - 1])) --before;
  while (behind < text.size() && looked_through(text[behind])) ++behind;
  const auto cased = [](char32_t c) { return unicode::is_capital(c) || unicode::is_small_letter(c); };
  return before > 0 && cased(text[before - 1]) && !(behind < text.size() && cased(text[behind]));
}

}  // namespace

std::string in_small_letters(std::u32string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size(); ++at) {
    const char32_t c = text[at];
    if (c < 0x80) {
      out += static_cast<char>(c >= U'A' && c <= U'Z' ? c | 0x20 : c);
    } else if (c == capital_sigma && ends_word(text, at)) {
      unicode::append_utf8(out, final_sigma);
    } else if (c == capital_i_with_dot) {
      out += 'i';
      unicode::append_utf8(out, dot_above);
    } else {
      unicode::append_utf8(out, unicode::small_letter(c));
    }
  }
  return out;
}

std::string in_small_letters(std::string_view text) {
  std::u32string points;
  for (size_t at = 0; at < text.size();) points += unicode::next_code_point(text, at);
  return in_small_letters(points);
}

}  // namespace blipft
