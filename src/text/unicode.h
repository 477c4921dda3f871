// Unicode as the tokenizer needs it: UTF-8, the classes of the GPT-2 pattern, NFC and NFD.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace blipft::unicode {

constexpr uint32_t replacement_character = 0xFFFD;

/// Reads the code point at text[position] and moves `position` behind it. An ill-formed sequence gives U+FFFD for each
/// maximal part of it, as Python's bytes.decode("utf-8", errors="replace") does. `position` must be < text.size().
uint32_t next_code_point(std::string_view text, size_t& position);
/// Appends the UTF-8 form of a scalar value.
void append_utf8(std::string& text, uint32_t code_point);
/// `text` with every ill-formed sequence replaced by U+FFFD.
std::string repair_utf8(std::string_view text);

bool is_letter(uint32_t code_point);          ///< \p{L}
bool is_capital(uint32_t code_point);         ///< \p{Lu} or \p{Lt}
bool is_small_letter(uint32_t code_point);    ///< \p{Ll}
bool is_mark(uint32_t code_point);            ///< \p{M}
bool is_number(uint32_t code_point);          ///< \p{N}
bool is_space(uint32_t code_point);           ///< \s
bool is_word_character(uint32_t code_point);  ///< \w

/// `text` without the white space at its ends, as Python's str.strip() leaves it.
std::string_view stripped(std::string_view text);

/// Canonical decomposition (Unicode Standard Annex 15) of well-formed UTF-8.
std::vector<uint32_t> nfd(std::string_view text);
/// Canonical composition (Unicode Standard Annex 15) of well-formed UTF-8.
std::string nfc(std::string_view text);

}  // namespace blipft::unicode
