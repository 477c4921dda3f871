// UTF-8, character classes and NFC over the tables of unicode_tables.cpp.
#include "text/unicode.h"

#include <algorithm>

#include "text/unicode_tables.h"

namespace blipft::unicode {
namespace {

using namespace unicode_tables;

uint32_t combining_class(uint32_t code_point) {
  const CombiningClass* end = combining_classes + combining_classes_size;
  const CombiningClass* found =
      std::upper_bound(combining_classes, end, code_point,
                       [](uint32_t value, const CombiningClass& range) { return value < range.first; });
  return found != combining_classes && code_point <= found[-1].last ? found[-1].value : 0;
}

// Hangul syllables are computed (Unicode Standard, section 3.12).
constexpr uint32_t hangul_first = 0xAC00, hangul_l = 0x1100, hangul_v = 0x1161, hangul_t = 0x11A7;
constexpr uint32_t hangul_l_count = 19, hangul_v_count = 21, hangul_t_count = 28;
constexpr uint32_t hangul_count = hangul_l_count * hangul_v_count * hangul_t_count;

void append_decomposed(std::vector<uint32_t>& out, uint32_t code_point) {
  if (code_point - hangul_first < hangul_count) {
    const uint32_t index = code_point - hangul_first;
    out.push_back(hangul_l + index / (hangul_v_count * hangul_t_count));
    out.push_back(hangul_v + index / hangul_t_count % hangul_v_count);
    if (index % hangul_t_count != 0) out.push_back(hangul_t + index % hangul_t_count);
    return;
  }
  const Decomposition* end = decompositions + decompositions_size;
  const Decomposition* found =
      std::lower_bound(decompositions, end, code_point,
                       [](const Decomposition& entry, uint32_t value) { return entry.code_point < value; });
  if (found == end || found->code_point != code_point) {
    out.push_back(code_point);
    return;
  }
  for (uint32_t part : found->parts)
    if (part != 0) out.push_back(part);
}

/// The primary composite of two code points, or 0.
uint32_t compose(uint32_t first, uint32_t second) {
  if (first - hangul_l < hangul_l_count && second - hangul_v < hangul_v_count)
    return hangul_first + ((first - hangul_l) * hangul_v_count + (second - hangul_v)) * hangul_t_count;
  if (first - hangul_first < hangul_count && (first - hangul_first) % hangul_t_count == 0 && second > hangul_t &&
      second < hangul_t + hangul_t_count)
    return first + (second - hangul_t);
  const Composition* end = compositions + compositions_size;
  const Composition* found =
      std::lower_bound(compositions, end, std::pair(first, second), [](const Composition& entry, const auto& pair) {
        return std::pair(entry.first, entry.second) < pair;
      });
  return found != end && found->first == first && found->second == second ? found->composed : 0;
}

/// Puts each run of combining marks into the order of their classes.
void order_marks(std::vector<uint32_t>& text) {
  for (size_t begin = 0; begin < text.size();) {
    if (combining_class(text[begin]) == 0) {
      ++begin;
      continue;
    }
    size_t end = begin;
    while (end < text.size() && combining_class(text[end]) != 0) ++end;
    std::stable_sort(text.begin() + static_cast<ptrdiff_t>(begin), text.begin() + static_cast<ptrdiff_t>(end),
                     [](uint32_t a, uint32_t b) { return combining_class(a) < combining_class(b); });
    begin = end;
  }
}

/// Joins each starter with the marks behind it that are not blocked by an equal or higher class.
std::vector<uint32_t> composed(const std::vector<uint32_t>& text) {
  std::vector<uint32_t> out;
  size_t starter = text.size();  // index in `out`; none yet
  uint32_t last_class = 0;
  for (uint32_t code_point : text) {
    const uint32_t value = combining_class(code_point);
    const bool has_starter = starter < out.size();
    const bool adjacent = has_starter && starter + 1 == out.size();
    if (has_starter && (adjacent || last_class < value)) {
      if (const uint32_t joined = compose(out[starter], code_point)) {
        out[starter] = joined;
        continue;
      }
    }
    if (value == 0) starter = out.size();
    last_class = value;
    out.push_back(code_point);
  }
  return out;
}

}  // namespace

uint32_t next_code_point(std::string_view text, size_t& position) {
  const auto byte = [&](size_t at) { return static_cast<uint8_t>(text[at]); };
  const uint32_t lead = byte(position++);
  if (lead < 0x80) return lead;
  if (lead < 0xC2 || lead > 0xF4) return replacement_character;
  const int more = lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3;
  // The second byte's range excludes overlong forms, surrogates and values above U+10FFFF.
  uint32_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  uint32_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  uint32_t value = lead & (0x3Fu >> more);
  for (int i = 0; i < more; ++i) {
    if (position >= text.size() || byte(position) < low || byte(position) > high) return replacement_character;
    value = value << 6 | (byte(position++) & 0x3Fu);
    low = 0x80;
    high = 0xBF;
  }
  return value;
}

void append_utf8(std::string& text, uint32_t code_point) {
  const auto put = [&](uint32_t value) { text.push_back(static_cast<char>(value)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3F));
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

std::string repair_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t position = 0; position < text.size();) append_utf8(out, next_code_point(text, position));
  return out;
}

bool is_letter(uint32_t code_point) {
  if (code_point < 0x80) return (code_point | 0x20) - 'a' < 26;
  return in_ranges(letters, letters_size, code_point);
}

bool is_capital(uint32_t code_point) {
  if (code_point < 0x80) return code_point - 'A' < 26;
  return in_ranges(capitals, capitals_size, code_point);
}

bool is_small_letter(uint32_t code_point) {
  if (code_point < 0x80) return code_point - 'a' < 26;
  return in_ranges(small_letters, small_letters_size, code_point);
}

bool is_mark(uint32_t code_point) { return code_point >= 0x80 && in_ranges(marks, marks_size, code_point); }

bool is_number(uint32_t code_point) {
  if (code_point < 0x80) return code_point - '0' < 10;
  return in_ranges(numbers, numbers_size, code_point);
}

bool is_space(uint32_t code_point) {
  if (code_point < 0x80) return code_point == ' ' || code_point - '\t' < 5;
  return in_ranges(spaces, spaces_size, code_point);
}

bool is_word_character(uint32_t code_point) { return in_ranges(words, words_size, code_point); }

std::string_view stripped(std::string_view text) {
  size_t begin = text.size(), end = 0;
  for (size_t position = 0; position < text.size();) {
    const size_t start = position;
    const uint32_t code_point = next_code_point(text, position);
    if (is_space(code_point) || (code_point >= 0x1C && code_point <= 0x1F)) continue;
    begin = std::min(begin, start);
    end = position;
  }
  return end == 0 ? text.substr(0, 0) : text.substr(begin, end - begin);
}

std::vector<uint32_t> nfd(std::string_view text) {
  std::vector<uint32_t> code_points;
  for (size_t position = 0; position < text.size();) append_decomposed(code_points, next_code_point(text, position));
  order_marks(code_points);
  return code_points;
}

std::string nfc(std::string_view text) {
  if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) < 0x80; }))
    return std::string(text);
  std::string out;
  for (uint32_t code_point : composed(nfd(text))) append_utf8(out, code_point);
  return out;
}

}  // namespace blipft::unicode
