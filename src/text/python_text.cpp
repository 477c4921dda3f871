#include "text/python_text.h"

#include <algorithm>
#include <iterator>

#include "text/unicode.h"

namespace blipft {
namespace {

// The digit zero of each script with decimal digits (Unicode 14).
constexpr uint32_t zeros[] = {0x30,    0x660,   0x6f0,   0x7c0,   0x966,   0x9e6,   0xa66,   0xae6,   0xb66,   0xbe6,
                              0xc66,   0xce6,   0xd66,   0xde6,   0xe50,   0xed0,   0xf20,   0x1040,  0x1090,  0x17e0,
                              0x1810,  0x1946,  0x19d0,  0x1a80,  0x1a90,  0x1b50,  0x1bb0,  0x1c40,  0x1c50,  0xa620,
                              0xa8d0,  0xa900,  0xa9d0,  0xa9f0,  0xaa50,  0xabf0,  0xff10,  0x104a0, 0x10d30, 0x11066,
                              0x110f0, 0x11136, 0x111d0, 0x112f0, 0x11450, 0x114d0, 0x11650, 0x116c0, 0x11730, 0x118e0,
                              0x11950, 0x11c50, 0x11d50, 0x11da0, 0x16a60, 0x16ac0, 0x16b50, 0x1d7ce, 0x1d7d8, 0x1d7e2,
                              0x1d7ec, 0x1d7f6, 0x1e140, 0x1e2f0, 0x1e950, 0x1fbf0};

}  // namespace

bool is_python_space(uint32_t c) { return (c >= 0x1C && c <= 0x1F) || unicode::is_space(c); }

bool is_decimal_digit(uint32_t c) {
  const auto* above = std::upper_bound(std::begin(zeros), std::end(zeros), c);
  return above != std::begin(zeros) && c - above[-1] < 10;
}

std::vector<std::string_view> split_words(std::string_view text) {
  std::vector<std::string_view> words;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t from = at;
    if (!is_python_space(unicode::next_code_point(text, at))) continue;
    if (from > begin) words.push_back(text.substr(begin, from - begin));
    begin = at;
  }
  if (begin < text.size()) words.push_back(text.substr(begin));
  return words;
}

std::vector<std::string_view> split_blanks(std::string_view text) {
  std::vector<std::string_view> pieces;
  for (size_t begin = 0;;) {
    const size_t end = text.find(' ', begin);
    pieces.push_back(text.substr(begin, end == std::string_view::npos ? end : end - begin));
    if (end == std::string_view::npos) return pieces;
    begin = end + 1;
  }
}

int64_t count_characters(std::string_view text) {
  int64_t count = 0;
  for (size_t at = 0; at < text.size(); ++count) unicode::next_code_point(text, at);
  return count;
}

std::string replace_all(std::string_view text, char from, std::string_view to) {
  std::string out;
  for (char c : text) {
    if (c == from) out += to;
    else out += c;
  }
  return out;
}

}  // namespace blipft
