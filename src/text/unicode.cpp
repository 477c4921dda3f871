// UTF-8, general categories, normal forms and lower case.
#include "text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "text/unicode_additions.h"

// unicode_additions.cpp lists the characters after Unicode 15.0, which 2.8 has.
static_assert(UTF8PROC_VERSION_MAJOR > 2 || (UTF8PROC_VERSION_MAJOR == 2 && UTF8PROC_VERSION_MINOR >= 8),
              "utf8proc 2.8 or newer is needed: Unicode 15.0");

namespace blipft::unicode {
namespace {

using enum Category;

std::vector<Category> all_categories() {
  std::vector<Category> of(code_points);
  for (uint32_t c = 0; c < code_points; ++c)
    of[c] = static_cast<Category>(utf8proc_category(static_cast<utf8proc_int32_t>(c)));
  for (const AddedCategory& range : added_categories)
    std::fill(of.begin() + range.first, of.begin() + range.last + 1, range.category);
  return of;
}

bool is_between(uint32_t code_point, Category first, Category last) {
  const Category found = category(code_point);
  return found >= first && found <= last;
}

/// Returns, for each code point, true if normalization leaves it unchanged and keeps the positions of all marks before
/// it. The library's normal forms are older than its categories.
std::vector<bool> all_never_normalized() {
  std::vector<bool> of(code_points);
  const auto add = [&](const auto& ranges) {
    for (const auto& range : ranges) std::fill(of.begin() + range.first, of.begin() + range.last + 1, true);
  };
  add(never_normalized);
  add(added_categories);
  return of;
}

void append_normalized(std::string& out, std::string_view text, utf8proc_option_t options) {
  if (text.empty()) return;
  utf8proc_uint8_t* made = nullptr;
  const utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                             static_cast<utf8proc_ssize_t>(text.size()), &made, options);
  const std::unique_ptr<utf8proc_uint8_t, void (*)(void*)> owner(made, std::free);
  if (size < 0) throw std::bad_alloc();  // the text is well-formed
  out.append(reinterpret_cast<const char*>(made), static_cast<size_t>(size));
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
  for (size_t position = 0; position < text.size();) {
    size_t end = position;
    while (end < text.size() && static_cast<uint8_t>(text[end]) < 0x80) ++end;
    out.append(text, position, end - position);
    position = end;
    if (position < text.size()) append_utf8(out, next_code_point(text, position));
  }
  return out;
}

Category category(uint32_t code_point) {
  static const std::vector<Category> of = all_categories();
  return code_point < code_points ? of[code_point] : Cn;
}

bool is_letter(uint32_t code_point) { return is_between(code_point, Lu, Lo); }
bool is_capital(uint32_t code_point) { return category(code_point) == Lu || category(code_point) == Lt; }
bool is_small_letter(uint32_t code_point) { return category(code_point) == Ll; }
bool is_mark(uint32_t code_point) { return is_between(code_point, Mn, Me); }
bool is_number(uint32_t code_point) { return is_between(code_point, Nd, No); }
bool is_space(uint32_t code_point) {
  return code_point - '\t' < 5 || code_point == 0x85 || is_between(code_point, Zs, Zp);
}
bool is_word_character(uint32_t code_point) {
  const bool circled =
      code_point - 0x24B6 < 52 || code_point - 0x1F130 < 26 || code_point - 0x1F150 < 26 || code_point - 0x1F170 < 26;
  const bool joins = code_point == 0x200C || code_point == 0x200D;
  return circled || joins || is_between(code_point, Lu, Nl) || category(code_point) == Pc;
}

uint32_t small_letter(uint32_t code_point) {
  if (code_point < 0x80) return code_point - 'A' < 26 ? code_point + 32 : code_point;
  for (const AddedCapitals& range : added_capitals)
    if (code_point >= range.first && code_point <= range.last)
      return static_cast<uint32_t>(static_cast<int32_t>(code_point) + range.distance);
  return static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code_point)));
}

uint32_t capital_letter(uint32_t code_point) {
  if (code_point < 0x80) return code_point - 'a' < 26 ? code_point - 32 : code_point;
  for (const AddedCapitals& range : added_capitals) {
    const uint32_t capital = static_cast<uint32_t>(static_cast<int32_t>(code_point) - range.distance);
    if (capital >= range.first && capital <= range.last) return capital;
  }
  return static_cast<uint32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(code_point)));
}

std::u32string folded(uint32_t code_point) {
  for (const AddedCapitals& range : added_capitals)
    if (code_point >= range.first && code_point <= range.last && category(code_point) != Cn)
      return {small_letter(code_point)};
  utf8proc_int32_t made[8];  // the longest folding has three
  int last_class = 0;
  const utf8proc_ssize_t size = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code_point), made,
                                                        std::size(made), UTF8PROC_CASEFOLD, &last_class);
  return {made, made + std::max<utf8proc_ssize_t>(size, 0)};
}

std::string_view stripped(std::string_view text, bool left, bool right, const std::string* set) {
  const auto removed = [&](std::string_view character) {
    if (set) return set->find(character) != std::string::npos;
    size_t size = 0;
    const uint32_t code_point = next_code_point(character, size);
    return size == character.size() && (is_space(code_point) || (code_point >= 0x1C && code_point <= 0x1F));
  };
  while (left && !text.empty()) {
    size_t size = 0;
    next_code_point(text, size);
    if (!removed(text.substr(0, size))) break;
    text.remove_prefix(size);
  }
  while (right && !text.empty()) {
    size_t begin = text.size() - 1;
    while (begin > 0 && (text[begin] & 0xc0) == 0x80) --begin;
    if (!removed(text.substr(begin))) break;
    text.remove_suffix(text.size() - begin);
  }
  return text;
}

std::string normalized(std::string_view text, NormalForm form) {
  if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) < 0x80; }))
    return std::string(text);
  const bool composes = form == NormalForm::nfc || form == NormalForm::nfkc;
  const bool compatible = form == NormalForm::nfkc || form == NormalForm::nfkd;
  const auto options = static_cast<utf8proc_option_t>(
      UTF8PROC_STABLE | (composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) | (compatible ? UTF8PROC_COMPAT : 0));
  static const std::vector<bool> stays = all_never_normalized();
  std::string out;
  size_t done = 0;
  for (size_t at = 0, next = 0; at < text.size(); at = next) {
    if (!stays[next_code_point(text, next)]) continue;
    append_normalized(out, text.substr(done, at - done), options);
    out += text.substr(at, next - at);
    done = next;
  }
  append_normalized(out, text.substr(done), options);
  return out;
}

}  // namespace blipft::unicode
