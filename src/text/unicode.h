// Unicode for tokenizers: UTF-8, general categories, normal forms and lower case. The data come from utf8proc;
// unicode_additions.h completes them to the Unicode of the Hugging Face library, for any version of utf8proc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace blipft::unicode {

constexpr uint32_t replacement_character = 0xFFFD, code_points = 0x110000;

/// Reads the code point at text[position] and moves `position` after it. An ill-formed sequence gives U+FFFD for each
/// maximal part of it, as Python's bytes.decode("utf-8", errors="replace") does. `position` must be < text.size().
uint32_t next_code_point(std::string_view text, size_t& position);
/// Appends the UTF-8 form of a scalar value.
void append_utf8(std::string& text, uint32_t code_point);
/// Returns `text` with every ill-formed sequence replaced by U+FFFD.
std::string repair_utf8(std::string_view text);

/// General categories, in utf8proc's order.
enum class Category : uint8_t {
  Cn, Lu, Ll, Lt, Lm, Lo, Mn, Mc, Me, Nd, Nl, No, Pc, Pd, Ps, Pe, Pi, Pf, Po, Sm, Sc, Sk, So, Zs, Zl, Zp, Cc, Cf, Cs, Co
};
Category category(uint32_t code_point);       ///< Cn for an invalid code point
bool is_letter(uint32_t code_point);          ///< \p{L}
bool is_capital(uint32_t code_point);         ///< \p{Lu} or \p{Lt}
bool is_small_letter(uint32_t code_point);    ///< \p{Ll}
bool is_mark(uint32_t code_point);            ///< \p{M}
bool is_number(uint32_t code_point);          ///< \p{N}
bool is_space(uint32_t code_point);           ///< White_Space
bool is_word_character(uint32_t code_point);  ///< \w of Unicode Technical Standard 18: Oniguruma's differs a little
/// Returns the lower case of a capital; other code points, and U+0130, which has two, are returned unchanged.
uint32_t small_letter(uint32_t code_point);
/// Returns the upper case of a small letter; other code points are returned unchanged.
uint32_t capital_letter(uint32_t code_point);
/// Returns the full case folding. `code_point` must be a scalar value.
std::u32string folded(uint32_t code_point);

/// Implements Python's str.strip(), lstrip() and rstrip(). `set`: the characters to remove; null: white space.
std::string_view stripped(std::string_view text, bool left = true, bool right = true, const std::string* set = nullptr);

/// The normal forms of Unicode Standard Annex 15, for well-formed UTF-8.
enum class NormalForm { nfc, nfd, nfkc, nfkd };
std::string normalized(std::string_view text, NormalForm form);

}  // namespace blipft::unicode
