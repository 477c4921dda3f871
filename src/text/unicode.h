// Unicode as tokenizers need it: UTF-8, general categories, normal forms and small letters. utf8proc has the data; what
// unicode_additions.h lists makes it the Unicode of the Hugging Face library, with any version of utf8proc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace blipft::unicode {

constexpr uint32_t replacement_character = 0xFFFD, code_points = 0x110000;

/// Reads the code point at text[position] and moves `position` behind it. An ill-formed sequence gives U+FFFD for each
/// maximal part of it, as Python's bytes.decode("utf-8", errors="replace") does. `position` must be < text.size().
uint32_t next_code_point(std::string_view text, size_t& position);
/// Appends the UTF-8 form of a scalar value.
void append_utf8(std::string& text, uint32_t code_point);
/// `text` with every ill-formed sequence replaced by U+FFFD.
std::string repair_utf8(std::string_view text);

/// General categories, in utf8proc's order.
enum class Category : uint8_t {
  Cn, Lu, Ll, Lt, Lm, Lo, Mn, Mc, Me, Nd, Nl, No, Pc, Pd, Ps, Pe, Pi, Pf, Po, Sm, Sc, Sk, So, Zs, Zl, Zp, Cc, Cf, Cs, Co
};
Category category(uint32_t code_point);       ///< Cn for what is no code point
bool is_letter(uint32_t code_point);          ///< \p{L}
bool is_capital(uint32_t code_point);         ///< \p{Lu} or \p{Lt}
bool is_small_letter(uint32_t code_point);    ///< \p{Ll}
bool is_mark(uint32_t code_point);            ///< \p{M}
bool is_number(uint32_t code_point);          ///< \p{N}
bool is_space(uint32_t code_point);           ///< White_Space
bool is_word_character(uint32_t code_point);  ///< \w of Unicode Technical Standard 18: Oniguruma's differs a little
/// The small letter of a capital; any other code point itself. U+0130, which has two, too.
uint32_t small_letter(uint32_t code_point);
/// The capital of a small letter; any other code point itself.
uint32_t capital_letter(uint32_t code_point);
/// Full case folding. `code_point` must be a scalar value.
std::u32string folded(uint32_t code_point);

/// `text` without the white space at its ends, as Python's str.strip() leaves it.
std::string_view stripped(std::string_view text);

/// Unicode Standard Annex 15, of well-formed UTF-8.
enum class NormalForm { nfc, nfd, nfkc, nfkd };
std::string normalized(std::string_view text, NormalForm form);

}  // namespace blipft::unicode
