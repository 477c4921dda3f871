// Texts as Python's str sees them: the reference tools of most metrics are Python programs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace blipft {

/// White space of str.split(), str.strip() and \s.
bool is_python_space(uint32_t code_point);
/// \d: a decimal digit of any script.
bool is_decimal_digit(uint32_t code_point);
/// str.split(): the pieces between runs of white space; none is empty.
std::vector<std::string_view> split_words(std::string_view text);
/// str.split(" "): the pieces between blanks, empty ones too; of "" one empty piece.
std::vector<std::string_view> split_blanks(std::string_view text);
/// len(str): code points.
int64_t count_characters(std::string_view text);
/// str.replace() of single bytes; `to` may be empty.
std::string replace_all(std::string_view text, char from, std::string_view to);

}  // namespace blipft
